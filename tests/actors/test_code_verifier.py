"""The verifier `code`: shapes of tests, what counts as the right output, and programs run for real."""

import asyncio
import json
from typing import Any

import psutil
import pytest

from actors.code import sandbox
from actors.code.cases import read_cases, same_text, same_value
from actors.code.verify import program_of
from actors.config import VerifierConfig
from actors.verifiers import Verifiers
from store.errors import VergeError
from store.wire import Problem, Verdict
from tests.actors.test_hostile_programs import why_not

SUM = {"tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "-1 1\n", "output": "0\n"}]}
LIVECODEBENCH = {
    "tests": [{"input": '[1, 2]\n"a"', "output": '["a1", "a2"]', "testtype": "functional"}],
    "function": "mark",
}
TACO = {"inputs": [[[3, 1, 2]], [[]]], "outputs": [[[1, 2, 3]], [[]]], "fn_name": "sort"}

sandboxed = pytest.mark.skipif(bool(reason := why_not()), reason=reason)


def verdicts(answer: Any, *completions: str, **settings: Any) -> list[Verdict]:
    """Of each completion, by one pool of workers."""
    verifiers = Verifiers(VerifierConfig(**{"time_limit_s": 30.0, **settings}))
    problem = Problem("p", "?", "code", answer)

    async def run() -> list[Verdict]:
        try:
            return [verdict for _, verdict in [await verifiers.verify(problem, text, "stop") for text in completions]]
        finally:
            verifiers.close()

    return asyncio.run(run())


@sandboxed
def test_a_program_is_right_when_every_test_passes() -> None:
    good = "a, b = map(int, input().split())\nprint(a + b)"
    fenced = f"First I add them.\n```python\nprint(0)\n```\nNo:\n```python\n{good}\n```\nDone."
    only_first = "print(3)"
    assert verdicts(SUM, good, fenced, only_first, "", "I cannot.") == [
        Verdict.CORRECT, Verdict.CORRECT, Verdict.WRONG, Verdict.WRONG, Verdict.WRONG,
    ]  # fmt: skip


@sandboxed
def test_programs_read_and_write_as_they_do_outside() -> None:
    ways = [
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nsys.stdout.write(str(sum(int(n) for line in sys.stdin for n in line.split())))",
        "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.readline().split())))\nsys.exit()",
        "if __name__ == '__main__':\n    print(sum(map(int, open(0).read().split())))",
        "import threading, sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "def main():\n    print(sum(map(int, input().split())))\nthreading.Thread(target=main).start()",
        "import asyncio\nasync def main():\n    print(sum(map(int, input().split())))\nasyncio.run(main())",
        "f = open('/tmp/x', 'w+')\nf.write(input())\nf.seek(0)\nprint(sum(map(int, f.read().split())))",
        "import atexit\nn = sum(map(int, input().split()))\natexit.register(lambda: print(n))",
        "file = open(1, 'w', closefd=False)\nfile.write(str(sum(map(int, input().split()))))",
        "import io, sys\nsys.stdout = io.TextIOWrapper(io.FileIO(1, 'w', False))\n"
        "print(sum(map(int, input().split())))",
        "import threading\nthreading.Thread(target=lambda: print(sum(map(int, input().split())))).start()",
        "def depth(n): return n and 1 + depth(n - 1)\nassert depth(20_000) == 20_000\n"
        "print(sum(map(int, input().split())))",
    ]
    assert verdicts(SUM, *ways) == [Verdict.CORRECT] * len(ways)


@sandboxed
def test_functions_are_called_in_the_shapes_of_livecodebench_and_taco() -> None:
    mark = "class Solution:\n    def mark(self, n: List[int], s: str):\n        return [s + str(i) for i in n]"
    assert verdicts(LIVECODEBENCH, mark, mark.replace("str(i)", "'1'"), "def mark(n, s): return ('a1', 'a2')") == [
        Verdict.CORRECT, Verdict.WRONG, Verdict.CORRECT,
    ]  # fmt: skip
    sort = "def sort(items):\n    print('a test', len(items))\n    return sorted(items)"
    assert verdicts(json.dumps(TACO), sort, "def sort(items): return items", "def other(items): pass") == [
        Verdict.CORRECT, Verdict.WRONG, Verdict.WRONG,
    ]  # fmt: skip


@sandboxed
def test_a_slow_program_is_a_timeout_and_leaves_its_worker_alive() -> None:
    found = verdicts(SUM, "while True: pass", "print(sum(map(int, input().split())))", workers=1, time_limit_s=2.0)
    assert found == [Verdict.TIMEOUT, Verdict.CORRECT]


@sandboxed
def test_a_problems_own_time_limit_is_that_of_its_programs() -> None:
    verifiers = Verifiers(VerifierConfig(time_limit_s=600.0))
    problem = Problem("p", "?", "code", SUM, time_limit_s=0.5)
    try:
        assert asyncio.run(verifiers.verify(problem, "while True: pass", "stop")) == (0.0, Verdict.TIMEOUT)
    finally:
        verifiers.close()


def test_without_bubblewrap_nothing_runs_unless_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("p7", "?", "code", SUM)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(VergeError, match=r'problem p7: .*bubblewrap is not installed.*verifier.sandbox = "none"'):
        Verifiers(VerifierConfig()).check([problem])
    assert verdicts(SUM, "print(sum(map(int, input().split())))") == [Verdict.ERROR]
    Verifiers(VerifierConfig(sandbox="none")).check([problem])
    honest, flood = "print(sum(map(int, input().split())))", "while True: print('x' * 65536)"
    assert verdicts(SUM, honest, flood, "b'x' * (8 << 30)", sandbox="none") == [
        Verdict.CORRECT, Verdict.WRONG, Verdict.WRONG,
    ]  # fmt: skip


def test_what_hangs_without_a_sandbox_is_killed_too() -> None:
    hang, before = "import time\ntime.sleep(3600)", psutil.Process().children()
    with sandbox.Sandbox(hang, None, sandbox.ProgramLimits(0.5, 1 << 30), "none") as program:
        with pytest.raises(TimeoutError):
            program.run(b"")
        inside = set(psutil.Process().children(recursive=True)) - set(before)
        assert len(inside) >= 2  # the driver, the program
    assert not psutil.wait_procs(inside, timeout=30)[1]


@sandboxed
def test_the_smallest_memory_limit_holds_an_honest_program() -> None:
    assert verdicts(SUM, "print(sum(map(int, input().split())))", "b'x' * (99 << 20)", memory_limit_mib=16) == [
        Verdict.CORRECT, Verdict.WRONG,
    ]  # fmt: skip


def test_a_sandbox_that_cannot_be_made_is_the_verifiers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: "/bin/false")
    with pytest.raises(sandbox.SandboxFailed, match="cannot make a sandbox here"):
        sandbox.Sandbox("", None, sandbox.ProgramLimits(1, 1 << 30), "bubblewrap")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "answer has no tests"), ({"tests": []}, "answer has no tests"), ("print", "a text that is not JSON"),
        ({"tests": [{"input": "1"}]}, "test 1 of the answer is not"),
        ({"tests": [{"input": "1", "output": "1"}, {"input": [1], "output": "1"}]}, "the input of test 2 is '\\[1\\]'"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs but 1 outputs"),
        ({"function": "a b", "tests": [{"input": [], "output": 1}]}, "function is 'a b'"),
        ({"function": "f", "tests": [{"input": "x", "output": "1"}]}, "not one JSON value a line"),
        ({"function": "f", "tests": [{"input": 1, "output": 1}]}, "must be a list of arguments"),
    ],
)  # fmt: skip
def test_an_answer_without_usable_tests_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_cases(answer)


def test_lists_of_lines_are_texts() -> None:
    (case,) = read_cases({"inputs": [["3", "1 2"]], "outputs": [["1", "2"]]}).cases
    assert (case.given, case.expected) == (b"3\n1 2", "1\n2")


@pytest.mark.parametrize(
    ("expected", "output"),
    [("3\n", "3"), ("a b\nc\n", "a  b \nc\n\n"), ("0.5", "0.50000001"), ("1e6", "1000000.0"), ("3", "3.0"), ("", "\n")],
)
def test_space_and_the_last_digits_do_not_count(expected: str, output: str) -> None:
    assert same_text(expected, output)


@pytest.mark.parametrize(
    ("expected", "output"),
    [("3", "4"), ("3", "3 3"), ("a\nb", "a b"), ("a", "A"), ("0.5", "0.5001"), ("3", "3.0001"), ("3", "nan"), ("1", ""),
     ("1" * 30, "1" * 29 + "2"), ("0.5", "inf"), ("0.1", "x")],
)  # fmt: skip
def test_everything_else_does(expected: str, output: str) -> None:
    assert not same_text(expected, output)


def test_values_are_compared_all_the_way_down() -> None:
    assert same_value([1, [2.0, "x"], {"a": None}], [1, [2.0000001, "x"], {"a": None}])
    assert not same_value([1, 2], [1, 2, 3])
    assert not same_value({"a": 1}, {"b": 1})
    assert not same_value([[1]], [1])
    assert not same_value(0.5, 10**400)


@pytest.mark.parametrize(
    ("completion", "program"),
    [("print(1)", "print(1)"), ("```\nx\n```", "x\n"), ("```py\nx\n```\n```python\ny\n```", "y\n"),
     ("```python\nx", "```python\nx"), ("a\n  ```python\n  x\n  ```\n", "  x\n")],
)  # fmt: skip
def test_the_program_is_the_last_fenced_block_or_all_there_is(completion: str, program: str) -> None:
    assert program_of(completion) == program
