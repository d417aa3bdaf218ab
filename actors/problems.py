"""The problems of a run: generated or from files, split into train and held-out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from actors.chosen_rows import read_problems
from actors.config import ProblemsConfig
from actors.families import reasoning_gym
from actors.families.registry import find_family
from actors.families.split import HELD_OUT_SHARE, Split
from store.errors import VergeError
from store.wire import Problem

BUILT_IN = "builtin:"
REASONING_GYM = "reasoning_gym:"
GENERATED_TRAIN = 512
GENERATED_HELD_OUT = 256


class Problems(Protocol):
    """Problems that can be counted, and gone through more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Problem]: ...


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems with unique ids; none is in both parts. Those of files are read anew by whoever goes through them."""

    train: Problems
    held_out: Problems


def load_problems(config: ProblemsConfig) -> ProblemSet:
    """The train and held-out problems that a config names. The same config gives the same split, in the same order.

    Raises:
        VergeError: no such source, a malformed line (with its number), duplicate ids, an unknown verifier, or fewer
            problems than are asked for.
    """
    if config.source.startswith(BUILT_IN):
        return _built_in(config)
    if config.source.startswith(REASONING_GYM):
        return _reasoning_gym(config)
    problems = read_problems(config)
    held_out = config.held_out_count
    if held_out is None:
        held_out = round(len(problems) * config.held_out_share)
    train = len(problems) - held_out if config.train_count is None else config.train_count
    if train < 1 or train + held_out > len(problems):
        raise VergeError(
            f"{config.source} has {len(problems)} problems, but {train} to train on and {held_out} held out are asked "
            f"for ({train} + {held_out} = {train + held_out}); train on at least 1 and set problems.train_count and "
            "problems.held_out_count to at most what there is"
        )
    order = np.random.default_rng(config.seed).permutation(len(problems))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return ProblemSet(problems.among(place < train), problems.among(place >= len(order) - held_out))


def _built_in(config: ProblemsConfig) -> ProblemSet:
    family = find_family(config.source.removeprefix(BUILT_IN))
    chat = family.chat if config.form == "auto" else config.form == "chat"
    train, held_out = _generated_counts(config)

    def take(split: Split, count: int) -> tuple[Problem, ...]:
        if count == 0:
            return ()
        if not config.tags:
            return tuple(family.problems(split, count, config.seed, chat))
        room = family.reserve * (HELD_OUT_SHARE if split == "held_out" else 1 - HELD_OUT_SHARE)
        tagged = _tagged(family.problems(split, int(room), config.seed, chat), config.tags)
        if len(tagged) < count:
            raise VergeError(
                f"{count} {split} problems of {config.source} with the tags {', '.join(config.tags)} asked for, there "
                f"are {len(tagged)}"
            )
        return tuple(tagged[:count])

    return ProblemSet(take("train", train), take("held_out", held_out))


def _reasoning_gym(config: ProblemsConfig) -> ProblemSet:
    name, chat = config.source.removeprefix(REASONING_GYM), config.form != "plain"
    if config.tags:
        raise VergeError(f"problems.tags cannot choose among problems of {config.source}: remove it")
    train, held_out = _generated_counts(config)
    kept = reasoning_gym.problems(name, "held_out", held_out, config.seed, chat, frozenset())
    made = reasoning_gym.problems(name, "train", train, config.seed, chat, reasoning_gym.questions(kept))
    return ProblemSet(tuple(made), tuple(kept))


def _generated_counts(config: ProblemsConfig) -> tuple[int, int]:
    train = GENERATED_TRAIN if config.train_count is None else config.train_count
    return train, GENERATED_HELD_OUT if config.held_out_count is None else config.held_out_count


def _tagged(problems: Sequence[Problem], tags: Sequence[str]) -> list[Problem]:
    """The problems that have all of these tags."""
    return [problem for problem in problems if set(tags) <= set(problem.tags)]
