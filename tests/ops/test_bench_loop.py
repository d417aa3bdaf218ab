"""`verge bench loop`: that the peer gets our job, that the figures are those of what both said, what stops it."""

import json
import os
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.problems import load_problems
from ops import peer
from ops.bench_loop import CONFIG, JOB, figures, in_standard_errors, of_peer, of_verge, product_s
from ops.config import RunConfig, load_config
from ops.prepare import Prepared
from ops.process_tree import PeakMemory, open_files, rss_kib, tree
from store.errors import VergeError


def prepared(config: RunConfig, model: Path) -> Prepared:
    return Prepared(model, load_problems(config.problems))


def test_the_peer_gets_the_prompts_and_settings_of_our_run(tiny_model: Path, tmp_path: Path) -> None:
    config = load_config(CONFIG, [*JOB, "learner.steps=7"])
    given = json.loads(json.dumps(peer.job(config, prepared(config, tiny_model), 2, True, tmp_path)))
    shipped = tomllib.loads(CONFIG.read_text())
    problems = list(load_problems(config.problems).train)
    assert len(problems) == shipped["problems"]["train_count"]
    assert given.pop("problems") == [{"problem": p.id, "prompt": list(p.prompt)} for p in problems]
    assert given == {
        "folder": str(tmp_path),
        "model": str(tiny_model),
        "steps": 7,
        "groups_per_step": shipped["learner"]["groups_per_step"],
        "group_size": shipped["sampling"]["group_size"],
        "micro_batch": 16,
        "max_completion_tokens": 32,
        "temperature": shipped["sampling"]["temperature"],
        "lr": 1e-5,
        "warmup_steps": shipped["learner"]["warmup_steps"],
        "betas": [0.9, 0.98],
        "weight_decay": 0.0,
        "grad_clip": 1.0,
        "seed": shipped["seed"],
        "bf16": True,
        "threads": 2,
    }


def test_the_peers_completions_are_judged_as_an_actors(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"id": "a", "prompt": "1:", "verifier": "number", "answer": 7}) + "\n")
    config = load_config(CONFIG, [f"problems.source={file}", "problems.tags=[]", "problems.train_count=1",
                                  "problems.held_out_count=0"])  # fmt: skip
    judge = peer.Judge(config, prepared(config, tiny_model))
    end = 15  # of the tiny model's tokenizer, whose digits are their own ids
    assert judge.rewards(["a"] * 4, [[7, end], [8, end], [7], [1, 7, end]]) == [1.0, 0.0, 0.0, 0.0]
    judge.close()


STEP = {"completions": 64.0, "reward": 0.25, "step_s": 4.0, "forward_backward_s": 2.5, "optimiser_s": 0.5}


def test_a_phase_of_ours_adds_up_to_its_seconds() -> None:
    phase = of_verge([STEP, STEP | {"reward": 0.5}], [105.0, 110.5], began=100.0)
    assert phase["seconds"] == 10.5
    assert phase["completions"] == 128
    assert phase["rewards"] == [0.25, 0.5]
    assert phase["steps"][0] == {"generation_s": 1.0, "training_s": 3.0, "rest_s": 1.0}
    assert phase["steps"][1] == {"generation_s": 1.5, "training_s": 3.0, "rest_s": 1.0}


def test_a_phase_of_the_peer_adds_up_to_its_seconds() -> None:
    step = {"do": "step", "rewards": [1.0, 0.0, 0.0, 0.0], "generation_s": 8.0, "training_s": 20.0}
    said = [{"do": "ready", "at_s": 50.0}, {**step, "at_s": 79.0}, {**step, "at_s": 107.5, "rewards": [1.0] * 4}]
    phase = of_peer({"messages": said, "peak_kib": 2048})
    assert phase["seconds"] == 57.5
    assert phase["completions"] == 8
    assert phase["rewards"] == [0.25, 1.0]
    assert [step["rest_s"] for step in phase["steps"]] == [1.0, 0.5]
    assert phase["peak_mib"] == 2.0


def phase(seconds: float, rewards: list[float], parts: tuple[float, float], peak_mib: float) -> dict[str, Any]:
    steps = [{"generation_s": parts[0], "training_s": parts[1], "rest_s": 0.5} for _ in rewards]
    completions = 64 * len(rewards)
    return {"seconds": seconds, "completions": completions, "rewards": rewards, "steps": steps, "peak_mib": peak_mib}


def test_the_checks_are_those_of_the_phases() -> None:
    ours = phase(20.0, [0.1, 0.3, 0.3, 0.5], (0.5, 4.0), 5000)
    serial = phase(26.0, [0.1, 0.3, 0.3, 0.5], (2.0, 4.0), 5000)
    theirs = phase(100.0, [0.2, 0.2, 0.4, 0.4], (7.0, 17.0), 4000)
    found = figures({"trl": theirs, "asynchronous": ours, "synchronous": serial})
    value = {row["name"]: row["value"] for row in found["checks"]}
    assert {row["name"]: (row["target"], row["ok"]) for row in found["checks"]} == {
        "completions_over_trl": (4.0, True),
        "reward_difference_in_se": (-2.0, True),
        "async_over_serial": (1.05, True),
        "peak_memory_over_trl": (2.0, True),
    }
    assert value["completions_over_trl"] == pytest.approx(5.0)  # the same completions in a fifth of the time
    assert value["async_over_serial"] == pytest.approx(20 / 24)
    assert value["peak_memory_over_trl"] == 1.25
    assert value["reward_difference_in_se"] == pytest.approx(0.0, abs=1e-12)
    slow = {
        row["name"]: row["ok"]
        for row in figures({"trl": theirs, "asynchronous": theirs, "synchronous": serial})["checks"]
    }
    assert slow == {"completions_over_trl": False, "reward_difference_in_se": True, "async_over_serial": False,
                    "peak_memory_over_trl": True}  # fmt: skip
    alone = figures({"asynchronous": ours, "synchronous": serial})["checks"]
    assert [row["name"] for row in alone] == ["async_over_serial"]


def test_the_difference_is_in_standard_errors_of_its_mean() -> None:
    values = np.array([-0.1, -0.3, 0.1, -0.1])  # mean −.1, sample deviation √(.08/3)
    assert in_standard_errors(values) == pytest.approx(-0.1 / np.sqrt(0.08 / 3 / 4))
    assert in_standard_errors(np.zeros(3)) == 0.0


def test_a_product_of_matrices_is_timed_in_either_type_and_leaves_the_threads_alone() -> None:
    threads = torch.get_num_threads()
    for dtype in ("float32", "bfloat16"):
        assert 0 < product_s(dtype, 1) < 10
    assert torch.get_num_threads() == threads


def test_a_peer_that_fails_is_one_line_with_its_reason(tmp_path: Path) -> None:
    venv.EnvBuilder().create(tmp_path / "bare")  # an environment without TRL
    with pytest.raises(
        VergeError, match=r"TRL ended with status 1: ModuleNotFoundError: No module named '\w+' \(log: "
    ):
        peer.play(tmp_path / "bare" / "bin" / "python", {"folder": str(tmp_path), "threads": 1}, lambda *_: [])


def test_an_index_without_trl_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(VergeError) as refused:
        peer.environment(tmp_path)
    assert "No matching distribution found for trl==" in str(refused.value)
    assert "--without-peer" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []  # nothing half made is taken for whole next time


def test_the_memory_of_a_process_is_that_of_all_it_has_started() -> None:
    grandchild = "import sys; held = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with PeakMemory(process.pid) as peak:
            pids = tree(process.pid)
        assert len(pids) == 2
        assert peak.kib >= 64 << 10
        assert rss_kib(pids[0]) + rss_kib(pids[1]) >= 64 << 10
        assert open_files(pids[0]) >= 3
        process.kill()
        os.kill(pids[1], 9)
        deadline = time.monotonic() + 30
        while open_files(pids[1]) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert open_files(process.pid) == rss_kib(process.pid) == 0
