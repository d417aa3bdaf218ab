"""A learner that dies goes on where its last checkpoint is, and ends where one that lived would have."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from learner.publish import manifest_of
from learner.store_thread import StoreThread
from store.server import EmbeddedServer
from tests.learner.killed_learner import KILLS, B
from tests.learner.scripted import ScriptedActor, problems, tiny_llama

STEPS = 2 * len(KILLS) + 4


def test_a_learner_killed_at_any_point_of_a_step_reaches_the_weights_of_one_that_lived(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", tied=True)
    with EmbeddedServer(tmp_path) as server:
        runs = [rolled_out(server, model, tmp_path / name) for name in ("whole", "broken")]
        runs[1]["kills"] = list(KILLS)
        learn(runs, tmp_path / "runs.json")
        whole, broken = (left_of(run) for run in runs)
    assert whole["phase"] == broken["phase"] == ("done", f"all {STEPS} steps are taken")
    assert whole["weights"].keys() == broken["weights"].keys()
    assert all(torch.equal(whole["weights"][name], broken["weights"][name]) for name in whole["weights"])
    base = load_file(model / "model.safetensors")
    assert not torch.equal(whole["weights"]["model.norm.weight"], base["model.norm.weight"])
    # Steps that were taken twice were the same twice: the last record of each is that of the unbroken run.
    assert sorted(broken["rows"]) == sorted(whole["rows"]) == list(range(1, STEPS + 1))
    for step, row in whole["rows"].items():
        for name in ("loss", "reward", "solve_rate", "entropy", "alpha", "delta", "active_problems", "groups"):
            assert broken["rows"][step][name] == row[name], (step, name)
    assert broken["versions"] == list(range(len(broken["versions"])))
    assert len(broken["versions"]) > len(whole["versions"]) == STEPS + 1
    assert not list((tmp_path / "broken" / "checkpoints").glob(".*"))
    assert len(list((tmp_path / "broken" / "checkpoints").glob("step-*"))) == 2


def rolled_out(server: EmbeddedServer, model: Path, folder: Path) -> dict[str, Any]:
    """A run in which an actor has committed every group before the learner starts."""
    given = {"model": str(model), "folder": str(folder), "run": folder.name, "steps": STEPS, "kills": []}
    with StoreThread(server.url, folder.name, server.password) as line:
        line.call(line.store.open_run({"fingerprint": "t", "gamma": "1.0", "group_size": "8"}))
        line.call(line.store.add_problems(problems(24)))
        line.call(line.store.announce(manifest_of(0, model, 0)))
        line.call(line.store.set_phase("running"))
        needed = (STEPS + 4) * B  # some groups are all right or all wrong, and teach nothing
        line.call(line.store.issue([f"p{i % 24}" for i in range(needed)], needed))
        actor = ScriptedActor(server.url, folder.name, server.password, model, 8)
        actor.start()
        while line.call(line.store.counters()).get("committed", 0) < needed:
            assert actor.error is None
        actor.stop()
    return given | {"url": server.url, "password": server.password}


def learn(runs: list[dict[str, Any]], file: Path) -> None:
    file.write_text(json.dumps(runs))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.learner.killed_learner", str(file)]
    done = subprocess.run(command, env=environment, timeout=600, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def left_of(run: dict[str, Any]) -> dict[str, Any]:
    with StoreThread(run["url"], run["run"], run["password"]) as line:
        newest = line.call(line.store.manifest())
        assert newest is not None
        return {
            "weights": load_file(Path(newest.path) / "model.safetensors"),
            "rows": {int(row["step"]): row for row in line.call(line.store.dynamics_history(1000))},
            "versions": [m.version for m in line.call(line.store.manifests())],
            "phase": line.call(line.store.phase()),
        }
