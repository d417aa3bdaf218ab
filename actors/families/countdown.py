"""Countdown: make a target from four digits. Many right answers per problem, and problems of every difficulty.

Four digits 1–9 (repeats allowed) and a target 0–99 that is none of them. An answer is an expression over any of the
digits, each at most as often as given, with `+ - *`, usual precedence and no brackets, that equals the target. The
prompt is `abcd=tt:`, the answer has 3, 5 or 7 characters.

There are 15,391 problems up to the order of their digits. A fixed 2,000 of them are the reserve: every split of every
seed is drawn from it, and no demonstration of any seed touches it.
"""

from functools import cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from actors.families.split import Split, take_split
from actors.verifiers.countdown import OPERATORS, value
from store.wire import Message, Problem

ALPHABET = "0123456789+-*=:"
RESERVE = 2000
RESERVE_SEED = 20_000
TARGETS = range(100)

LENGTH_SHARES = (0.15, 0.30, 0.55)
"""Shares of demonstrations with 2, 3 and 4 digits."""
OPERATOR_WEIGHTS = (1.0, 0.25, 0.08)
"""Relative frequency of + - * in demonstrations. Rare operators make hard problems."""
RIGHT_SHARE = 0.7
"""Share of demonstrations whose target is the expression's own value. The rest keep the model diverse."""


def problems(split: Split, count: int, seed: int, chat: bool = False) -> list[Problem]:
    """`count` problems of the split. Train and held-out of one seed are disjoint; another seed shuffles anew.

    Raises:
        VergeError: the reserve has no `count` problems for this split.
    """
    return [
        _problem(digits, target, chat) for digits, target in take_split(_reserve(), split, count, seed, "countdown")
    ]


def answers(digits: str, target: int) -> tuple[str, ...]:
    """Every valid answer, without spaces, in a fixed order; none when the problem cannot be solved."""
    return _answers_by_target("".join(sorted(digits))).get(target, ())


def demonstrations(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """`count` pairs (prompt, answer) for pre-training, none of them of a reserved problem."""
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        pairs.extend(_draw(rng, 2 * (count - len(pairs)) + 16))
    return pairs[:count]


def _draw(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    digits = rng.integers(1, 10, (count, 4))
    own, other = _Expressions(rng, digits), _Expressions(rng, digits)
    right = rng.random(count) < RIGHT_SHARE
    target = own.value
    usable = (target >= TARGETS.start) & (target < TARGETS.stop) & ~(digits == target[:, None]).any(axis=1)
    reserved = _reserved_keys()
    ascending = np.sort(digits, axis=1) @ (1000, 100, 10, 1)
    return [
        (prompt("".join(map(str, digits[i])), int(target[i])), (own if right[i] else other).text(i))
        for i in np.flatnonzero(usable)
        if (int(ascending[i]), int(target[i])) not in reserved
    ]


class _Expressions:
    """One random expression for each row of `digits` [N, 4]; `value` [N] int64."""

    def __init__(self, rng: np.random.Generator, digits: NDArray[np.int64]) -> None:
        count = len(digits)
        weights = np.array(OPERATOR_WEIGHTS)
        self.order = rng.permuted(digits, axis=1)
        self.length = rng.choice((2, 3, 4), count, p=LENGTH_SHARES)
        self.operator = rng.choice(3, (count, 3), p=weights / weights.sum())
        total, sign, factor = np.zeros(count, np.int64), np.ones(count, np.int64), self.order[:, 0].copy()
        for place in range(3):
            used, operator, digit = self.length > place + 1, self.operator[:, place], self.order[:, place + 1]
            times, plus_minus = used & (operator == 2), used & (operator != 2)
            total = np.where(plus_minus, total + sign * factor, total)
            sign = np.where(plus_minus, np.where(operator == 0, 1, -1), sign)
            factor = np.where(plus_minus, digit, np.where(times, factor * digit, factor))
        self.value = total + sign * factor

    def text(self, row: int) -> str:
        length = int(self.length[row])
        operators = [OPERATORS[i] for i in self.operator[row, : length - 1]]
        return _join(self.order[row, :length].tolist(), operators)


def prompt(digits: str, target: int) -> str:
    """`abcd=tt:`, 8 characters."""
    return f"{digits}={target:02d}:"


def _join(digits: list[int], operators: list[str]) -> str:
    return "".join(str(digit) + operator for digit, operator in zip(digits, [*operators, ""], strict=True))


def _problem(digits: str, target: int, chat: bool) -> Problem:
    count = len(answers(digits, target))
    return Problem(
        id=f"countdown-{digits}={target:02d}",
        prompt=_messages(digits, target) if chat else prompt(digits, target),
        verifier="countdown",
        answer={"digits": digits, "target": target},
        tags=("countdown", "few-answers" if count < 4 else "some-answers" if count < 16 else "many-answers"),
    )


def _messages(digits: str, target: int) -> tuple[Message, ...]:
    listed = ", ".join(digits)
    text = f"Make {target} from the digits {listed}, each at most once, with + - * and no brackets. Expression only."
    return (Message(role="user", content=text),)


@cache
def _answers_by_target(ascending: str) -> dict[int, tuple[str, ...]]:
    """All answers over these digits, by value: at most 900 expressions."""
    digits = [int(digit) for digit in ascending]
    found: dict[int, list[str]] = {}
    for length in (2, 3, 4):
        for order in sorted(set(permutations(digits, length))):
            for operators in product(OPERATORS, repeat=length - 1):
                worth = value(list(order), list(operators))
                if worth in TARGETS and worth not in digits:
                    found.setdefault(worth, []).append(_join(list(order), list(operators)))
    return {target: tuple(texts) for target, texts in found.items()}


@cache
def _reserve() -> tuple[tuple[str, int], ...]:
    """The reserved problems: random digits, then any target that they can make, all equally likely."""
    rng = np.random.default_rng(RESERVE_SEED)
    chosen: dict[tuple[str, int], tuple[str, int]] = {}
    while len(chosen) < RESERVE:
        digits = "".join(map(str, rng.integers(1, 10, 4)))
        ascending = "".join(sorted(digits))
        targets = sorted(_answers_by_target(ascending))
        target = targets[rng.integers(len(targets))]
        chosen.setdefault((ascending, target), (digits, target))
    return tuple(chosen.values())


@cache
def _reserved_keys() -> frozenset[tuple[int, int]]:
    return frozenset((int("".join(sorted(digits))), target) for digits, target in _reserve())
