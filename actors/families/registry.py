"""The families by name, and the valid answers of a problem where they can be enumerated."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.families import arithmetic, countdown
from actors.families.split import Split
from store.errors import VergeError
from store.wire import Problem


@dataclass(frozen=True, slots=True)
class Family:
    """A generator of problems.

    `problems(split, count, seed, chat)` and `demonstrations(rng, count)` are the modules' own; `alphabet` is every
    character of a plain prompt or an answer; `chat` is the form that is meant unless the user says otherwise;
    `reserve` is how many problems there are, train and held-out together.
    """

    name: str
    alphabet: str
    chat: bool
    reserve: int
    problems: Callable[[Split, int, int, bool], list[Problem]]
    demonstrations: Callable[[np.random.Generator, int], list[tuple[str, str]]]


FAMILIES = {
    "arithmetic": Family(
        "arithmetic", arithmetic.ALPHABET, True, arithmetic.RESERVE, arithmetic.problems, arithmetic.demonstrations
    ),
    "countdown": Family(
        "countdown", countdown.ALPHABET, False, countdown.RESERVE, countdown.problems, countdown.demonstrations
    ),
}


def find_family(name: str) -> Family:
    """The family of this name; VergeError with the nearest known one for any other."""
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name, FAMILIES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FAMILIES)}"
    raise VergeError(f"no built-in problem family {name!r}; {hint}")


def valid_answers(problem: Problem) -> tuple[str, ...]:
    """Every text that the problem's verifier accepts, up to surrounding white space.

    Raises:
        VergeError: its verifier accepts more than can be listed.
    """
    if problem.verifier == "countdown":
        return countdown.answers(problem.answer["digits"], problem.answer["target"])
    if problem.verifier == "exact":
        return (str(problem.answer).strip(),)
    raise VergeError(
        f"problem {problem.id} has the verifier {problem.verifier}, whose valid answers cannot be enumerated; "
        'exact solve rates are for countdown and exact, so set evaluation.method = "sampled"'
    )
