"""`verge bench chaos`: kill −9 actors, the learner and the server at random, then recount everything."""

import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import tempfile
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

from ops import chaos_roles
from ops.chaos_roles import META, RUN, Place
from ops.figures import check
from store.audit import Audit, audit
from store.client import Store
from store.errors import VergeError
from store.queries import group_log
from store.server import EmbeddedServer
from store.wire import Problem

ACTORS = 4
PROBLEMS = 40
BETWEEN_KILLS_S = 0.02
"""Mean pause before a kill, after the commits that are waited for."""
_COMMITS_BETWEEN, _WAIT_S = 20, 0.1
_SERVER_SHARE, _LEARNER_SHARE = 0.08, 0.2
_BREATH_S, _STALLED_S = 2.0, 60.0


class _Cast:
    """The processes of one run, each replaced as soon as it is killed."""

    def __init__(self, place: Place, chance: random.Random) -> None:
        self._place = place
        self._chance = chance
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["ops.chaos_roles"])
        self._spawned = 0
        self.actors = [self._spawn("actor") for _ in range(ACTORS)]
        self.learner = self._spawn("learner")

    def _spawn(self, role: str) -> ForkServerProcess:
        self._spawned += 1
        name = f"{role}-{self._spawned}"
        process = self._context.Process(
            target=getattr(chaos_roles, role), args=(self._place, name, self._chance.getrandbits(32)), daemon=True
        )
        process.start()
        return process

    def kill_actor(self) -> None:
        """Kill one of the actors outright."""
        index = self._chance.randrange(ACTORS)
        _kill(self.actors[index])
        self.actors[index] = self._spawn("actor")

    def kill_learner(self) -> None:
        """Kill the learner outright."""
        _kill(self.learner)
        self.learner = self._spawn("learner")

    def revive(self) -> None:
        """Replace a learner that ended by itself because it had lost its lock."""
        if not self.learner.is_alive():
            self.learner = self._spawn("learner")
        for process in self.actors:
            if not process.is_alive():
                raise VergeError(f"a scripted actor ended by itself with status {process.exitcode}")

    def end(self) -> None:
        """Kill everything."""
        for process in (*self.actors, self.learner):
            _kill(process)


def _kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join()


def run(kills: int = 1000, fsync: Literal["always", "everysec"] = "always", seed: int = 0) -> dict[str, Any]:
    """Kill `kills` processes of a running store, then compare every count with the log.

    Args:
        fsync: of the server. Killing a process loses no write that the kernel has, so `everysec` is expected to lose
            nothing here either; a power cut, which would, cannot be played.

    Returns:
        `checks`: kills; lost, groups that were acknowledged and are not in the log; duplicated; miscounted, problems
        and counter identities that are wrong. Beside them the kills by role, the groups, and the recovery times.
    """
    with tempfile.TemporaryDirectory(prefix="verge-chaos-") as folder:
        return asyncio.run(_run(Path(folder), kills, fsync, random.Random(seed)))  # noqa: S311 - not a secret


async def _run(folder: Path, kills: int, fsync: Literal["always", "everysec"], chance: random.Random) -> dict[str, Any]:
    server = EmbeddedServer(folder, fsync=fsync)
    server.start()
    cast = None
    try:
        place = Place(server.url, server.password, folder)
        store = await Store.connect(server.url, RUN, server.password)
        await store.open_run(META)
        await store.add_problems(Problem(f"problem {i}", "?", "scripted") for i in range(PROBLEMS))
        began = time.monotonic()
        cast = _Cast(place, chance)
        killed, recoveries = await _rampage(store, server, cast, kills, chance)
        seconds = time.monotonic() - began
        cast.end()
        found = await audit(store)
        lost = sorted(_acknowledged(place) - {entry.id for entry in await group_log(store)})
        counters = await store.counters()
        await store.close()
    finally:
        if cast is not None:
            cast.end()
        server.stop()
    return _figures(found, lost, killed, recoveries, counters, seconds, kills)


async def _rampage(
    store: Store, server: EmbeddedServer, cast: _Cast, kills: int, chance: random.Random
) -> tuple[dict[str, int], list[float]]:
    killed = {"actor": 0, "learner": 0, "server": 0}
    recoveries: list[float] = []
    moved, committed = time.monotonic(), 0
    await _until_committing(store, cast, 0)
    while sum(killed.values()) < kills:
        # Neither always before there was time to work nor always after: a short while for up to 20 commits.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await _until_committing(store, cast, committed + chance.randrange(_COMMITS_BETWEEN))
        await asyncio.sleep(chance.expovariate(1 / BETWEEN_KILLS_S))
        draw = chance.random()
        if draw < _SERVER_SHARE:
            began = time.monotonic()
            os.kill(server.pid, signal.SIGKILL)
            while server.alive:
                await asyncio.sleep(0.002)
            server.start()
            recoveries.append(time.monotonic() - began)
            killed["server"] += 1
        elif draw < _SERVER_SHARE + _LEARNER_SHARE:
            cast.kill_learner()
            killed["learner"] += 1
        else:
            cast.kill_actor()
            killed["actor"] += 1
        now = (await store.counters())["committed"]
        if now > committed:
            moved, committed = time.monotonic(), now
        elif time.monotonic() - moved > _BREATH_S:  # killed faster than they start: let them work before going on
            await _until_committing(store, cast, committed)
    await _until_committing(store, cast, committed)
    return killed, recoveries


async def _until_committing(store: Store, cast: _Cast, committed: int) -> None:
    """Wait for a commit beyond `committed`: what was killed last has come back to work."""
    deadline = time.monotonic() + _STALLED_S
    while (await store.counters())["committed"] <= committed:
        if time.monotonic() > deadline:
            raise VergeError(f"the run stalled: no group was committed for {_STALLED_S:g} s at {committed} groups")
        cast.revive()
        await asyncio.sleep(0.01)


def _acknowledged(place: Place) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return set(place.acknowledged.read_text().split())
    return set()


def _figures(
    found: Audit,
    lost: list[str],
    killed: dict[str, int],
    recoveries: list[float],
    counters: dict[str, int],
    seconds: float,
    kills: int,
) -> dict[str, Any]:
    miscounted = len(found.miscounted) + len(found.unbalanced) + len(found.unreadable)
    return {
        "checks": [
            check("kills", sum(killed.values()), kills, sum(killed.values()) >= kills),
            check("lost", len(lost), 0, not lost),
            check("duplicated", len(found.duplicated), 0, not found.duplicated),
            check("miscounted", miscounted, 0, miscounted == 0),
        ],
        "killed": killed,
        "groups": found.groups,
        "duplicate_attempts": counters["duplicate"],
        "counters": counters,
        "wrong": {
            "lost": lost,
            "problems": found.miscounted,
            "counters": found.unbalanced,
            "payloads": found.unreadable,
        },
        "server_recovery_max_s": max(recoveries, default=0.0),
        "seconds": seconds,
    }
