"""`code`: the completion's program passes every test of the problem."""

import re
from typing import Any, Literal

from actors.code.cases import read_cases
from actors.code.sandbox import START_S, ProgramEnded, ProgramLimits, Sandbox
from store.wire import Json

GRACE_S = START_S + 2
"""Seconds beyond the program's own limit after which the check itself is killed."""
TRIAL = ({"tests": [{"input": "7\n", "output": "7\n"}]}, "print(input())")
"""An answer, and a completion that is correct wherever the sandbox works."""
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def check_answer(answer: Json) -> None:
    """ValueError unless the answer holds tests (`actors.code.cases`)."""
    read_cases(answer)


def verify(problem: dict[str, Any], completion: str) -> bool | Literal["timeout"]:
    """Run the program on one test after another until one fails; `timeout` when `limits.wall_s` is over before.

    `problem` holds `answer` and `limits`: wall_s, memory_bytes, sandbox. A program that raises, exits with another
    status than 0, writes more than it may, or breaks its sandbox from inside has failed.

    Raises:
        SandboxFailed: the sandbox cannot be made.
    """
    tests, limits = read_cases(problem["answer"]), problem["limits"]
    bounds = ProgramLimits(limits["wall_s"], limits["memory_bytes"])
    try:
        with Sandbox(program_of(completion), tests.function, bounds, limits["sandbox"]) as program:
            for case in tests.cases:
                status, output = program.run(case.given)
                if status != 0 or not tests.passes(case, output):
                    return False
    except TimeoutError:
        return "timeout"
    except ProgramEnded:
        return False
    return True


def program_of(completion: str) -> str:
    """The last fenced block of a completion, or all of it where there is none."""
    blocks = _FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion
