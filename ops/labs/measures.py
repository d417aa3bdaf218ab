"""What is measured of a model: everything exact, by teacher-forcing every valid answer, except the entropy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ops.exact import ValidAnswers, exact_pass_at_k
from ops.labs.bases import LONGEST, Splits
from ops.labs.sampler import sample
from store.wire import Problem

Floats = NDArray[np.float64]
KS = (1, 4, 16, 64, 256)
HARD = 0.02
"""A problem is hard for a base that solves it less often than this."""
SOLVED_AT, SOLVED = 256, 0.5
"""A problem counts as solved where pass@256 is at least a half."""
MANY = 256
"""Samples among which distinct right answers are counted."""


class Part:
    """The problems of one split, and how the base solves them."""

    def __init__(self, tokenizer: Any, problems: Sequence[Problem], base: Any) -> None:
        self._answers = ValidAnswers(tokenizer, problems, LONGEST)
        self._base = self.solve_rates(base)

    def measure(self, model: Any) -> dict[str, Any]:
        """Exact figures of the model.

        Returns:
            `pass`, `hard`: mean pass@k for k of KS, over all problems and over those hard for the base; `distinct`:
            right answers that 256 samples are expected to find, per problem; `new`, `lost`: problems that are solved
            now and were not by the base, and the reverse; `problems`, `hard_problems`: how many there are.
        """
        each = self._answers.probabilities(model)
        p = self._answers.solve_rates(each)
        hard = self._base < HARD
        now, before = (exact_pass_at_k(rate, SOLVED_AT) >= SOLVED for rate in (p, self._base))
        return {
            "pass": pass_at(p),
            "hard": pass_at(p[hard]) if hard.any() else [],
            "distinct": float(exact_pass_at_k(each, MANY).sum() / len(p)),
            "new": int((now & ~before).sum()),
            "lost": int((before & ~now).sum()),
            "problems": len(p),
            "hard_problems": int(hard.sum()),
        }

    def solve_rates(self, model: Any) -> Floats:
        """p of every problem."""
        return self._answers.solve_rates(self._answers.probabilities(model))


def pass_at(p: Floats) -> list[float]:
    """Mean pass@k over problems, for k of KS."""
    return [float(exact_pass_at_k(p, k).mean()) for k in KS]


class Measures:
    """All that is measured of the runs from one base. Its random numbers are its own: to measure changes no run."""

    def __init__(self, tokenizer: Any, problems: Splits, base: Any) -> None:
        """`base`: the model that the runs start from."""
        self._parts = {name: Part(tokenizer, getattr(problems, name), base) for name in ("train", "choose", "report")}
        self._prompts = np.array([tokenizer(problem.prompt).input_ids for problem in problems.report])
        self._end = tokenizer.eos_token_id

    def final(self, model: Any) -> dict[str, Any]:
        """The figures of every split, and the entropy."""
        return {name: part.measure(model) for name, part in self._parts.items()} | {"entropy": self._entropy(model)}

    def now(self, model: Any) -> dict[str, Any]:
        """A point of the curve: pass@k of the held-out splits, and the entropy."""
        held_out = {name: pass_at(self._parts[name].solve_rates(model)) for name in ("choose", "report")}
        return held_out | {"entropy": self._entropy(model)}

    def _entropy(self, model: Any) -> float:
        """Mean nats per token of completions of held-out problems."""
        random = torch.Generator().manual_seed(0)
        return sample(model, self._prompts, 2, LONGEST, self._end, random).entropy
