"""Problems that the reasoning-gym package generates: `reasoning_gym:<dataset>`."""

import difflib
from collections.abc import Iterator
from typing import Any

import numpy as np

from actors.families.split import Split
from actors.verifiers.gym import pack
from store.errors import VergeError
from store.wire import Message, Problem

INSTRUCTION = "Think first. Then give the final answer alone between <answer> and </answer>."
TRIES = 4
"""Entries generated for each problem that is asked for, before a dataset counts as too small."""


def problems(name: str, split: Split, count: int, seed: int, chat: bool, besides: frozenset[str]) -> list[Problem]:
    """So many problems of a dataset with its own settings; the same arguments give the same problems.

    `besides`: questions that must not be among them, those of the other part of the split.

    Raises:
        VergeError: the package is not installed, there is no such dataset, or it has fewer different problems.
    """
    made: list[Problem] = []
    seen = set(besides)
    for entry in _entries(name, split, count * TRIES, seed):
        if len(made) == count:
            break
        if entry["question"] not in seen:
            seen.add(entry["question"])
            made.append(_problem(name, f"{name}-{split}-{seed}-{len(made)}", entry, chat))
    if len(made) < count:
        raise VergeError(
            f"reasoning_gym:{name} has only {len(made)} different {split} problems among {count * TRIES}, but {count} "
            f"are asked for; set problems.{split}_count to at most {len(made)}"
        )
    return made


def questions(made: list[Problem]) -> frozenset[str]:
    """What these problems ask."""
    return frozenset(problem.answer["question"] for problem in made)


def _entries(name: str, split: Split, count: int, seed: int) -> Iterator[dict[str, Any]]:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise VergeError(f"problems.source reasoning_gym:{name}: {error}; pip install 'verge-rl[verify]'") from None
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see reasoning_gym.factory.DATASETS"
        raise VergeError(f"reasoning-gym has no dataset {name!r}; {hint}")
    if count == 0:
        return iter(())
    # Entry i is seeded with seed + i: small seeds side by side would share their entries.
    start = int(np.random.SeedSequence([seed, split == "held_out"]).generate_state(1)[0])
    dataset = reasoning_gym.create_dataset(name, size=count, seed=start)
    return (dataset[i] for i in range(count))


def _problem(name: str, problem_id: str, entry: dict[str, Any], chat: bool) -> Problem:
    text = f"{entry['question'].strip()}\n\n{INSTRUCTION}"
    prompt = (Message(role="user", content=text),) if chat else text + "\n"
    try:
        answer = pack({key: entry[key] for key in ("question", "answer", "metadata")})
    except TypeError as error:
        raise VergeError(f"problems.source reasoning_gym:{name} cannot be stored: {error}") from None
    return Problem(problem_id, prompt, f"reasoning_gym:{name}", answer, (name,))
