"""Hostile programs neither leave the sandbox nor cheat, and get a verdict in bounded time."""

import asyncio
import platform
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from actors.code.sandbox import ProgramLimits, Sandbox, SandboxFailed
from actors.config import VerifierConfig
from actors.verifiers import Verifiers
from store.wire import Problem, Verdict
from tests.actors.hostile_programs import CHEATS, DEED, DENIED, ENDLESS

SECRET = "731904"
PATIENT_S, LIMIT_S, LATE_S = 60.0, 1.0, 20.0
Verdicts = dict[str, tuple[Verdict, float]]


def why_not() -> str:
    """Why bubblewrap cannot run here, or nothing."""
    try:
        Sandbox("", None, ProgramLimits(1, 1 << 30), "bubblewrap").close()
    except SandboxFailed as failure:
        return str(failure)
    return ""


pytestmark = pytest.mark.skipif(bool(reason := why_not()), reason=reason)


def judge(programs: dict[str, str], expected: str, limit_s: float, workers: int) -> Verdicts:
    """Verdict of each program, and the seconds that it took, with so many at once."""
    verifiers = Verifiers(VerifierConfig(workers=workers, time_limit_s=limit_s, memory_limit_mib=128))
    problem = Problem("p", "?", "code", {"tests": [{"input": "", "output": expected}]})
    places = asyncio.Semaphore(workers)  # so that waiting for a worker is not counted

    async def one(source: str) -> tuple[Verdict, float]:
        async with places:
            started = time.monotonic()
            _, verdict = await verifiers.verify(problem, source, "stop")
            return verdict, time.monotonic() - started

    async def every() -> Verdicts:
        try:
            return dict(zip(programs, await asyncio.gather(*map(one, programs.values())), strict=True))
        finally:
            verifiers.close()

    return asyncio.run(every())


@pytest.fixture(scope="module")
def denied(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The verdicts of DENIED, each of which looks for a file, a port and a socket that are there."""
    canary = tmp_path_factory.mktemp("host") / "problems.jsonl"
    canary.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0verge-canary")
        unix.listen()
        home = [str(path) for path in Path.home().iterdir() if not Path(sys.base_prefix).is_relative_to(path)]
        names = {"PORT": str(tcp.getsockname()[1]), "CANARY": str(canary), "HOME": repr(home)}
        programs = {}
        for name, deed in DENIED.items():
            for word, value in names.items():
                deed = deed.replace(word, value)
            programs[name] = DEED.format(body=textwrap.indent(deed, "    "))
        verdicts = judge(programs, "denied", PATIENT_S, workers=3)
        for listener in (tcp, unix):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):  # nobody has called
                listener.accept()
    return verdicts


@pytest.fixture(scope="module")
def cheats() -> Verdicts:
    programs = {name: source.replace("SECRET", SECRET) for name, source in CHEATS.items()}
    return judge({**programs, "honest": f"print({SECRET})"}, SECRET, PATIENT_S, workers=3)


@pytest.fixture(scope="module")
def endless() -> Verdicts:
    programs = {name: source.replace("SECRET", SECRET) for name, source in ENDLESS.items()}
    return judge(programs, SECRET, LIMIT_S, workers=len(programs))


@pytest.mark.parametrize("name", DENIED)
def test_the_sandbox_denies_it(denied: Verdicts, name: str) -> None:
    if "syscall(" in DENIED[name] and platform.machine() != "x86_64":
        pytest.skip("the numbers of the system calls are those of x86-64")
    assert denied[name][0] is Verdict.CORRECT  # it printed "denied"


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_is_wrong(cheats: Verdicts, name: str) -> None:
    assert cheats[name][0] is Verdict.WRONG


def test_among_cheats_an_honest_program_is_right(cheats: Verdicts) -> None:
    assert cheats["honest"][0] is Verdict.CORRECT


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_a_timeout_in_bounded_time(endless: Verdicts, name: str) -> None:
    verdict, seconds = endless[name]
    assert verdict is Verdict.TIMEOUT
    assert LIMIT_S <= seconds < LIMIT_S + LATE_S


HANG = "import time\ntime.sleep(3600)"


def test_closing_the_sandbox_kills_every_process_in_it() -> None:
    before = psutil.Process().children()
    with Sandbox(HANG, None, ProgramLimits(0.5, 1 << 30), "bubblewrap") as program:
        with pytest.raises(TimeoutError):
            program.run(b"")
        inside = set(psutil.Process().children(recursive=True)) - set(before)
        assert len(inside) >= 3  # bubblewrap, the driver, the program
    assert not psutil.wait_procs(inside, timeout=30)[1]


def test_the_sandbox_dies_with_the_process_that_made_it() -> None:
    script = (
        "from actors.code.sandbox import *\n"
        f"program = Sandbox({HANG!r}, None, ProgramLimits(60, 1 << 30), 'bubblewrap')\n"
        "print('made', flush=True)\nprogram.run(b'')"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"made\n"
        inside = psutil.Process(parent.pid).children(recursive=True)
        assert inside
        parent.kill()
    assert not psutil.wait_procs(inside, timeout=30)[1]
