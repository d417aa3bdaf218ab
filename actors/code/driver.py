"""What runs inside the sandbox. Standard library only: its source is given to the sandbox's interpreter with -c.

It never knows an expected output. On standard input it gets frames of 4 bytes of length, big-endian, and a body: the
job (JSON), then one test's input at a time. For each it forks, and the child becomes the program; when that has ended
the answer on standard output is a frame too: its exit status, 4 bytes signed (−n: died of signal n), and what it wrote.
The program has neither of the two channels, and whatever it does to this process only ends its own verification.
"""

import atexit
import ctypes
import json
import os
import resource
import signal
import struct
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 1, 22, 2, 38
STACK_BYTES = 64 << 20
OPEN_FILES = 64
THREADS = 64
INT_DIGITS = 50_000
HEADER = (
    "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\n"
    "from heapq import *\nfrom bisect import *\nfrom math import *\nimport collections, itertools, functools, heapq\n"
    "import bisect, math, random, re, string, sys, operator\n"
)
"""What LeetCode's judge has in scope: function tests of LiveCodeBench are written for it."""


class SockFilterProgram(ctypes.Structure):
    _fields_ = (("instructions", ctypes.c_ushort), ("program", ctypes.c_char_p))


def main() -> None:
    """Serve tests until standard input ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    channel_in, channel_out = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    job = json.loads(read_frame(channel_in) or b"null")
    write_frame(channel_out, b"ready")
    while (given := read_frame(channel_in)) is not None:
        reading, writing = os.memfd_create("input"), os.memfd_create("output")
        with open(reading, "wb", closefd=False) as file:
            file.write(given)
        os.lseek(reading, 0, os.SEEK_SET)
        child = os.fork()
        if child == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            become_program(job, given, reading, writing)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        written = os.pread(writing, job["output_bytes"], 0)
        os.close(reading)
        os.close(writing)
        write_frame(channel_out, struct.pack(">i", status) + written)


def give(*descriptors: int) -> None:
    """Make these the file descriptors 0, 1, …; the rest up to 2 are /dev/null, and all others are closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(max(3, len(descriptors))):
        os.dup2(descriptors[number] if number < len(descriptors) else null, number)
    os.closerange(max(3, len(descriptors)), 4096)


def confine(job: dict[str, Any]) -> None:
    """Give this process the program's limits. There is no way back."""
    for what, soft, hard in (
        (resource.RLIMIT_AS, job["memory_bytes"], job["memory_bytes"]),
        (resource.RLIMIT_CPU, job["cpu_s"], job["cpu_s"] + 1),
        (resource.RLIMIT_FSIZE, job["output_bytes"], job["output_bytes"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_NPROC, THREADS, THREADS),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_STACK, STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]),
    ):
        resource.setrlimit(what, (soft, hard))
    sys.set_int_max_str_digits(INT_DIGITS)
    sys.setrecursionlimit(INT_DIGITS)
    if job["filter"]:
        code = bytes.fromhex(job["filter"])
        program = SockFilterProgram(len(code) // 8, code)
        libc = ctypes.CDLL(None)
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            os._exit(1)


def become_program(job: dict[str, Any], given: bytes, reading: int, writing: int) -> None:
    """Run the program, or its function, in this process, and end it with the status that Python would give it.

    The interpreter is not taken down, which would take ten times as long as the rest: what a program can see of that,
    threads that are waited for, exit handlers and files that are flushed, is done here.
    """
    run: Callable[[], None] = (
        (lambda: run_program(job, reading, writing))
        if job["function"] is None
        else (lambda: run_function(job, given, writing))
    )
    parts: list[Callable[[], object]] = [run, join_threads, atexit._run_exitfuncs]
    status = 0
    for part in parts:
        try:
            part()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # whatever the program raises is its own failure
            status = 1
    try:
        sys.stdout.flush()
        sys.modules["__main__"].__dict__.clear()  # files that nobody closed write what they hold
    except BaseException:  # as above; 120 is Python's status for output that cannot be written
        status = status or 120
    os._exit(status & 0xFF)


def join_threads() -> None:
    """Wait for every thread but this one and daemons."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def run_program(job: dict[str, Any], reading: int, writing: int) -> None:
    """The program as __main__, between its standard input and output."""
    give(reading, writing)
    confine(job)
    execute(job["source"])


def run_function(job: dict[str, Any], given: bytes, writing: int) -> None:
    """Call the function with the test's arguments; its result goes out as JSON, what it prints nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    give(null, null, null, writing)
    confine(job)
    names = execute(HEADER + job["source"])
    function: Any = names.get(job["function"])
    if "Solution" in names:
        function = getattr(names["Solution"](), job["function"], function)
    with open(3, "w", encoding="utf-8") as file:
        json.dump(function(*json.loads(given)), file)


def execute(source: str) -> dict[str, Any]:
    """Run source as the module __main__; its names."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, "<program>", "exec"), module.__dict__)  # noqa: S102 — what this file is for
    return module.__dict__


def read_frame(descriptor: int) -> "bytes | None":
    """The next frame's body; None at the end."""
    header = read_bytes(descriptor, 4)
    return None if header is None else read_bytes(descriptor, struct.unpack(">I", header)[0])


def read_bytes(descriptor: int, size: int) -> "bytes | None":
    """Exactly so many bytes; None when it ends before."""
    data = bytearray()
    while len(data) < size:
        part = os.read(descriptor, min(1 << 20, size - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)


def write_frame(descriptor: int, body: bytes) -> None:
    """Write a frame, all of it."""
    data = memoryview(struct.pack(">I", len(body)) + body)
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
