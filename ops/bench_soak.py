"""`verge bench soak`: many steps of the real learner, actor and store, and whether any of them grows."""

import asyncio
import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from actors.config import SamplingConfig
from learner.config import (
    AdmissionConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.publish import manifest_of
from ops import soak_roles
from ops.figures import at_most
from ops.process_tree import open_files, rss_kib
from ops.soak_roles import ANSWER, MAX_LAG, RUN, Place
from ops.summary import lag_histogram
from store.audit import Audit, audit
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import Problem

SLOPE_KB, GROUPS_PER_STEP, GROUP_SIZE, PROBLEMS = 4.0, 8, 8, 256
_LOOK_EVERY_S, _STALLED_S = 0.2, 300.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment: the steps taken, KiB and open files by role, and the server's connections."""

    step: int
    rss: dict[str, int]
    files: dict[str, int]
    connections: int


def run(model: Path, steps: int) -> dict[str, Any]:
    """Train the tiny model for `steps` steps with DeepSpeed, as `verge learner` does, with checkpoints and snapshots.

    The actor is the real one in all but its engine, which writes a script: what vLLM keeps is vLLM's.

    Returns:
        `checks`: rss_slope_kb_per_step of learner, actor and server, over the second half; open_files_growth, of the
        one that grew most, and connection_growth, last quarter less second quarter; lag_excess, beyond max_lag;
        miscounted: counts that an audit finds wrong, and steps that did not take a whole batch. Beside them MiB,
        files and connections of the second half, the steps, and seconds.
    """
    with tempfile.TemporaryDirectory(prefix="verge-soak-") as name, EmbeddedServer(Path(name)) as server:
        folder = Path(name)
        place = Place(server.url, server.password, model, folder)
        settings = _settings(model, steps, folder, place)
        context = multiprocessing.get_context("spawn")
        sampling = SamplingConfig(group_size=GROUP_SIZE, max_completion_tokens=8)
        cast = {
            "learner": context.Process(target=soak_roles.learner, args=(place, settings), daemon=True),
            "actor": context.Process(target=soak_roles.actor, args=(place, sampling), daemon=True),
        }
        began = time.monotonic()
        try:
            return asyncio.run(_watch(settings, cast, server.pid)) | {"seconds": time.monotonic() - began}
        finally:
            for process in cast.values():
                if process.pid is not None:
                    process.kill()
                    process.join()


def _settings(model: Path, steps: int, folder: Path, place: Place) -> LearnerSettings:
    return LearnerSettings(
        learner=LearnerConfig(steps=steps, groups_per_step=GROUPS_PER_STEP, threads=1),
        objective=ObjectiveConfig(),
        correction=CorrectionConfig(),
        gating=GatingConfig(),
        draw=DrawConfig(),
        admission=AdmissionConfig(max_lag=MAX_LAG),
        model=model,
        run_dir=folder,
        store_url=place.url,
        store_password=place.password,
        run=RUN,
        temperature=1.0,
        group_size=GROUP_SIZE,
    )


async def _watch(settings: LearnerSettings, cast: dict[str, SpawnProcess], server: int) -> dict[str, Any]:
    store = await Store.connect(settings.store_url, RUN, settings.store_password)
    try:
        await store.open_run({"fingerprint": RUN, "gamma": repr(settings.gating.gamma), "group_size": str(GROUP_SIZE)})
        await store.add_problems(Problem(str(i), f"{i}:", "number", ANSWER) for i in range(PROBLEMS))
        await store.announce(manifest_of(0, settings.model, 0))
        for process in cast.values():
            process.start()
        looks = await _looks(store, settings, cast, server)
        records = await store.dynamics_history(settings.learner.steps)
        return figures(looks, records, await store.counters(), await audit(store), settings.learner.steps)
    finally:
        await store.close()


async def _looks(store: Store, settings: LearnerSettings, cast: dict[str, SpawnProcess], server: int) -> list[Look]:
    """Until both have ended well. Raises VergeError when one does not, or no step is taken for long."""
    pids = {name: process.pid or 0 for name, process in cast.items()} | {"server": server}
    looks: list[Look] = []
    moved = time.monotonic()
    while cast["learner"].is_alive():
        step = int((await store.dynamics()).get("step", 0))
        clients = await store.link.call(lambda redis: redis.info("clients"))
        if looks and step > looks[-1].step:
            moved = time.monotonic()
        elif time.monotonic() - moved > _STALLED_S:
            raise VergeError(f"the soak stalled: no step was taken for {_STALLED_S:g} s after step {step}")
        rss, files = ({name: look(pid) for name, pid in pids.items()} for look in (rss_kib, open_files))
        looks.append(Look(step, rss, files, int(clients["connected_clients"])))
        await asyncio.sleep(_LOOK_EVERY_S)
    for name, process in cast.items():
        process.join(_STALLED_S)
        if process.exitcode != 0:
            said = (settings.run_dir / f"{name}.log").read_text().strip().splitlines() or ["it said nothing"]
            raise VergeError(f"the {name} of the soak ended with status {process.exitcode}: {said[-1]}")
    return looks


def figures(
    looks: list[Look], records: list[dict[str, float]], counters: dict[str, int], found: Audit, steps: int
) -> dict[str, Any]:
    """The checks of `run`, from what was seen and what the store says afterwards."""
    # Without those before the first step, and those of a process that is ending.
    looks = [look for look in looks if look.step and all(look.rss.values())]
    late = [look for look in looks if look.step >= steps / 2]
    at = [look.step for look in late]
    slopes = {role: slope(at, [look.rss[role] for look in late]) for role in looks[-1].rss}
    files = max(growth([look.files[role] for look in looks]) for role in looks[-1].files)
    connections = growth([look.connections for look in looks])
    lag = int(max(record["lag_max"] for record in records)) - MAX_LAG
    wrong = [*found.duplicated, *found.miscounted, *found.unbalanced, *found.unreadable]
    short = steps - sum(record["groups"] == GROUPS_PER_STEP for record in records)
    return {
        "checks": [
            *(at_most(f"rss_slope_kb_per_step_{role}", value, SLOPE_KB) for role, value in slopes.items()),
            at_most("open_files_growth", files, 0),
            at_most("connection_growth", connections, 0),
            at_most("lag_excess", max(lag, 0), 0),
            at_most("miscounted", len(wrong) + short, 0),
        ],
        "steps": len(records),
        "rss_mib": {role: float(np.median([look.rss[role] for look in late])) / 1024 for role in slopes},
        "open_files": {role: int(np.median([look.files[role] for look in late])) for role in slopes},
        "connections": int(np.median([look.connections for look in late])),
        "lag_histogram": lag_histogram(records),
        "counters": counters,
        "wrong": wrong,
    }


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Theil–Sen: the median slope between two points of x [n], y [n] with different x; 0 where there are none.

    A third of the points may be anything: a jump of the allocator, or a sample taken during a checkpoint.
    """
    at, value = np.asarray(x, np.float64), np.asarray(y, np.float64)
    first, second = np.triu_indices(len(at), 1)
    run = at[second] - at[first]
    apart = run != 0
    return float(np.median((value[second] - value[first])[apart] / run[apart])) if apart.any() else 0.0


def growth(counts: list[int]) -> float:
    """The median of the last quarter less that of the second: what was opened and never closed."""
    quarter = len(counts) // 4
    return float(np.median(counts[-max(quarter, 1) :]) - np.median(counts[quarter : max(2 * quarter, 1)]))
