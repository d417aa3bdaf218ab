"""Exact solve rates by teacher-forcing every valid answer: an evaluation without sampling noise (LAB.md).

The answers of a problem share their beginnings, so they are laid out as one tree: a row holds the prompt and every
different beginning of an answer once, and each token attends to what leads to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.families.registry import valid_answers
from store.errors import VergeError
from store.wire import Problem

BATCH_TOKENS = 4096
"""Padded tokens of one forward pass, unless one row alone is longer."""


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
    answers = ValidAnswers(tokenizer, problems, max_completion_tokens)
    return answers.solve_rates(answers.probabilities(model, temperature))


@dataclass(frozen=True, slots=True)
class _Tree:
    """Tokens of one row: the prompt, then every beginning of an answer, each after what leads to it.

    `parent`: index of the token before, −1 for the first. `leaf`: (number of the answer, index of its last token).
    """

    tokens: list[int]
    parent: list[int]
    prompt: int
    leaf: list[tuple[int, int]]


class ValidAnswers:
    """Every valid answer of some problems, ready to be asked for its probability under one model after another."""

    def __init__(self, tokenizer: Any, problems: Sequence[Problem], max_completion_tokens: int | None = None) -> None:
        """Lay the trees out. VergeError as `exact_solve_rates`."""
        vocabulary = tokenizer.get_vocab()
        special = set(tokenizer.all_special_tokens)
        if any(len(token) != 1 for token in vocabulary if token not in special):
            raise VergeError(
                "exact solve rates need a tokenizer with one token per character: use a `verge tiny` model"
            )
        self._problems = len(problems)
        trees: list[_Tree] = []
        owners: list[int] = []
        for index, problem in enumerate(problems):
            if not isinstance(problem.prompt, str):
                raise VergeError(f"problem {problem.id} is a chat: exact solve rates need a plain prompt")
            fitting = [
                [vocabulary[character] for character in answer]
                for answer in valid_answers(problem)
                if max_completion_tokens is None or len(answer) < max_completion_tokens
            ]
            trees.append(_tree(tokenizer(problem.prompt).input_ids, fitting, len(owners)))
            owners += [index] * len(fitting)
        self.problem = np.array(owners, np.int64)
        """int64[answers], the index of each answer's problem; the answers of a problem are neighbours."""
        self._batches = [_lay_out(batch) for batch in _batches(trees)]

    @torch.inference_mode()
    def probabilities(self, model: Any, temperature: float = 1.0) -> NDArray[np.float64]:
        """P(answer, then any end token | prompt) of each answer, float64[answers]."""
        if temperature <= 0:
            raise VergeError(f"temperature is {temperature} but must be > 0: at 0 there is no probability to add up")
        found = np.zeros(len(self.problem))
        for batch in self._batches:
            found[batch.answer] = batch.probabilities(model, _end_ids(model), temperature)
        return found

    def solve_rates(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over each problem's answers, float64[problems]."""
        return np.bincount(self.problem, probabilities, minlength=self._problems).astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Trees padded to one length. input_ids, position_ids, before: int64[R, L]; leads: bool[R, L, L], j is i or leads
    to it; answered: bool[R, L], the token is of an answer; answer: int64[A]; row, leaf: int64[A], where it ends."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    before: torch.Tensor
    leads: torch.Tensor
    answered: torch.Tensor
    answer: NDArray[np.int64]
    row: torch.Tensor
    leaf: torch.Tensor

    def probabilities(self, model: Any, end_ids: list[int], temperature: float) -> NDArray[np.float64]:
        logits = model(
            input_ids=self.input_ids,
            attention_mask=self.leads[:, None],
            position_ids=self.position_ids,
            use_cache=False,
        ).logits
        logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
        rows = torch.arange(len(self.input_ids))[:, None]
        written = torch.where(self.answered, logprobs[rows, self.before, self.input_ids], 0.0)
        total = torch.einsum("rij,rj->ri", self.leads.double(), written)
        ended = torch.logsumexp(logprobs[self.row, self.leaf][:, end_ids], dim=-1)
        return (total[self.row, self.leaf] + ended).exp().numpy()


def _tree(prompt: list[int], answers: Sequence[list[int]], first: int) -> _Tree:
    tree = _Tree(list(prompt), list(range(-1, len(prompt) - 1)), len(prompt), [])
    known: dict[tuple[int, int], int] = {}
    for number, answer in enumerate(answers, first):
        at = len(prompt) - 1
        for token in answer:
            if (at, token) not in known:
                known[at, token] = len(tree.tokens)
                tree.tokens.append(token)
                tree.parent.append(at)
            at = known[at, token]
        tree.leaf.append((number, at))
    return tree


def _batches(trees: Sequence[_Tree]) -> list[list[_Tree]]:
    """Trees of similar length together."""
    batches: list[list[_Tree]] = []
    for tree in sorted((tree for tree in trees if tree.leaf), key=lambda tree: -len(tree.tokens)):
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0].tokens) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(tree)
    return batches


def _lay_out(trees: Sequence[_Tree]) -> _Batch:
    shape = len(trees), len(trees[0].tokens)
    input_ids, before, position = (np.zeros(shape, np.int64) for _ in range(3))
    answered, leads = np.zeros(shape, bool), np.zeros((*shape, shape[1]), bool)
    leads[:] = np.eye(shape[1], dtype=bool)  # padding attends to itself, so that no softmax is empty
    for row, tree in enumerate(trees):
        input_ids[row, : len(tree.tokens)] = tree.tokens
        answered[row, tree.prompt : len(tree.tokens)] = True
        for at, parent in enumerate(tree.parent):
            if parent >= 0:
                before[row, at], position[row, at] = parent, position[row, parent] + 1
                leads[row, at] |= leads[row, parent]
    ends = [(number, row, leaf) for row, tree in enumerate(trees) for number, leaf in tree.leaf]
    answer, rows, leaf = np.array(ends, np.int64).T
    return _Batch(
        torch.from_numpy(input_ids),
        torch.from_numpy(position),
        torch.from_numpy(before),
        torch.from_numpy(leads),
        torch.from_numpy(answered),
        answer,
        torch.from_numpy(rows.copy()),
        torch.from_numpy(leaf.copy()),
    )


def _end_ids(model: Any) -> list[int]:
    ids = model.generation_config.eos_token_id
    return list(ids) if isinstance(ids, list) else [int(ids)]
