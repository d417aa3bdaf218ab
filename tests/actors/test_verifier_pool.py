"""Verifiers of the user's in worker processes: bounded in time, errors never wrong answers, the pool always full."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from actors.config import VerifierConfig
from actors.verifiers import Verifiers
from actors.verifiers.pool import Limits, Pool
from actors.verifiers.spec import Spec
from store.errors import VergeError
from store.wire import Problem, Verdict

LIMIT_S = 0.6
PATIENT_S = 30.0


@pytest.fixture(autouse=True)
def rough_checks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def in_pool(size: int, body: Callable[[Pool], Coroutine[Any, Any, None]], check_s: float = PATIENT_S) -> None:
    """Run `body` on a pool, and see that it is full afterwards and leaves no process behind."""

    async def run() -> None:
        pool = Pool(size, Limits(check_s, import_s=PATIENT_S, memory_bytes=64 << 20))
        try:
            await body(pool)
            assert pool.free == size
            good = [pool.check("rough_checks:equal", Spec({"answer": "yes"}), "yes") for _ in range(2 * size)]
            assert [outcome.verdict for outcome in await asyncio.gather(*good)] == [Verdict.CORRECT] * 2 * size
            assert pool.free == size
            pids = pool.pids
            assert 1 <= len(pids) <= size
        finally:
            pool.close()
        assert not any(map(is_alive, pids))

    asyncio.run(run())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_a_check_sees_the_problem_and_the_completion() -> None:
    async def body(pool: Pool) -> None:
        for completion, verdict in (("yes", Verdict.CORRECT), ("no", Verdict.WRONG), ("", Verdict.WRONG)):
            assert (await pool.check("rough_checks:equal", Spec({"answer": "yes"}), completion)).verdict is verdict
        assert (await pool.check("rough_checks:one", Spec({}), "")).verdict is Verdict.CORRECT
        assert (await pool.check("rough_checks:too_long", Spec({}), "")).verdict is Verdict.TIMEOUT
        odd = "\ud83d é\x00漢"
        assert (await pool.check("rough_checks:equal", Spec({"answer": odd}), odd)).verdict is Verdict.CORRECT

    in_pool(1, body)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("raises", "KeyError: 'gold'"),
        ("half", "returned 0.5, must be True, False, 1, 0 or timeout"),
        ("nothing", "returned None, must be"),
        ("leaves", "SystemExit: 0"),
        ("vanishes", "the process exited with status 3"),
        ("segfaults", "the process died of SIGSEGV"),
        ("kills_itself", "the process died of SIGKILL"),
        ("eats_memory", r"ran out of memory \(verifier.memory_limit_mib\)"),
        ("forks_and_vanishes", "the process exited with status 4"),
        ("closes_everything", "the process"),
        ("recurses", "RecursionError"),
    ],
)
def test_a_verifier_that_fails_is_an_error_and_never_a_wrong_answer(function: str, why: str) -> None:
    async def body(pool: Pool) -> None:
        outcome = await pool.check(f"rough_checks:{function}", Spec({"answer": "yes"}), "yes")
        assert outcome.verdict is Verdict.ERROR, outcome
        assert re.search(why, outcome.why), outcome.why

    in_pool(1, body)


@pytest.mark.parametrize("function", ["sleeps", "sleeps_deaf", "spins_in_c", "floods_for_ever"])
def test_a_check_that_hangs_is_a_timeout_in_bounded_time(function: str) -> None:
    async def body(pool: Pool) -> None:
        await pool.check("rough_checks:one", Spec({}), "")  # imported: what follows is the check alone
        started = time.monotonic()
        outcome = await pool.check(f"rough_checks:{function}", Spec({}), "")
        assert outcome.verdict is Verdict.TIMEOUT
        assert f"took over {LIMIT_S} s" in outcome.why
        assert LIMIT_S <= time.monotonic() - started < LIMIT_S + 5

    in_pool(1, body, LIMIT_S)


def test_output_goes_nowhere_and_input_is_empty() -> None:
    async def body(pool: Pool) -> None:
        assert (await pool.check("rough_checks:floods", Spec({"answer": "a"}), "a")).verdict is Verdict.CORRECT
        assert (await pool.check("rough_checks:floods", Spec({"answer": "a"}), "b")).verdict is Verdict.WRONG
        assert (await pool.check("rough_checks:reads_input", Spec({}), "")).verdict is Verdict.CORRECT

    in_pool(1, body)


def test_garbage_on_the_channel_is_an_error() -> None:
    async def body(pool: Pool) -> None:
        assert (await pool.check("rough_checks:writes_everywhere", Spec({}), "")).verdict is Verdict.ERROR

    in_pool(1, body)


def test_what_a_hung_check_forked_is_killed_with_it(tmp_path: Path) -> None:
    note = tmp_path / "child"

    async def body(pool: Pool) -> None:
        assert (await pool.check("rough_checks:forks_and_hangs", Spec({}), str(note))).verdict is Verdict.TIMEOUT

    in_pool(1, body, LIMIT_S)
    deadline = time.monotonic() + 5
    while is_alive(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(note.read_text()))


def test_hung_checks_do_not_hold_the_pool() -> None:
    async def body(pool: Pool) -> None:
        hung = [pool.check("rough_checks:sleeps", Spec({}), "") for _ in range(4)]
        good = [pool.check("rough_checks:equal", Spec({"answer": "a"}), "a") for _ in range(4)]
        outcomes = await asyncio.gather(*hung, *good)
        assert [outcome.verdict for outcome in outcomes] == [Verdict.TIMEOUT] * 4 + [Verdict.CORRECT] * 4

    in_pool(2, body, LIMIT_S)


def test_a_cancelled_check_gives_its_place_back() -> None:
    async def body(pool: Pool) -> None:
        task = asyncio.create_task(pool.check("rough_checks:sleeps", Spec({}), ""))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_pool(1, body)


def test_a_worker_is_kept_from_check_to_check() -> None:
    async def body(pool: Pool) -> None:
        says = {(await pool.check("rough_checks:says_its_id", Spec({}), "")).why for _ in range(5)}
        assert len(says) == 1

    in_pool(1, body)


def test_a_verifier_that_changes_its_problem_does_not_change_the_next_checks() -> None:
    async def body(pool: Pool) -> None:
        spec = Spec({"answer": "yes"})
        assert [(await pool.check("rough_checks:spoils", spec, "yes")).verdict for _ in range(3)] == [
            Verdict.CORRECT
        ] * 3

    in_pool(1, body)


def test_a_worker_keeps_what_it_has_room_for_and_is_told_the_rest_again() -> None:
    async def body(pool: Pool) -> None:  # 1 << 26 bytes of memory: 8 MiB of specs
        specs = {name: Spec({"answer": name * (3 << 20)}) for name in "abc"}
        for name in "aabcacb":
            assert (await pool.check("rough_checks:equal", specs[name], name * (3 << 20))).verdict is Verdict.CORRECT

    in_pool(1, body)


def test_a_large_problem_costs_the_event_loop_once_and_not_for_every_completion() -> None:
    answer = {"inputs": ["1 2 3\n" * 400_000], "outputs": ["6\n" * 1_300_000]}
    began = time.thread_time()
    json.dumps(answer).encode()
    one_json_s = time.thread_time() - began
    problem = Problem("large", "?", "python:rough_checks:one", answer)

    async def run() -> float:
        pool = verifiers(workers=2)
        try:
            await pool.verify(Problem("small", "?", "python:rough_checks:one"), "", "stop")
            began = time.thread_time()
            found = await asyncio.gather(*(pool.verify(problem, "x", "stop") for _ in range(32)))
            spent_s = time.thread_time() - began
            assert {verdict for _, verdict in found} == {Verdict.CORRECT}
            return spent_s
        finally:
            pool.close()

    assert asyncio.run(run()) < 4 * one_json_s  # of 32 that it would be


def test_the_event_loop_is_free_while_a_check_runs() -> None:
    async def body(pool: Pool) -> None:
        await pool.check("rough_checks:one", Spec({}), "")
        check = asyncio.create_task(pool.check("rough_checks:sleeps", Spec({}), ""))
        turns = 0
        while not check.done():
            await asyncio.sleep(0.005)
            turns += 1
        assert turns > 20

    in_pool(1, body, LIMIT_S)


def test_workers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from actors.verifiers.pool import *\n"
        "from actors.verifiers.spec import Spec\n"
        "async def main():\n"
        "    pool = Pool(1, Limits(60, 60, 1 << 26))\n"
        "    await pool.check('rough_checks:one', Spec({}), '')\n"
        "    print(*pool.pids, flush=True)\n"
        "    await pool.check('rough_checks:spins_in_c', Spec({}), '')\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{Path(__file__).parent}"},
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert is_alive(worker)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(worker)


def verifiers(**settings: Any) -> Verifiers:
    return Verifiers(VerifierConfig(time_limit_s=LIMIT_S, **settings))


def verify(problem: Problem, text: str, finish_reason: str = "stop", **settings: Any) -> tuple[float, Verdict, str]:
    """One verdict through the whole of Verifiers, and the last error."""
    all_verifiers = verifiers(**settings)

    async def run() -> tuple[float, Verdict]:
        try:
            return await all_verifiers.verify(problem, text, finish_reason)
        finally:
            all_verifiers.close()

    return (*asyncio.run(run()), all_verifiers.last_error)


NUMBER = Problem("n", "1+1", "number", 2)


def test_a_correct_answer_is_worth_one_and_a_wrong_one_nothing() -> None:
    assert verify(NUMBER, "2") == (1.0, Verdict.CORRECT, "")
    assert verify(NUMBER, "3") == (0.0, Verdict.WRONG, "")
    assert verify(NUMBER, "") == (0.0, Verdict.WRONG, "")


def test_a_completion_that_was_cut_off_is_truncated_unless_it_is_to_be_verified() -> None:
    assert verify(NUMBER, "2", "length") == (0.0, Verdict.TRUNCATED, "")
    assert verify(NUMBER, "2", "length", verify_truncated=True) == (1.0, Verdict.CORRECT, "")
    assert verify(NUMBER, "3", "length", verify_truncated=True) == (0.0, Verdict.TRUNCATED, "")


def test_a_problem_of_its_own_time_limit_is_held_to_that() -> None:
    slow = Problem("s", "?", "python:rough_checks:sleeps", time_limit_s=0.3)
    began = time.monotonic()
    assert verify(slow, "") == (0.0, Verdict.TIMEOUT, "")
    assert time.monotonic() - began < PATIENT_S  # the run's


def test_an_error_of_the_verifier_is_told() -> None:
    problem = Problem("p", "x", "python:rough_checks:raises", "yes")
    assert verify(problem, "yes") == (0.0, Verdict.ERROR, "rough_checks:raises: KeyError: 'gold'")
    missing = Problem("p", "x", "python:no_such_module:f")
    assert verify(missing, "yes")[1:] == (
        Verdict.ERROR,
        "module no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
    )
    assert verify(Problem("p", "x", "python:rough_checks:sleeps"), "yes")[:2] == (0.0, Verdict.TIMEOUT)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("python:no_such_module:f", "of problem b: module no_such_module cannot be imported: ModuleNotFoundError"),
        ("python:rough_checks:no_such_function", "module rough_checks has no function no_such_function"),
        ("python:import_exits:f", "importing import_exits:f: the process exited with status 5"),
        ("python:import_hangs:f", "importing import_hangs:f took over 1 s"),
        ("nubmer", "did you mean number"),
    ],
)
def test_what_cannot_be_imported_is_named_before_a_run(spec: str, message: str) -> None:
    good = Problem("a", "x", "number", 1)
    with pytest.raises(VergeError, match=message):
        verifiers(import_limit_s=1 if "hangs" in spec else 20).check([good, Problem("b", "x", spec)])


def test_the_check_before_a_run_passes_what_is_there_even_inside_a_running_loop() -> None:
    async def inside() -> None:
        verifiers().check([NUMBER, Problem("b", "x", "python:rough_checks:equal")])

    verifiers().check([NUMBER])
    asyncio.run(inside())
