"""`verge sim`: scripted actors and a scripted step around the real store and the real learner loop."""

import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from learner.batches import TrainGroup
from learner.config import (
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.loop import run_learner
from learner.objective import StepStats
from learner.publish import manifest_of
from learner.ranks import Ranks
from learner.trainer import StepResult
from ops.sim_fleet import RUN, Place, play
from ops.sim_scene import Scene
from ops.summary import lag_histogram
from store.audit import audit
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer
from store.snapshots import WEIGHTS_FILE
from store.wire import Problem

_ENTROPY = 1.0
"""Nats, as every scripted step reports it: a fleet without a model has none."""
_READY_WITHIN_S = 60.0


class ScriptedTrainer:
    """Takes the time of a step and changes one number."""

    config = SimpleNamespace(vocab_size=1 << 20, max_position_embeddings=1 << 20)

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.ended_s: list[float] = []
        """When each step ended, on the monotonic clock."""

    def step(self, groups: list[TrainGroup], number: int) -> StepResult:
        """Wait for as long as a step takes."""
        time.sleep(self._step_s)
        self.ended_s.append(time.monotonic())
        nothing = StepStats(torch.device("cpu")).metrics() | {"grad_norm": 0.0}
        return StepResult(nothing | {"entropy": _ENTROPY}, applied=True)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The one number: how many snapshots there were by now, the base model's included."""
        yield "snapshots", torch.full((1, 1), 1.0 + len(self.ended_s))

    def save(self, folder: Path, tag: str) -> None:
        """An empty folder: there is nothing to continue from."""
        (folder / tag).mkdir()

    def load(self, folder: Path, tag: str) -> None:
        """Nothing."""


class OneRank(Ranks):
    """A learner of one rank, without DeepSpeed and torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.world, self.device = 0, 1, torch.device("cpu")


def simulate(scene: Scene) -> dict[str, Any]:
    """Run a scene on a fresh embedded store, in real time, in a temporary folder.

    Returns:
        seconds, from a fleet that is ready to the end of the last step; bound_s, what no schedule of this kind
        (synchronous at max_lag 0) can beat, and over_bound, the bound's share of the seconds; idle_share of the
        learner after its first batch; lag_max and lag_histogram at consumption; crashes; commit_p99_ms; the store's
        counters, and how many of its counts an audit finds wrong.

    Raises:
        VergeError: the fleet or the learner failed.
    """
    with tempfile.TemporaryDirectory(prefix="verge-sim-") as name, EmbeddedServer(Path(name)) as server:
        folder = Path(name)
        place = Place(server.url, server.password)
        settings = _settings(scene, folder, place)
        asyncio.run(_open(scene, settings))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        fleet = context.Process(target=play, args=(scene, place, theirs), daemon=True)
        fleet.start()
        theirs.close()
        try:
            _hear(ours, _READY_WITHIN_S)
            trainer, began = ScriptedTrainer(scene.step_s), time.monotonic()
            run_learner(settings, OneRank(), trainer)
            asyncio.run(_end(settings))
            played = _hear(ours, _READY_WITHIN_S)
        finally:
            fleet.kill()
            fleet.join()
        seconds = (trainer.ended_s or [began])[-1] - began
        return {"scene": scene.model_dump(), **_times(scene, seconds), **asyncio.run(_facts(settings, played))}


def _hear(pipe: Any, within_s: float) -> Any:
    try:
        if pipe.poll(within_s):
            return pipe.recv()
    except EOFError:
        raise VergeError("the simulated fleet ended by itself; its error is above") from None
    raise VergeError(f"the simulated fleet said nothing for {within_s:g} s")


def _settings(scene: Scene, folder: Path, place: Place) -> LearnerSettings:
    model = folder / "base"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "scripted"}))
    save_file({"snapshots": torch.ones(1, 1)}, model / WEIGHTS_FILE)
    return LearnerSettings(
        learner=LearnerConfig(steps=scene.steps, groups_per_step=scene.groups_per_step, stall_s=60.0),
        objective=ObjectiveConfig(advantage=scene.advantage),
        correction=CorrectionConfig(),
        gating=GatingConfig(),
        draw=DrawConfig(),
        admission=scene.admission,
        model=model,
        run_dir=folder,
        store_url=place.url,
        store_password=place.password,
        run=RUN,
        temperature=1.0,
        group_size=scene.group_size,
        seed=scene.seed,
    )


async def _open(scene: Scene, settings: LearnerSettings) -> None:
    store = await Store.connect(settings.store_url, RUN, settings.store_password)
    meta = {"fingerprint": "sim", "gamma": repr(settings.gating.gamma), "group_size": str(scene.group_size)}
    await store.open_run(meta)
    await store.add_problems(Problem(str(number), "?", "scripted") for number in range(scene.problems))
    await store.announce(manifest_of(0, settings.model, 0))
    await store.close()


async def _end(settings: LearnerSettings) -> None:
    """The fleet ends with the run: a learner that was stopped on request leaves it open."""
    store = await Store.connect(settings.store_url, RUN, settings.store_password)
    if (await store.phase())[0] == "running":
        await store.set_phase("done", "stopped on request")
    await store.close()


def _times(scene: Scene, seconds: float) -> dict[str, Any]:
    bound = scene.asynchronous_bound_s() if scene.max_lag else scene.synchronous_bound_s()
    return {
        "samples": scene.samples,
        "seconds": seconds,
        "bound_s": bound,
        "over_bound": bound / seconds if seconds > 0 else float("nan"),
    }


async def _facts(settings: LearnerSettings, played: dict[str, Any]) -> dict[str, Any]:
    store = await Store.connect(settings.store_url, RUN, settings.store_password)
    steps = await store.dynamics_history(settings.learner.steps)
    found, counters = await audit(store), await store.counters()
    phase, reason = await store.phase()
    await store.close()
    return {
        "ended": f"{phase}: {reason}",
        "steps": len(steps),
        "idle_share": steps[-1]["idle_share"] if steps else float("nan"),
        "lag_max": int(max((step["lag_max"] for step in steps), default=0)),
        "lag_histogram": lag_histogram(steps),
        "crashes": played["crashes"],
        "commit_p99_ms": 1e3 * float(np.quantile(played["commit_s"], 0.99)) if played["commit_s"] else float("nan"),
        "counters": counters,
        "miscounted": len(found.miscounted) + len(found.unbalanced) + len(found.duplicated) + len(found.unreadable),
    }
