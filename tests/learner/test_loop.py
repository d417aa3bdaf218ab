"""The loop against a real store, with an actor that really samples: it learns, resumes, and says why it stops."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from learner.config import (
    AdmissionConfig,
    AlarmsConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.loop import run_learner
from learner.store_thread import StoreThread
from store.audit import audit
from store.errors import VergeError
from store.server import EmbeddedServer
from tests.learner.scripted import ScriptedActor, problems, tiny_llama

GROUP = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedServer, tmp_path: Path) -> LearnerSettings:
    return LearnerSettings(
        learner=LearnerConfig(steps=6, groups_per_step=8, lr=5e-3, warmup_steps=2, threads=1, stall_s=20),
        objective=ObjectiveConfig(),
        correction=CorrectionConfig(),
        gating=GatingConfig(),
        draw=DrawConfig(),
        admission=AdmissionConfig(),
        model=tiny_llama(tmp_path / "base"),
        run_dir=tmp_path / "run",
        store_url=server.url,
        store_password=server.password,
        run=tmp_path.name,
        temperature=1.0,
        group_size=GROUP,
    )


def open_run(settings: LearnerSettings, count: int = 24) -> StoreThread:
    line = StoreThread(settings.store_url, settings.run, settings.store_password)
    meta = {"fingerprint": "test", "gamma": str(settings.gating.gamma), "group_size": str(GROUP)}
    line.call(line.store.open_run(meta))
    line.call(line.store.add_problems(problems(count)))
    return line


def train(settings: LearnerSettings) -> ScriptedActor:
    with StoreThread(settings.store_url, settings.run, settings.store_password) as line:
        line.call(line.store.set_phase("running"))  # an actor that is started on a finished run stops at once
    actor = ScriptedActor(settings.store_url, settings.run, settings.store_password, settings.model, GROUP)
    actor.start()
    try:
        run_learner(settings)
    finally:
        actor.stop()
    return actor


def with_learner(settings: LearnerSettings, **changes: Any) -> LearnerSettings:
    return replace(settings, learner=settings.learner.model_copy(update=changes))


@pytest.mark.parametrize(("max_lag", "max_uses", "spi"), [(4, 1, 1.0), (0, 1, 1.0), (3, 2, 2.0)])
def test_rewards_rise_with_stale_synchronous_and_replayed_data(
    settings: LearnerSettings, max_lag: int, max_uses: int, spi: float
) -> None:
    settings = replace(
        with_learner(settings, steps=20),
        admission=AdmissionConfig(max_lag=max_lag, max_uses=max_uses, samples_per_insert=spi),
        objective=ObjectiveConfig(advantage="drgrpo", normalisation="constant"),
    )
    with open_run(settings) as line:
        actor = train(settings)
        history = line.call(line.store.dynamics_history(100))
        counters = line.call(line.store.counters())
        manifests = line.call(line.store.manifests())
        phase = line.call(line.store.phase())
    assert [row["step"] for row in history] == list(range(1, 21))
    assert np.mean([row["reward"] for row in history[-5:]]) > np.mean([row["reward"] for row in history[:5]]) + 0.15
    assert max(row["lag_max"] for row in history) <= max_lag
    assert phase == ("done", "all 20 steps are taken")
    assert [m.version for m in manifests] == list(range(21))
    assert manifests[-1].step == 20
    assert actor.versions == sorted(actor.versions)
    assert counters["drawn"] == sum(row["groups"] for row in history) == 160
    if max_lag == 0:
        assert counters["expired"] == 0
        assert all(abs(row["ratio_mean"] - 1) < 1e-4 and row["kl"] < 1e-6 for row in history)


METHODS: dict[str, dict[str, Any]] = {
    "decoupled": {"learner": {"mini_batches": 2}, "correction": {"kind": "decoupled"}},
    "filtered": {"objective": {"advantage": "filtered"}},
    "kl_control": {
        "objective": {"advantage": "kl_control", "params": {"mu": 0.9}, "entropy_bonus": 0.01},
        "learner": {"mini_batches": 2},
        "correction": {"kind": "m2po"},
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_and_goes_on_after_a_resume(settings: LearnerSettings, method: str) -> None:
    chosen = METHODS[method]
    settings = replace(
        with_learner(settings, **chosen.get("learner", {})),
        objective=ObjectiveConfig(**chosen.get("objective", {})),
        correction=CorrectionConfig(**chosen.get("correction", {})),
    )
    with open_run(settings) as line:
        train(with_learner(settings, steps=8))
        train(with_learner(settings, steps=16))
        history = line.call(line.store.dynamics_history(100))
        found = line.call(audit(line.store))
    assert [row["step"] for row in history] == list(range(1, 17))
    assert np.mean([row["reward"] for row in history[-4:]]) > np.mean([row["reward"] for row in history[:4]]) + 0.1
    assert all(np.isfinite(row["loss"]) and 0 < row["ess"] <= 1 for row in history)
    assert (found.duplicated, found.miscounted, found.unbalanced, found.unreadable) == ((), (), (), ())


def test_a_run_with_fade_bbg_records_what_it_read_from_training(settings: LearnerSettings) -> None:
    with open_run(settings) as line:
        train(settings)
        *_, before, last = line.call(line.store.dynamics_history(6))
    assert last["step"] == 6
    assert last["version"] == 6
    assert 20 <= last["active_problems"] <= 24  # of 24; one that is solved often enough has closed its gate
    assert 0 < last["entropy"] < np.log(12)
    p_hat = before["solve_rate"]  # of the step's start
    assert last["alpha"] == pytest.approx(min(max(1.5 * (1 - p_hat) / p_hat, 1), 3))
    assert last["solve_rate"] == pytest.approx(p_hat + 0.02 * (last["reward"] - p_hat))
    assert 0 <= last["idle_share"] <= 1
    snapshots = sorted(path.name for path in (settings.run_dir / "weights").iterdir())
    assert snapshots == ["v0000004", "v0000005", "v0000006"]


def test_a_run_watches_its_head_and_says_what_is_wrong(
    settings: LearnerSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = with_learner(settings, steps=4, geometry_every=2, keep_snapshots=9)
    settings = replace(settings, alarms=AlarmsConfig(entropy_floor=2.4, kl_ceiling=100.0, ess_floor=0.0))
    with open_run(settings) as line:
        train(settings)
        rows = line.call(line.store.dynamics_history(4))
    assert "head_change" not in rows[0]
    first, second = (load_file(settings.run_dir / "weights" / f"v000000{v}" / "model.safetensors") for v in (2, 4))
    base = load_file(settings.model / "model.safetensors")["lm_head.weight"]
    measured = next(row for row in rows if row.get("head_step") == 2)
    change = first["lm_head.weight"] - base
    values = torch.linalg.svdvals(change)
    assert measured["head_change"] == pytest.approx(float(change.norm() / base.norm()), rel=1e-5)
    assert measured["head_top_share"] == pytest.approx(float(values[0] ** 2 / (values**2).sum()), rel=1e-3)
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    assert [row["alarm_entropy"] for row in rows] == [1, 1, 1, 1]  # 12 tokens: at most 2.48 nats
    assert [row["alarm_kl"] + row["alarm_ess"] + row["alarm_problems"] for row in rows] == [0, 0, 0, 0]
    assert capfd.readouterr().err.count("learner: alarm at step 1: the policy's entropy is ") == 1


def test_a_resumed_run_continues_at_the_next_step_and_its_versions_never_go_back(settings: LearnerSettings) -> None:
    with open_run(settings) as line:
        settings = with_learner(settings, keep_snapshots=9)
        train(with_learner(settings, steps=3))
        checkpoint = settings.run_dir / "checkpoints"
        assert (checkpoint / "latest").read_text() == "step-0000003"
        before = load_file(settings.run_dir / "weights" / "v0000003" / "model.safetensors")
        train(settings)
        after = load_file(settings.run_dir / "weights" / "v0000004" / "model.safetensors")
        history = line.call(line.store.dynamics_history(100))
        manifests = line.call(line.store.manifests())
        phase, _ = line.call(line.store.phase())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [row["step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert [(m.version, m.step) for m in manifests] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 6)]
    assert phase == "done"


def test_groups_trained_on_after_the_last_checkpoint_return_to_the_pool(settings: LearnerSettings) -> None:
    with open_run(settings) as line:
        train(with_learner(settings, steps=3, checkpoint_every=2))
        checkpoints = settings.run_dir / "checkpoints"
        (checkpoints / "latest").write_text("step-0000002")  # as if killed before the last checkpoint
        issued = line.call(line.store.counters())
        train(with_learner(settings, steps=4))
        counters = line.call(line.store.counters())
        steps = [row["step"] for row in line.call(line.store.dynamics_history(100))]
    assert issued["used"] == 16
    assert steps == [1, 2, 3, 3, 4]
    assert counters["drawn"] == 8 * 5
    assert counters["committed"] >= 32


def test_a_run_that_begins_anew_trains_the_base_model_again_under_a_new_version(settings: LearnerSettings) -> None:
    with open_run(settings) as line:
        train(with_learner(settings, steps=2))
        train(replace(with_learner(settings, steps=1, keep_snapshots=9), resume="never"))
        manifests = line.call(line.store.manifests())
        steps = [row["step"] for row in line.call(line.store.dynamics_history(100))]
    assert steps == [1, 2, 1]
    assert [(m.version, m.step) for m in manifests] == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)]
    base, again = (load_file(Path(m.path) / "model.safetensors") for m in (manifests[0], manifests[3]))
    assert all(torch.equal(base[name], again[name]) for name in base)
    assert (settings.run_dir / "checkpoints.1" / "latest").read_text() == "step-0000002"


def test_a_checkpoint_of_a_run_with_more_problems_is_refused(settings: LearnerSettings, tmp_path: Path) -> None:
    with open_run(settings):
        train(with_learner(settings, steps=1))
    other = replace(settings, run="other", run_dir=tmp_path / "other")
    other = replace(other, resume=str(settings.run_dir / "checkpoints" / "step-0000001"))
    with open_run(other, count=5), pytest.raises(VergeError, match="at least 24 problems, but this one has 5"):
        run_learner(other)


def test_sigterm_checkpoints_and_leaves_the_run_open(settings: LearnerSettings) -> None:
    settings = with_learner(settings, steps=10_000)
    with open_run(settings) as line:
        killer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM))
        killer.start()
        train(settings)
        steps = int(line.call(line.store.dynamics())["step"])
        phase = line.call(line.store.phase())
        newest = line.call(line.store.manifest())
    assert steps > 0
    assert phase == ("running", "")
    assert newest is not None
    assert newest.step == steps
    assert (settings.run_dir / "checkpoints" / "latest").read_text() == f"step-{steps:07d}"


def test_learner_and_actor_wait_aloud_while_the_store_is_away_and_go_on(
    settings: LearnerSettings, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away for VERGE_AWAY_S seconds (30 in the failure matrix of the design; 1.5 here, so that the test is fast)."""
    away_s = float(os.environ.get("VERGE_AWAY_S", "1.5"))
    monkeypatch.setattr("store.link._SAY_EVERY_S", away_s / 5)
    server = EmbeddedServer(tmp_path, fsync="always")
    trained, ended = threading.Event(), threading.Event()

    def outage() -> None:  # one thread starts the second server and outlives it, or the kernel would end it
        assert trained.wait(60)
        os.kill(server.pid, signal.SIGKILL)
        time.sleep(away_s)
        server.start()
        ended.wait()
        server.stop()

    settings = replace(with_learner(settings, steps=8), store_url=server.start().url, store_password=server.password)
    thread = threading.Thread(target=outage, daemon=True)
    thread.start()
    with open_run(settings) as line:
        watch = line.start(_when_trained(line, 3, trained))
        actor = train(settings)
        watch.result(1)
        history = line.call(line.store.dynamics_history(100))
        found = line.call(audit(line.store))
        phase = line.call(line.store.phase())
    ended.set()
    thread.join()
    assert [row["step"] for row in history] == list(range(1, 9))
    assert phase == ("done", "all 8 steps are taken")
    assert (found.duplicated, found.miscounted, found.unbalanced, found.unreadable) == ((), (), (), ())
    assert actor.versions == sorted(actor.versions)
    said = capfd.readouterr().err
    assert said.count(f"store: waiting for {settings.store_url} for ") >= 2, "the actor's client and the learner's"


async def _when_trained(line: StoreThread, steps: int, trained: threading.Event) -> None:
    while (await line.store.dynamics()).get("step", 0) < steps:
        await asyncio.sleep(0.05)
    trained.set()


def test_a_second_learner_is_refused(settings: LearnerSettings) -> None:
    with open_run(settings) as line:
        line.hold("first")
        with pytest.raises(VergeError, match="has a live learner"):
            run_learner(settings)


def test_without_an_actor_the_learner_gives_up_and_says_what_is_missing(
    settings: LearnerSettings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.planner.SAY_WHY_EVERY_S", 0.2)
    with open_run(settings) as line:
        with pytest.raises(VergeError, match=r"no group arrived for .* while 8 are missing"):
            run_learner(with_learner(settings, stall_s=1.0))
        assert line.call(line.store.phase())[0] == "failed"
    assert "have 0 of 8 groups for step 1, because no actor has started yet (40 tickets wait)" in capfd.readouterr().err


def test_a_run_that_does_not_exist_or_has_another_gamma_is_refused(settings: LearnerSettings) -> None:
    with pytest.raises(VergeError, match="does not exist in the store"):
        run_learner(settings)
    with open_run(settings), pytest.raises(VergeError, match=r"gamma = 0.97, the config has 0.5"):
        run_learner(replace(settings, gating=GatingConfig(gamma=0.5)))


@pytest.mark.parametrize("max_lag", [4, 0])  # at 0, tickets must go on although a skipped step publishes nothing
def test_three_skipped_steps_in_a_row_end_the_run_and_leave_their_batches(
    settings: LearnerSettings, max_lag: int
) -> None:
    settings = with_learner(settings, lr=1e30, grad_clip=1e30, warmup_steps=0, stall_s=60.0)
    settings = replace(settings, admission=AdmissionConfig(max_lag=max_lag))
    with open_run(settings) as line:
        with pytest.raises(VergeError, match="3 steps in a row, up to 4, were skipped"):
            train(settings)
        assert line.call(line.store.phase())[0] == "failed"
    dumped = sorted((settings.run_dir / "skipped").iterdir())
    assert [path.name for path in dumped] == ["step-0000002.json", "step-0000003.json", "step-0000004.json"]
    assert len(json.loads(dumped[0].read_text())["ids"]) == 8
