"""Arithmetic: one to three operations on small whole numbers, as a word problem for a chat model or as bare sums.

Level 1 has one operation, level 2 two, level 3 three. Every value on the way is a whole number ≥ 0, and reading from
left to right is the usual precedence. The terse prompt is `7*4+5=`, its answer `33`; the chat prompt tells the same
sum as a story, after two solved examples.

Three of five sums, by a hash of their text, are never demonstrated. A fixed 4,000 of those are the reserve, from which
every split of every seed is drawn.
"""

import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from actors.families.split import Split, take_split
from store.wire import Message, Problem

ALPHABET = "0123456789+-*=:"
RESERVE = 4000
RESERVE_SEED = 30_000
LEVEL_SHARES = (0.4, 0.35, 0.25)
RIGHT_SHARE = 0.7
"""Share of demonstrations with the right answer; the others are off by 1 to 9."""

EXAMPLES = (
    ("Leo has 3 pens and gets 4 more.", "Leo has 3 + 4 = 7 pens."),
    ("Zoe has 9 eggs and gives away 4.", "Zoe has 9 - 4 = 5 eggs."),
)
"""Turns that show what is asked and the form of an answer. A small chat model answers best in its own way of speaking:
of the forms measured with SmolLM2-135M, a whole sentence is right about twice as often as the bare equation."""

NAMES = ("Tom", "Ana", "Sam", "Mia", "Ben", "Eva", "Leo", "Zoe")
THINGS = ("apples", "books", "coins", "cards", "shells", "pens", "stamps", "eggs")

OPENINGS = {
    "+": ("{name} has {a} {things} and gets {b} more.", "{name} finds {a} {things} and then {b} more."),
    "-": ("{name} has {a} {things} and gives away {b}.", "{name} had {a} {things} but lost {b}."),
    "*": ("{name} has {a} boxes with {b} {things} each.", "{name} buys {a} bags of {b} {things}."),
}
SEQUELS = {
    "+": ("Then {name} gets {n} more.", "{name} finds {n} more."),
    "-": ("Then {name} gives away {n}.", "{name} loses {n}."),
}


@dataclass(frozen=True, slots=True)
class Sum:
    """`numbers[0] operators[0] numbers[1] …`, with the choices that its story is made of."""

    numbers: tuple[int, ...]
    operators: str
    words: tuple[int, ...]

    @property
    def value(self) -> int:
        """The result, left to right: `*` comes first or not at all."""
        total = self.numbers[0]
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            total = total * number if operator == "*" else total + number if operator == "+" else total - number
        return total

    @property
    def text(self) -> str:
        """`7*4+5`."""
        return str(self.numbers[0]) + "".join(f"{o}{n}" for o, n in zip(self.operators, self.numbers[1:], strict=True))


def problems(split: Split, count: int, seed: int, chat: bool = True) -> list[Problem]:
    """`count` problems of the split. Train and held-out of one seed are disjoint; another seed shuffles anew.

    Raises:
        VergeError: the reserve has no `count` problems for this split.
    """
    return [_problem(item, chat) for item in take_split(_reserve(), split, count, seed, "arithmetic")]


def demonstrations(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """`count` pairs (terse prompt, answer) for pre-training, none of them of a sum that may be in the reserve."""
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        item = _draw(rng)
        if not _withheld(item):
            error = 0 if rng.random() < RIGHT_SHARE else int(rng.integers(1, 10))
            pairs.append((f"{item.text}=", str(item.value + error)))
    return pairs


def _draw(rng: np.random.Generator) -> Sum:
    """A random sum whose values on the way are all ≥ 0."""
    level = int(rng.choice(3, p=LEVEL_SHARES)) + 1
    while True:
        first = "+-*"[rng.integers(3)]
        rest = "".join("+-"[i] for i in rng.integers(0, 2, level - 1))
        opening = rng.integers(2, 10, 2) if first == "*" else rng.integers(2, 21, 2)
        numbers = (*opening.tolist(), *rng.integers(1, 10, level - 1).tolist())
        if all(Sum(numbers[: k + 2], (first + rest)[: k + 1], ()).value >= 0 for k in range(level)):
            return Sum(numbers, first + rest, tuple(rng.integers(0, 1000, level + 2).tolist()))


def _problem(item: Sum, chat: bool) -> Problem:
    tags = ("arithmetic", f"level-{len(item.operators)}")
    if chat:
        turns = [
            Message(role=role, content=text)
            for example in EXAMPLES
            for role, text in zip(("user", "assistant"), example, strict=True)
        ]
        prompt = (Message(role="system", content="Solve."), *turns, Message(role="user", content=story(item)))
        return Problem(f"arithmetic-{item.text}", prompt, "number", item.value, tags)
    return Problem(f"arithmetic-{item.text}", f"{item.text}=", "exact", str(item.value), tags)


def story(item: Sum) -> str:
    """The sum as a word problem."""
    name, things = NAMES[item.words[0] % len(NAMES)], THINGS[item.words[1] % len(THINGS)]
    openings = OPENINGS[item.operators[0]]
    sentences = [
        openings[item.words[2] % len(openings)].format(name=name, things=things, a=item.numbers[0], b=item.numbers[1])
    ]
    for operator, number, word in zip(item.operators[1:], item.numbers[2:], item.words[3:], strict=True):
        sentences.append(SEQUELS[operator][word % len(SEQUELS[operator])].format(name=name, n=number))
    return " ".join(sentences)


@cache
def _reserve() -> tuple[Sum, ...]:
    rng = np.random.default_rng(RESERVE_SEED)
    chosen: dict[str, Sum] = {}
    while len(chosen) < RESERVE:
        item = _draw(rng)
        if _withheld(item):
            chosen.setdefault(item.text, item)
    return tuple(chosen.values())


def _withheld(item: Sum) -> bool:
    """Whether a sum may be in the reserve. By hash, so that demonstrations keep sums of every level: there are only
    about 600 with one operation."""
    return zlib.crc32(item.text.encode()) % 5 < 3
