"""`verge bench store`: commits against raw SET on the same server, drawing, the mirror, and queries while it works."""

import asyncio
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np

from gating import draw
from ops import store_load
from ops.figures import at_most, check
from ops.store_load import TICKETS, Load, fill, payload_group
from store.client import Store
from store.mirror import Mirror
from store.queries import Gate, list_problems
from store.server import EmbeddedServer
from store.wire import Problem

PRODUCERS = (1, 4, 16)
PAYLOADS = (4096, 65536)
SECONDS = 1.5
"""Length of one measurement of commits or of raw SETs."""
POOLS = (10**3, 10**4, 10**5, 10**6)
PROBLEMS = 10**5
"""Problems, and groups beside them, of which the mirror is loaded cold and that a query looks at."""
BATCH = 64


def run(
    pools: Sequence[int] = POOLS,
    problems: int = PROBLEMS,
    seconds: float = SECONDS,
    producers: Sequence[int] = PRODUCERS,
    payloads: Sequence[int] = PAYLOADS,
) -> dict[str, Any]:
    """Measure a fresh embedded server (AOF `everysec`) from other processes of this machine.

    The producers share the machine's cores with the server: the figures are the machine's as much as the code's.

    Returns:
        `checks`: commit_over_raw_set, the worst of the grid; commit_p99_ms, the worst with one producer;
        draw_fetch_64_of_<n>_ms for the largest pool; mirror_cold_s; mirror_per_100_groups_ms; query_<n>_s;
        commit_slowdown_under_query, with one question a second of a mirror that is kept, as the live page asks. Beside
        them the same with each question from cold; every cell of the grid; and draw + fetch by pool size.
    """
    with tempfile.TemporaryDirectory(prefix="verge-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        load = Load(server.info.port, server.password, server.pid)
        grid = [_cell(load, count, size, seconds) for size in payloads for count in producers]
        reading = asyncio.run(_reading(load, pools, problems))
        slowdown, cold_slowdown = _slowdowns_under_query(load, seconds, problems)
    worst = min(cell["ratio"] for cell in grid)
    p99 = max(cell["commit_p99_ms"] for cell in grid if cell["producers"] == 1)
    fetch = reading["draw_fetch"][-1]
    return {
        "checks": [
            check("commit_over_raw_set", worst, 0.6, worst >= 0.6),
            at_most("commit_p99_ms", p99, 20.0),
            at_most(f"draw_fetch_64_of_1e{_power(fetch['groups'])}_ms", fetch["ms"], 50.0),
            at_most("mirror_cold_s", reading["cold_s"], 3.0),
            at_most("mirror_per_100_groups_ms", reading["per_100_ms"], 1.0),
            at_most(f"query_1e{_power(problems)}_s", reading["query_s"], 1.0),
            at_most("commit_slowdown_under_query", slowdown, 0.1),
        ],
        "commit_slowdown_under_cold_query": cold_slowdown,
        "grid": grid,
        **reading,
    }


def _power(number: int) -> int:
    return round(math.log10(number))


def _cell(load: Load, producers: int, payload_bytes: int, seconds: float) -> dict[str, Any]:
    """Commits and raw SETs per second of one number of producers and one payload size.

    The server's microseconds per request do not depend on who else uses the cores: their ratio is what commits could
    reach if producers cost nothing.
    """
    payload = _payload_bytes(payload_bytes)
    raw, _, raw_cpu = _together(load, "", "raw_producer", producers, payload, seconds)
    commits, latencies, cpu = _commits(load, producers, payload_bytes, seconds)
    return {
        "producers": producers,
        "payload_bytes": payload,
        "raw_sets_per_s": raw,
        "commits_per_s": commits,
        "ratio": commits / raw,
        "commit_p50_ms": 1e3 * float(np.quantile(latencies, 0.5)),
        "commit_p99_ms": 1e3 * float(np.quantile(latencies, 0.99)),
        "server_cpu_share": cpu,
        "server_us_per_commit": 1e6 * cpu / commits,
        "server_us_per_raw_set": 1e6 * raw_cpu / raw,
    }


def _payload_bytes(payload_bytes: int) -> int:
    from store.wire import Ticket, encode_group

    return len(encode_group(payload_group(Ticket("1-1", "problem 0"), payload_bytes)))


def _commits(
    load: Load, producers: int, payload_bytes: int, seconds: float, problems: int = 1000, beside: str = ""
) -> tuple[float, np.ndarray[Any, Any], float]:
    """Commits per second of a run of so many problems, with a `beside` role working on it at the same time."""
    run = f"commits-{problems}"
    asyncio.run(_prepare(load, run, producers * TICKETS, problems))
    other = _Role(load, run, beside, payload_bytes, 30.0) if beside else None
    if other:
        other.start()
    try:
        return _together(load, run, "commit_producer", producers, payload_bytes, seconds)
    finally:
        if other:
            other.process.kill()
        asyncio.run(_clear(load, run))


async def _prepare(load: Load, run: str, tickets: int, problems: int) -> None:
    store = await load.connect(run)
    ids = [f"problem {i}" for i in range(problems)]
    if len(await store.problem_ids()) < problems:
        await store.add_problems(Problem(problem_id, "?", "scripted") for problem_id in ids)
    for start in range(0, tickets, 1000):
        await store.issue([ids[i % problems] for i in range(start, min(tickets, start + 1000))], 10**9)
    await store.close()


async def _clear(load: Load, run: str) -> None:
    """Delete a run's payloads, so that the next cell has the memory."""
    store = await load.connect(run)
    await store.retire([entry.id for entry, _, _ in await store.live_groups()], "used")
    await store.close()


class _Role:
    """One process of ops/store_load.py, which says when it is ready, and works when told to."""

    def __init__(self, load: Load, run: str, role: str, payload_bytes: int, seconds: float) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ops.store_load"])
        self.pipe: Connection
        self.pipe, far = context.Pipe()
        self.process: ForkServerProcess = context.Process(
            target=getattr(store_load, role), args=(load, run, payload_bytes, seconds, far), daemon=True
        )
        self.process.start()
        far.close()
        self.pipe.recv()

    def start(self) -> None:
        """Begin to work."""
        self.pipe.send("go")


def _together(
    load: Load, run: str, role: str, count: int, payload_bytes: int, seconds: float
) -> tuple[float, np.ndarray[Any, Any], float]:
    """(requests per second of `count` processes together, each latency in seconds, the server's share of a core)."""
    roles = [_Role(load, run, role, payload_bytes, seconds) for _ in range(count)]
    busy, began = _cpu_s(load.pid), time.monotonic()
    for each in roles:
        each.start()
    results = [each.pipe.recv() for each in roles]
    share = (_cpu_s(load.pid) - busy) / (time.monotonic() - began)
    for each in roles:
        each.process.join()
    rate = sum(done / elapsed for done, elapsed, _ in results)
    return rate, np.concatenate([latencies for _, _, latencies in results]), share


def _cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _reading(load: Load, pools: Sequence[int], problems: int) -> dict[str, Any]:
    """Draw + fetch by pool size; a cold mirror and a query while there are as many groups as problems."""
    store = await load.connect("reading")
    ids = [f"problem {i}" for i in range(problems)]
    await store.add_problems(Problem(problem_id, "?", "scripted") for problem_id in ids)
    mirror = Mirror(store)
    await mirror.sync()
    rng = np.random.default_rng(0)
    draws, filled, per_100, cold = [], 0, [], {}
    for pool in sorted({*pools, problems}):
        await fill(store, ids, pool - filled)
        began = time.perf_counter()
        fresh = len(await mirror.sync())
        per_100.append(1e5 * (time.perf_counter() - began) / fresh)
        filled = pool
        draws.append({"groups": pool, "ms": await _draw_fetch(store, list(mirror.pool), rng)})
        if pool == problems:
            cold = {"cold_s": await _seconds(Mirror(store).sync()), "query_s": await _seconds(_query(store))}
    await store.close()
    return {"draw_fetch": draws, **cold, "per_100_ms": min(per_100)}


async def _seconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _query(store: Store) -> None:
    await list_problems(store, Gate(), where="posterior_mean < 0.7 and attempts >= 0", sort="-gate", limit=20)


async def _draw_fetch(store: Store, pool: list[str], rng: np.random.Generator) -> float:
    """Median milliseconds from priorities to 64 decoded groups."""
    mass, lag = rng.exponential(size=len(pool)), rng.integers(0, 5, len(pool))
    taken = []
    for _ in range(15):
        began = time.perf_counter()
        chosen, _ = draw.systematic_pps(draw.weights(mass, lag, freshness=0.9, epsilon=0.05), BATCH, rng)
        await store.fetch([pool[i] for i in chosen])
        taken.append(time.perf_counter() - began)
    return 1e3 * float(np.median(taken))


def _slowdowns_under_query(load: Load, seconds: float, problems: int) -> list[float]:
    """Shares of commits per second lost while another process asks about all problems once a second: of a mirror that
    it keeps, and from cold."""
    rates: dict[str, list[float]] = {"": [], "asking": [], "asking_cold": []}
    for _ in range(3):
        for beside, found in rates.items():
            found.append(_commits(load, 1, PAYLOADS[0], seconds, problems, beside)[0])
    alone, *slower = (float(np.median(found)) for found in rates.values())
    return [1.0 - rate / alone for rate in slower]
