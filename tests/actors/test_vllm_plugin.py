"""No engine outlives its actor."""

import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from actors.vllm_plugin import die_with_parent

ACTOR = """
import multiprocessing, sys, time
from tests.actors.test_vllm_plugin import engine
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=engine)
    process.start()
    time.sleep(60)
"""


def engine() -> None:
    """What vLLM does in its engine's process: load the plugins, then work."""
    (plugin,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="verge")
    plugin.load()()
    print(os.getpid(), flush=True)
    time.sleep(60)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_engine_dies_with_its_actor_even_of_a_kill() -> None:
    with subprocess.Popen([sys.executable, "-c", ACTOR], stdout=subprocess.PIPE, text=True) as actor:
        assert actor.stdout is not None
        pid = int(actor.stdout.readline())
        assert alive(pid)
        actor.send_signal(signal.SIGKILL)
        actor.wait()
        deadline = time.monotonic() + 10
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(pid)


def test_a_process_that_nobody_started_so_is_left_alone() -> None:
    die_with_parent()
