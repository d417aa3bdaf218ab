"""Verifiers as users write them on a bad day. Imported by worker processes only."""

import ctypes
import os
import signal
import sys
import time
from typing import Any

Problem = dict[str, Any]


def equal(problem: Problem, completion: str) -> bool:
    return completion == problem["answer"]


def one(problem: Problem, completion: str) -> int:
    return 1


def spoils(problem: Problem, completion: str) -> bool:
    before, problem["answer"] = problem["answer"], "spoilt"
    return completion == before


def too_long(problem: Problem, completion: str) -> str:
    return "timeout"


def half(problem: Problem, completion: str) -> float:
    return 0.5


def nothing(problem: Problem, completion: str) -> None:
    return None


def raises(problem: Problem, completion: str) -> bool:
    raise KeyError("gold")


def leaves(problem: Problem, completion: str) -> bool:
    sys.exit(0)


def vanishes(problem: Problem, completion: str) -> bool:
    os._exit(3)


def segfaults(problem: Problem, completion: str) -> bool:
    return bool(ctypes.string_at(0))


def kills_itself(problem: Problem, completion: str) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def sleeps(problem: Problem, completion: str) -> bool:
    time.sleep(3600)
    return True


def sleeps_deaf(problem: Problem, completion: str) -> bool:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return sleeps(problem, completion)


def spins_in_c(problem: Problem, completion: str) -> bool:
    return sum(range(10**12)) > 0  # holds the interpreter lock: no thread and no signal handler gets in


def floods(problem: Problem, completion: str) -> bool:
    for _ in range(200):
        print("x" * 100_000)
        print("x" * 100_000, file=sys.stderr)
        os.write(1, b"\x00\x00\x00\x02{}" * 1000)
    return completion == problem["answer"]


def floods_for_ever(problem: Problem, completion: str) -> bool:
    while True:
        os.write(1, b"x" * 65536)


def eats_memory(problem: Problem, completion: str) -> bool:
    return len([bytearray(16 << 20) for _ in range(1 << 20)]) > 0


def reads_input(problem: Problem, completion: str) -> bool:
    return sys.stdin.read() == ""


def says_its_id(problem: Problem, completion: str) -> bool:
    raise RuntimeError(f"pid {os.getpid()}")


def forks_and_hangs(problem: Problem, completion: str) -> bool:
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    with open(completion, "w") as file:
        file.write(str(child))
    return sleeps(problem, completion)


def forks_and_vanishes(problem: Problem, completion: str) -> bool:
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(4)


def writes_everywhere(problem: Problem, completion: str) -> bool:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    return True


def closes_everything(problem: Problem, completion: str) -> bool:
    os.closerange(0, 64)
    return True


def recurses(problem: Problem, completion: str) -> bool:
    return recurses(problem, completion)
