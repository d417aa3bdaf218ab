"""`verge track`: what TensorBoard and Weights & Biases are told, each figure once, also across restarts and resumes."""

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ops.config import load_config
from ops.doctor import examine
from ops.monitor import trackers
from ops.monitor.track import track, tracker_beside
from store.client import Store
from store.runs import Phase
from store.server import EmbeddedServer
from store.wire import Manifest, Problem
from tests.ops.serving import META, ROOT, evaluate, make_run
from tests.ops.test_bad_input import builtin


@pytest.fixture
def run(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """The live store of a run in `tmp_path`."""
    make_run(tmp_path, tmp_path)
    with EmbeddedServer(tmp_path) as server:
        yield server


def record(server: EmbeddedServer, steps: Iterable[int], phase: Phase, evaluated: Sequence[int] = ()) -> None:
    """Take steps, as a learner records them; the versions of some are evaluated."""

    async def play() -> None:
        store = await Store.connect(server.url, "served", server.password)
        try:
            await store.open_run(META)
            await store.add_held_out([Problem("held 0", "what is held out?", "exact", "42")])
            for number in steps:
                figures = {"step": number, "reward": number / 10, "alpha": 2.5, "lag_groups_2": 3}
                await store.record_dynamics(figures | {"step_s": time.monotonic(), "wait_s": 0.5})
                if number in evaluated:
                    await store.announce(Manifest(number, "/w", "00", 1, number, 1.0))
                    await evaluate(store, number, [number])
            await store.set_phase(phase)
        finally:
            await store.close()

    asyncio.run(play())


def start(folder: Path, kind: str, **environment: str) -> "subprocess.Popen[str]":
    """The real process, as `verge up` starts it."""
    command = [sys.executable, "-m", "ops.cli", "track", str(folder), "--set", f"track.kind={kind}"]
    return subprocess.Popen(
        [*command, "--set", "track.project=ours"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
    )  # fmt: skip


def until_told(folder: Path, step: int, process: "subprocess.Popen[str]") -> None:
    """Wait until the tracker has been told a step."""
    note, deadline = folder / "track" / "told.json", time.monotonic() + 300
    while not note.exists() or json.loads(note.read_text())[0] != step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_tensorboard_shows_every_step_once_also_those_that_a_resume_took_again(
    run: EmbeddedServer, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: event files were not read back")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in (range(1, 6), range(4, 8), range(0)):  # the last time, nothing is new
        record(run, steps, "done", evaluated=(2, 5) if 1 in steps else (7,))
        track(tmp_path, ["track.kind=tensorboard"])
    found = EventAccumulator(str(tmp_path / "track")).Reload()
    assert {"learner/step", "learner/reward", "gating/alpha", "learner/lag_groups/2"} <= set(found.Tags()["scalars"])
    rewards = [(event.step, round(event.value, 6)) for event in found.Scalars("learner/reward")]
    assert rewards == [(number, number / 10) for number in range(1, 8)]
    beside = EventAccumulator(str(tmp_path / "track" / "evaluations")).Reload()
    measured = [(event.step, round(event.value * 64)) for event in beside.Scalars("gating/pass_at_k/1")]
    assert measured == [(2, 2), (5, 5), (7, 7)], "step 5, which was taken again, was evaluated none the less"


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of wandb's own file: LevelDB's log format (blocks of 32 KiB, fragments) after a head of 7 bytes."""
    assert data[:4] == b":W&B"
    at, found = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        found += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of its fragments
            yield found
            found = b""


def test_wandb_offline_is_told_every_step_once_across_a_sigterm_under_one_id(
    run: EmbeddedServer, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: it was told nothing")
    from wandb.proto import wandb_internal_pb2 as records

    record(run, range(1, 4), "running")
    for last, phase in ((4, "running"), (5, "done")):
        process = start(tmp_path, "wandb", WANDB_MODE="offline")
        if phase == "running":
            until_told(tmp_path, 3, process)
            record(run, [4], "running")
            process.send_signal(signal.SIGTERM)
        else:
            record(run, [4, 5], "done", evaluated=[5])  # step 4 is taken again
        _, said = process.communicate()
        assert process.returncode == 0, said
        assert json.loads((tmp_path / "track" / "told.json").read_text())[0] == last
    logged: list[dict[str, Any]] = []
    ids = set()
    for file in sorted(tmp_path.glob("track/wandb/offline-run-*/*.wandb")):
        for data in wandb_records(file.read_bytes()):
            found = records.Record.FromString(data)
            if found.HasField("run"):
                ids.add((found.run.project, found.run.display_name, found.run.run_id))
            if found.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in found.history.item}
                logged.append({key: json.loads(value) for key, value in items.items()})
    (measured,) = [row for row in logged if "gating/pass_at_k/1" in row]
    assert (measured["step"], measured["gating/pass_at_k/1"]) == (5, 5 / 64)
    logged.remove(measured)
    assert [row["step"] for row in logged] == [1, 2, 3, 4, 4, 5]
    assert [row["learner/reward"] for row in logged] == [0.1, 0.2, 0.3, 0.4, 0.4, 0.5]
    assert logged[0]["gating/alpha"] == 2.5
    assert ids == {("ours", "served", (tmp_path / "track" / "wandb-id").read_text())}


def test_a_tracker_that_fails_is_given_up_with_its_reason_and_without_the_run(
    run: EmbeddedServer, tmp_path: Path
) -> None:
    record(run, range(1, 3), "running")
    (tmp_path / "logs").mkdir()
    (tmp_path / "track").write_text("a file, where the tracker's folder would be")
    said: list[str] = []
    config = load_config(Path(builtin(tmp_path, "tiny")), ["track.kind=tensorboard"])
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"track": {"kind": "tensorboard"}}))
    beside = tracker_beside(config, tmp_path, said.append)
    beside.start()
    deadline = time.monotonic() + 300
    while not said:
        assert time.monotonic() < deadline
        beside.keep(time.monotonic())
        time.sleep(0.02)
    beside.keep(time.monotonic())
    beside.stop()
    (line,) = said
    assert line.startswith("the tracker ended with status 1: tensorboard ")
    assert line.endswith(f"; the run goes on without it (log: {tmp_path / 'logs' / 'track.log'})")


def test_a_tracker_that_is_not_installed_is_named_by_the_doctor_and_at_its_start(
    run: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trackers.importlib.util.find_spec
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None if name == "wandb" else there(name))
    config = load_config(Path(builtin(tmp_path, "tiny")), ["track.kind=wandb"])
    (finding,) = [found for found in examine(config) if found.name == "package wandb"]
    assert (finding.ok, finding.fix) == (False, "pip install 'verge-rl[track]'")
    for kind, reason in (("wandb", r"not installed: pip install 'verge-rl\[track\]'"), ("none", "nobody to tell")):
        with pytest.raises(trackers.VergeError, match=reason):
            track(tmp_path, [f"track.kind={kind}"])


def test_no_tracker_is_started_where_none_is_wanted(tmp_path: Path) -> None:
    beside = tracker_beside(load_config(Path(builtin(tmp_path, "tiny"))), tmp_path / "absent", lambda _: None)
    beside.start()
    beside.keep(time.monotonic())
    beside.stop()
