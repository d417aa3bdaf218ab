"""Exact solve rates by teacher-forcing every valid answer: an evaluation without sampling noise (LAB.md)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.families.registry import valid_answers
from store.errors import VergeError
from store.wire import Problem

ROWS = 1024
"""Answers in one forward pass."""


def exact_solve_rates(
    model_dir: Path,
    problems: Sequence[Problem],
    temperature: float = 1.0,
    max_completion_tokens: int | None = None,
) -> NDArray[np.float64]:
    """p of each problem: the probability that one sample at this temperature is a valid answer, [len(problems)].

    Args:
        model_dir: a Hugging Face folder whose tokenizer has one token per character, such as `verge tiny` makes.
        max_completion_tokens: answers that do not fit with their end token are never finished, so not counted.

    Raises:
        VergeError: the answers cannot be enumerated, or a text is more than one sequence of tokens.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return solve_rates(model, tokenizer, problems, temperature, max_completion_tokens)


def exact_pass_at_k(p: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """1 − (1 − p)^k, for each problem."""
    return -np.expm1(k * np.log1p(-np.minimum(p, 1.0 - 1e-15)))


def solve_rates(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    temperature: float = 1.0,
    max_completion_tokens: int | None = None,
) -> NDArray[np.float64]:
    """`exact_solve_rates` of a model and tokenizer that are loaded already."""
    if temperature <= 0:
        raise VergeError(f"temperature is {temperature} but must be > 0: at 0 there is no probability to add up")
    rows = _rows(tokenizer, problems, max_completion_tokens)
    rates = np.zeros(len(problems))
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        np.add.at(rates, [row[0] for row in part], _probabilities(model, _end_ids(model), part, temperature))
    return rates


Row = tuple[int, list[int], list[int]]
"""Problem index, prompt ids, answer ids."""


def _rows(tokenizer: Any, problems: Sequence[Problem], max_completion_tokens: int | None) -> list[Row]:
    vocabulary = tokenizer.get_vocab()
    special = set(tokenizer.all_special_tokens)
    if any(len(token) != 1 for token in vocabulary if token not in special):
        raise VergeError("exact solve rates need a tokenizer with one token per character: use a `verge tiny` model")
    rows: list[Row] = []
    for index, problem in enumerate(problems):
        if not isinstance(problem.prompt, str):
            raise VergeError(f"problem {problem.id} is a chat: exact solve rates need a plain prompt")
        prompt = tokenizer(problem.prompt).input_ids
        for answer in valid_answers(problem):
            if max_completion_tokens is None or len(answer) < max_completion_tokens:
                rows.append((index, prompt, [vocabulary[character] for character in answer]))
    rows.sort(key=lambda row: len(row[1]) + len(row[2]))
    return rows


@torch.inference_mode()
def _probabilities(model: Any, end_ids: list[int], rows: list[Row], temperature: float) -> NDArray[np.float64]:
    """P(answer, then any end token | prompt) of each row."""
    width = max(len(prompt) + len(answer) for _, prompt, answer in rows)
    inputs = torch.full((len(rows), width), end_ids[0])
    for place, (_, prompt, answer) in enumerate(rows):
        inputs[place, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
    first = torch.tensor([len(prompt) for _, prompt, _ in rows])[:, None]
    end = torch.tensor([len(prompt) + len(answer) for _, prompt, answer in rows])[:, None]
    logprobs = torch.log_softmax(model(inputs).logits.double() / temperature, dim=-1)
    written = logprobs[:, :-1].gather(-1, inputs[:, 1:, None])[..., 0]
    position = torch.arange(1, width)[None]
    total = torch.where((position >= first) & (position < end), written, 0.0).sum(dim=1)
    ended = torch.logsumexp(logprobs[torch.arange(len(rows)), end[:, 0] - 1][:, end_ids], dim=-1)
    return (total + ended).exp().numpy()


def _end_ids(model: Any) -> list[int]:
    ids = model.generation_config.eos_token_id
    return list(ids) if isinstance(ids, list) else [int(ids)]
