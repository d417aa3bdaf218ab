"""A process that runs a program on inputs, apart from everything: bubblewrap, seccomp, rlimits."""

import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from actors.code.seccomp import NoSeccomp, driver_filter, program_filter

DRIVER = Path(__file__).with_name("driver.py")
OUTPUT_BYTES = 8 << 20
"""Of one test's output, and of any file that the program writes. A longer one is the program's failure."""
SCRATCH_BYTES = 64 << 20
INTERPRETER_BYTES = 64 << 20
"""Address space that the interpreter itself needs, which the program's limit does not count."""
START_S = 10.0
"""Seconds for the sandbox to be ready; a machine that is slower than that is the verifier's fault."""
NOBODY = 65534
REFUSAL = (
    'generated code does not run without it. Write verifier.sandbox = "none" to run it with nothing but rlimits, '
    "which is for code that you trust"
)


class SandboxFailed(Exception):
    """The sandbox could not be made: the verifier's fault, not the program's. The message says what to do."""


class ProgramEnded(Exception):
    """The program took its whole sandbox down: nothing more can be asked of it."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What a program may take over all its tests (`wall_s`), and at any time (`memory_bytes`, of address space)."""

    wall_s: float
    memory_bytes: int


class Sandbox:
    """A program in its sandbox, asked one input after another.

        with Sandbox(source, None, ProgramLimits(5.0, 1 << 30), "bubblewrap") as program:
            status, output = program.run(b"1 2\n")

    With `function`, an input is a JSON list of arguments, and the output is the JSON of what that function, or that
    method of the class `Solution`, returns. Leaving the block kills every process in the sandbox.

    Isolation: no network, name spaces of its own for pids, users, mounts, ipc, uts and cgroups, a root that holds the
    interpreter and system libraries read-only and nothing else (no home, no /proc, no /sys), 64 MiB of /tmp, no
    capabilities, the system calls of `seccomp`. One process, so that its rlimits bound all; up to 64 threads, or as
    many as its memory holds for a root whose interpreter no other user can read.

    With isolation "none" there are the rlimits alone, and a program may leave processes behind.
    """

    def __init__(
        self, source: str, function: str | None, limits: ProgramLimits, isolation: Literal["bubblewrap", "none"]
    ) -> None:
        self._limits = limits
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the sandbox
        isolated = isolation == "bubblewrap"
        try:
            self._process = _start(self._stderr, isolated)
            self._send(json.dumps(_job(source, function, limits, isolated)).encode())
            if self._receive(time.monotonic() + START_S, 16) != b"ready":
                raise ProgramEnded
        except NoSeccomp as failure:
            raise SandboxFailed(f"{failure}; {REFUSAL}") from None
        except (ProgramEnded, TimeoutError):
            self.close()
            raise SandboxFailed(self._why_it_failed(isolated)) from None
        self._deadline = time.monotonic() + limits.wall_s

    def run(self, given: bytes) -> tuple[int, bytes]:
        """The program's exit status on an input (−n: died of signal n), and what it wrote, up to OUTPUT_BYTES.

        Raises:
            TimeoutError: the wall-clock limit is over.
            ProgramEnded: it has ended its own sandbox.
        """
        self._send(given)
        reply = self._receive(self._deadline, 4 + OUTPUT_BYTES)
        return struct.unpack(">i", reply[:4])[0], reply[4:]

    def close(self) -> None:
        """Kill every process in the sandbox: with bubblewrap's first process the whole pid name space ends."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._stderr.close()

    def _send(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(struct.pack(">I", len(body)) + body)
        except OSError:
            raise ProgramEnded from None

    def _receive(self, deadline: float, limit: int) -> bytes:
        size = struct.unpack(">I", self._read(4, deadline))[0]
        if size > limit:
            raise ProgramEnded
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        stream, data = self._process.stdout.fileno(), bytearray()
        while len(data) < size:
            if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(stream, size - len(data))
            if not part:
                raise ProgramEnded
            data += part
        return bytes(data)

    def _why_it_failed(self, isolated: bool) -> str:
        said = os.pread(self._stderr.fileno(), 4096, 0).decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"not ready after {START_S:g} s"
        self._stderr.close()
        return f"bubblewrap cannot make a sandbox here ({why}); {REFUSAL}" if isolated else f"python failed: {why}"


def _job(source: str, function: str | None, limits: ProgramLimits, isolated: bool) -> dict[str, object]:
    return {
        "source": source,
        "function": function,
        "memory_bytes": limits.memory_bytes + INTERPRETER_BYTES,
        "cpu_s": int(limits.wall_s) + 1,
        "output_bytes": OUTPUT_BYTES,
        "filter": program_filter().hex() if isolated else "",
    }


def _start(stderr: IO[bytes], isolated: bool) -> "subprocess.Popen[bytes]":
    """The driver's process, in bubblewrap or bare.

    As root it becomes nobody first, where the interpreter is in reach of nobody: the kernel counts no user's processes
    who is root outside, and whoever gets out is nobody too.
    """
    # -I and -S: neither the environment, nor the current folder, nor site-packages.
    python = [os.path.realpath(sys.executable), "-I", "-S", "-X", "utf8", "-c", DRIVER.read_text(encoding="utf-8")]
    account = NOBODY if os.getuid() == 0 and _in_reach_of_all(Path(sys.base_prefix)) else None
    with tempfile.TemporaryFile() as rules:
        if isolated:
            rules.write(driver_filter())
            rules.seek(0)
            python = [*_bubblewrap(rules.fileno()), "--", *python]
        return subprocess.Popen(
            python,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=[rules.fileno()] if isolated else [],
            env={},
            cwd="/",
            user=account,
            group=account,
            extra_groups=None if account is None else [],
        )


def _bubblewrap(rules: int) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxFailed(f"bubblewrap is not installed (apt-get install bubblewrap); {REFUSAL}")
    command = [program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"]
    command += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"]
    command += ["--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"]  # noqa: S108 — the sandbox's own
    for folder in ("/usr", "/lib", "/lib32", "/lib64", "/bin"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind", sys.base_prefix, sys.base_prefix]
    for device in ("null", "zero", "random", "urandom"):
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(rules)]  # noqa: S108


def _in_reach_of_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
