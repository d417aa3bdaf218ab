"""The tiny model: an ordinary Hugging Face folder, and exact solve rates that sampling agrees with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.families import arithmetic, countdown
from actors.prompts import encode_prompts
from actors.verifiers import exact as exact_verifier
from actors.verifiers.countdown import verify as solves
from ops.exact import exact_pass_at_k, exact_solve_rates, solve_rates
from ops.tiny import build_tiny
from store.errors import VergeError
from store.wire import Problem

STEPS = 30
BATCH = 64


@pytest.fixture(scope="module")
def barely_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the form of an answer and little else."""
    out = tmp_path_factory.mktemp("tiny") / "countdown"
    build_tiny(out, "countdown", 0, STEPS, BATCH)
    return out


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for bare sums."""
    out = tmp_path_factory.mktemp("tiny") / "arithmetic"
    build_tiny(out, "arithmetic", 0, STEPS, BATCH)
    return out


def sample(folder: Path, problem: Problem, count: int, temperature: float = 1.0) -> list[str]:
    """Texts of `count` samples that ended by themselves, by transformers' own sampling."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = encode_prompts([problem], tokenizer, 64, 12)[problem.id]
    written = model.generate(
        torch.from_numpy(prompt)[None].long().expand(count, -1),
        attention_mask=torch.ones(count, len(prompt), dtype=torch.long),
        max_new_tokens=12,
        temperature=temperature,
        top_k=0,
    )[:, len(prompt) :]
    ended = (written == tokenizer.eos_token_id).any(dim=1)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in written[ended]]


def test_the_folder_loads_with_one_token_per_character_and_no_spaces(barely_trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(barely_trained)
    assert len(tokenizer) == 16
    ids = tokenizer("1234=56:1+2*3").input_ids
    assert len(ids) == 13
    assert tokenizer.decode(ids) == "1234=56:1+2*3"
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "1234=56:1+2*3"
    with pytest.raises(Exception, match="WordLevel"):
        tokenizer("1/2")


def test_every_place_names_the_same_end_token(barely_trained: Path) -> None:
    end = AutoTokenizer.from_pretrained(barely_trained).eos_token_id
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((barely_trained / name).read_text())
        assert settings["eos_token_id"] == settings["pad_token_id"] == end == 15
        assert settings.get("bos_token_id") is None
    assert AutoModelForCausalLM.from_pretrained(barely_trained).config.head_dim == 32


def test_a_built_folder_is_kept_and_another_one_is_never_overwritten(barely_trained: Path) -> None:
    written = (barely_trained / "model.safetensors").stat().st_mtime_ns
    report = build_tiny(barely_trained, "countdown", 0, STEPS, BATCH)
    assert report["parameters"] == 335_520
    assert (barely_trained / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(VergeError, match="exists already and is something else"):
        build_tiny(barely_trained, "countdown", 1, STEPS, BATCH)


def test_the_same_seed_builds_the_same_model(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> torch.Tensor:
        build_tiny(tmp_path / name, "countdown", seed, steps=3, batch=8)
        return AutoModelForCausalLM.from_pretrained(tmp_path / name).lm_head.weight

    first = weights("first", 0)
    assert torch.equal(first, weights("again", 0))
    assert not torch.equal(first, weights("other", 1))


def test_nothing_is_left_when_a_build_fails(tmp_path: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "tiny", steps=2, batch=4, progress=stop)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(VergeError, match="no built-in problem family 'chess'"):
        build_tiny(tmp_path / "tiny", "chess")
    (tmp_path / "file").write_text("")
    with pytest.raises(VergeError, match="cannot write"):
        build_tiny(tmp_path / "file" / "tiny", steps=1, batch=4)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_exact_solve_rates_agree_with_sampling(barely_trained: Path, temperature: float) -> None:
    problems = countdown.problems("held_out", 40, 0)
    rates = exact_solve_rates(barely_trained, problems, temperature)
    index = int(np.argmax(rates))
    torch.manual_seed(0)
    count = 3000
    texts = sample(barely_trained, problems[index], count, temperature)
    hits = sum(solves(problems[index].answer, text) for text in texts)
    p = rates[index]
    assert 0.005 < p < 0.995
    assert abs(hits / count - p) < 4 * np.sqrt(p * (1 - p) / count)


def test_exact_solve_rates_of_sums_agree_with_sampling(sums: Path) -> None:
    problems = arithmetic.problems("held_out", 40, 0, chat=False)
    rates = exact_solve_rates(sums, problems)
    index = int(np.argmax(rates))
    torch.manual_seed(1)
    count = 3000
    texts = sample(sums, problems[index], count)
    hits = sum(exact_verifier.verify(problems[index].answer, text) for text in texts)
    p = rates[index]
    assert 0.005 < p < 0.995
    assert abs(hits / count - p) < 4 * np.sqrt(p * (1 - p) / count)


def test_answers_that_do_not_fit_with_their_end_token_are_not_counted(barely_trained: Path) -> None:
    problems = countdown.problems("held_out", 20, 0)
    whole, room, tight = (exact_solve_rates(barely_trained, problems, 1.0, limit) for limit in (None, 8, 7))
    assert np.array_equal(whole, room)
    assert (tight < whole).any()
    assert exact_solve_rates(barely_trained, problems, 1.0, 3).tolist() == [0.0] * 20


def test_a_batch_gives_what_single_problems_give(barely_trained: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(barely_trained)
    tokenizer = AutoTokenizer.from_pretrained(barely_trained)
    problems = countdown.problems("train", 12, 0)
    alone = [solve_rates(model, tokenizer, [problem])[0] for problem in problems]
    assert solve_rates(model, tokenizer, problems) == pytest.approx(np.array(alone), rel=1e-5)


def test_what_has_no_exact_rate_is_refused(barely_trained: Path) -> None:
    chat = countdown.problems("train", 1, 0, chat=True)
    with pytest.raises(VergeError, match="is a chat: exact solve rates need a plain prompt"):
        exact_solve_rates(barely_trained, chat)
    with pytest.raises(VergeError, match="whose valid answers cannot be enumerated"):
        exact_solve_rates(barely_trained, [Problem("n", "1+1=", "number", 2)])
    with pytest.raises(VergeError, match="temperature is 0 but must be > 0"):
        exact_solve_rates(barely_trained, countdown.problems("train", 1, 0), 0)


def test_pass_at_k_of_a_known_rate() -> None:
    # By hand: 1 − (1 − p)^k.
    p = np.array([0.0, 0.5, 1.0, 1e-12])
    assert exact_pass_at_k(p, 1) == pytest.approx(p)
    assert exact_pass_at_k(p, 3) == pytest.approx([0.0, 0.875, 1.0, 3e-12])
