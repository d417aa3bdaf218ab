"""`verge bench learner`: what it counts as needed, and that it measures the loop it says it does."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from learner.batches import pack
from learner.loading import load_model
from learner.policy import DeviceBatch, Policy, shape_of
from ops.bench_learner import Batch, needed_flops, run, training_groups
from tests.learner.scripted import VOCAB, tiny_llama

SMALL = Batch(problems=3, size=4, prompt=9, length=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), tied=True)


def test_the_needed_flops_are_those_that_the_packed_step_multiplies(model: Path) -> None:
    """PyTorch counts the matmuls of a forward and backward, with nothing recomputed and, here, nothing padded."""
    loaded = load_model(model, torch.float32)
    policy = Policy(loaded, 1.0).eval()
    (batch,) = pack(training_groups(SMALL, VOCAB), shape_of(loaded), 10_000)
    assert batch.input_ids.size == SMALL.fed
    assert len(batch.target) == SMALL.trained
    assert int(batch.mask().sum()) == SMALL.pairs
    with FlopCounterMode(display=False) as counted:
        policy(DeviceBatch(batch, torch.device("cpu")))[0].sum().backward()
    matmuls = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_}
    of_matmuls = sum(flops for name, flops in counted.get_flop_counts()["Global"].items() if name in matmuls)
    attention = 3 * 4 * 32 * 2 * SMALL.pairs  # multiply-adds of 2 layers of width 32, in forward and twice in backward
    assert needed_flops(loaded, SMALL) - attention == pytest.approx(of_matmuls, rel=0.02)


def test_the_bench_takes_turns_and_reports_its_checks_with_the_issues_targets(model: Path) -> None:
    figures = run(model, SMALL, rounds=1)
    assert {row["name"]: row["target"] for row in figures["checks"]} == {
        "step_over_naive": 0.5,
        "flops_share": 0.5,
        "overhead_share": 0.15,
        "publish_block_share": 0.05,
        "delta_size_ratio": 0.2,
    }
    value = {row["name"]: row["value"] for row in figures["checks"]}
    assert value["step_over_naive"] == pytest.approx(figures["step_s"] / figures["naive_step_s"])
    assert 0 < figures["forward_backward_s"] < figures["step_s"]
    assert value["overhead_share"] == pytest.approx(1 - figures["forward_backward_s"] / figures["step_s"])
    rate = figures["needed_gflop"] / figures["forward_backward_s"]
    assert value["flops_share"] == pytest.approx(rate / figures["matmul_gflop_per_s"])
    assert 0 <= value["publish_block_share"] < 1
    assert 0 < value["delta_size_ratio"] <= 1
    assert 0.05 < figures["peak_memory_gib"] < 64
