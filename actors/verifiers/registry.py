"""Verifiers by the name that a problem gives: the built-in ones, or a function of the user's."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import actors.code.verify as code
from actors.verifiers import countdown, exact, gym, math, number
from store.errors import VergeError
from store.wire import Json


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A verifier that takes microseconds and runs in the actor itself.

    `check_answer(answer)` raises ValueError for parameters that it cannot use; `verify(answer, text)` never raises for
    those that passed.
    """

    name: str
    check_answer: Callable[[Json], None]
    verify: Callable[[Json, str], bool]


@dataclass(frozen=True, slots=True)
class Pooled:
    """A verifier of ours that runs in a worker process: `path` is its `module:function`, called as a user's is.

    It also finds `limits` in the problem: wall_s, memory_bytes and sandbox, as the config has them. `trial` is an
    answer and a completion that must be correct for it before a run starts. One that keeps the time limit itself is
    killed only `grace_s` later.
    """

    name: str
    path: str
    check_answer: Callable[[Json], None]
    trial: tuple[Json, str]
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """`function(problem, completion)` of an importable module, run in a worker process.

    `problem` is a dict of id, prompt, verifier, answer and tags; the result is a bool, 0 or 1, or "timeout" where the
    answer took too long.
    """

    module: str
    function: str
    grace_s: ClassVar[float] = 0.0

    @property
    def name(self) -> str:
        """`python:module:function`."""
        return f"python:{self.path}"

    @property
    def path(self) -> str:
        """`module:function`."""
        return f"{self.module}:{self.function}"


Verifier = BuiltIn | Pooled | PythonFunction
BUILT_IN: dict[str, BuiltIn | Pooled] = {
    "exact": BuiltIn("exact", exact.check_answer, exact.verify),
    "number": BuiltIn("number", number.check_answer, number.verify),
    "countdown": BuiltIn("countdown", countdown.check_answer, countdown.verify),
    "math": Pooled("math", "actors.verifiers.math_worker:verify", math.check_answer, math.TRIAL),
    "code": Pooled("code", "actors.code.verify:verify", code.check_answer, code.TRIAL, code.GRACE_S),
}


def answers_at_once(spec: str) -> bool:
    """Whether the verifier of a spec runs in the actor itself, without waiting for anything."""
    return isinstance(BUILT_IN.get(spec), BuiltIn)


def make_verifier(spec: str) -> Verifier:
    """The verifier of a spec: a name of BUILT_IN, `reasoning_gym:dataset`, or `python:module:function`.

    Raises:
        VergeError: there is none of this name; the nearest known one is named. Nothing is imported here.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    kind, *parts = spec.split(":")
    if kind == "python":
        match parts:
            case [module, function] if all(map(str.isidentifier, [*module.split("."), function])):
                return PythonFunction(module, function)
        raise VergeError(f"verifier {spec!r}: write python:module:function, for example python:my_checks:solved")
    if kind == "reasoning_gym" and len(parts) == 1 and parts[0].isidentifier():
        return Pooled(spec, "actors.verifiers.gym_worker:verify", gym.check_answer, gym.TRIAL)
    near = difflib.get_close_matches(spec, BUILT_IN, n=1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"known: {', '.join(BUILT_IN)}, reasoning_gym:dataset, python:module:function"
    )
    raise VergeError(f"unknown verifier {spec!r}; {hint}")
