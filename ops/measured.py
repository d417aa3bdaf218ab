"""What a piece of work took: time, CPU, and how late it made its event loop."""

import asyncio
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAG_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: completion `tokens` in `seconds`, for which this process computed `cpu_s`, and `all_cpu_s` with
    those that it has started, the engine's and the server's; and of each timer of 10 ms how late it was, and for how
    much of that the event loop itself computed, both in seconds."""

    tokens: int
    seconds: float
    cpu_s: float
    all_cpu_s: float
    lags: tuple[tuple[float, float], ...]

    @property
    def shown(self) -> dict[str, float]:
        """Rates."""
        return {
            "tokens_per_s": self.tokens / self.seconds,
            "cpu_us_per_token": 1e6 * self.cpu_s / self.tokens,
            "all_cpu_us_per_token": 1e6 * self.all_cpu_s / self.tokens,
        }


async def measured(work: Coroutine[Any, Any, tuple[int, float]]) -> Measured:
    """`work` returns its tokens, and when it was done, in Unix seconds: the store has this machine's clock."""
    lags: list[tuple[float, float]] = []
    watch = asyncio.create_task(_watch_lag(lags))
    began, cpu, all_cpu = time.time(), time.process_time(), _cpu_s(os.getpid())
    try:
        tokens, ended = await work
        cpu, all_cpu = time.process_time() - cpu, _cpu_s(os.getpid()) - all_cpu
        return Measured(tokens, ended - began, cpu, all_cpu, tuple(lags))
    finally:
        watch.cancel()


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it has started."""
    process = Path("/proc", str(pid))
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        children = [child for task in process.glob("task/*/children") for child in task.read_text().split()]
    except FileNotFoundError:  # it has ended
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_s(int(child)) for child in children)


async def _watch_lag(lags: list[tuple[float, float]]) -> None:
    """Note of a timer every 10 ms how late it is; those that a loop that was held up could not set are late, too."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due, cpu = max(due, loop.time()), time.thread_time()
        await asyncio.sleep(due - loop.time())
        now, computed = loop.time(), time.thread_time() - cpu
        while due <= now:
            lags.append((now - due, min(now - due, computed)))
            due += LAG_EVERY_S
