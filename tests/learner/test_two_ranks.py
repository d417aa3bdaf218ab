"""Two ranks on two nodes: the steps of one rank, and a loop in which each fetches its own payloads."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from learner.launch import launch_command
from learner.ranks import Ranks
from learner.store_thread import StoreThread
from store.server import EmbeddedServer
from tests.learner import rank_steps
from tests.learner.scripted import ScriptedActor, problems, tiny_llama


def test_two_ranks_take_the_steps_of_one_and_run_the_loop_together(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", tied=True)
    with EmbeddedServer(tmp_path) as server, StoreThread(server.url, "pair", server.password) as line:
        line.call(line.store.open_run({"fingerprint": "t", "gamma": "0.97", "group_size": "8"}))
        line.call(line.store.add_problems(problems(24)))
        actor = ScriptedActor(server.url, "pair", server.password, model, 8)
        actor.start()
        given = {"model": str(model), "output": str(tmp_path), "cases": list(rank_steps.CASES), "run": "pair"}
        (tmp_path / "given.json").write_text(json.dumps(given | {"url": server.url, "password": server.password}))
        try:
            torchrun(tmp_path / "given.json")
        finally:
            actor.stop()
        history = line.call(line.store.dynamics_history(10))
        phase = line.call(line.store.phase())
        counters = line.call(line.store.counters())
    assert phase == ("done", "all 4 steps are taken")
    assert [(row["step"], row["version"], row["groups"]) for row in history] == [(s, s, 5) for s in range(1, 5)]
    assert counters["lost_payload"] == 0
    first, second = (json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in (0, 1))
    assert [row["loss"] for row in first] == [row["loss"] for row in history], "rank 0 is told what the store records"
    assert second == [{"step": step} for step in range(1, 5)]
    assert all(row["ratio_mean"] == pytest.approx(1, abs=0.2) for row in history)
    assert history[0]["kl"] < 1e-8  # the first batch is the base model's: both ranks see the log-probs that sampled it

    (tmp_path / "one").mkdir()
    for case in rank_steps.CASES:
        one = rank_steps.train(model, Ranks(), case, tmp_path / "one")
        expected = load_file(tmp_path / "one" / f"{case}.safetensors")
        two = json.loads((tmp_path / f"{case}.json").read_text())
        for name in ("loss", "grad_norm", "entropy", "trained_tokens", "ratio_max", "clip_share_negative"):
            assert [m[name] for m in two] == pytest.approx([m[name] for m in one], rel=1e-6, abs=1e-6), (case, name)
        weights = load_file(tmp_path / f"{case}.safetensors")
        assert max(float((weights[n] - expected[n]).abs().max()) for n in expected) < 5e-6, case  # of a step of 1e−3


def torchrun(given: Path) -> None:
    """Two nodes of one rank each, on this machine, started by the command that `--print-launch` prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "tests.learner.rank_steps", str(given)]
    _, *arguments = launch_command(2, 1, f"127.0.0.1:{port}", "pair", program)
    command = [sys.executable, "-m", "torch.distributed.run", "--local-addr=127.0.0.1", *arguments]
    nodes = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    try:
        said = [node.communicate(timeout=600)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "".join(said)[-3000:]
