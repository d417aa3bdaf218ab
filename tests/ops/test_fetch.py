"""SmolLM2 from its package: the converted folder is the model that the GGUF holds."""

import importlib.metadata
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ops import fetch
from store.errors import VergeError


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted model; without the package these tests have not been run."""
    try:
        importlib.metadata.distribution(fetch.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {fetch.PACKAGE} is not installed")
    return fetch.fetch_smollm2(tmp_path_factory.mktemp("fetched") / "smollm2")


def test_the_converted_model_answers_through_its_chat_template_and_stops(smollm2: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(smollm2), AutoModelForCausalLM.from_pretrained(smollm2)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(prompt).endswith("<|im_end|>\n<|im_start|>assistant\n")
    written = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
    assert tokenizer.decode(written) == "The capital of France is Paris.<|im_end|>"


def test_the_folder_is_ordinary_and_knows_both_end_tokens(smollm2: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(smollm2), AutoTokenizer.from_pretrained(smollm2)
    assert not hasattr(model.config, "quantization_config")
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id] == [2, 0]
    assert tokenizer.tokenize("a  12+345") == ["a", "ĠĠ", "1", "2", "+", "3", "4", "5"]


def test_a_fetched_folder_is_kept_and_another_one_is_never_overwritten(smollm2: Path, tmp_path: Path) -> None:
    written = (smollm2 / "model.safetensors").stat().st_mtime_ns
    assert fetch.fetch_smollm2(smollm2) == smollm2
    assert (smollm2 / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(VergeError, match="exists already and is something else"):
        fetch.fetch_smollm2(tmp_path)


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PACKAGE", "no-such-package-of-ours")
    with pytest.raises(VergeError, match=r"not installed: pip install 'verge-rl\[smollm2\]'"):
        fetch.fetch_smollm2(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
