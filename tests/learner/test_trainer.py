"""The DeepSpeed step: the same at any micro-batch, ZeRO stage and world size; clean when a step is not finite."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.batches import TrainGroup
from learner.checkpoint import Checkpoints
from learner.config import CorrectionConfig, LearnerConfig, ObjectiveConfig
from learner.loading import attention_for, load_model
from learner.ranks import Ranks
from learner.trainer import Trainer
from store.errors import VergeError
from tests.learner.scripted import random_groups, tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return Ranks()


DEFAULT = CorrectionConfig()
AS_IS = ObjectiveConfig(scale=None)
ROUNDING = 5e-6
"""Of a weight after a step of 1e−3: AdamW divides a gradient by its size, so where one is near 0 its rounding shows."""


def trainer_of(
    model: Path,
    ranks: Ranks,
    correction: CorrectionConfig = DEFAULT,
    objective: ObjectiveConfig = AS_IS,
    **changes: Any,
) -> Trainer:
    learner = LearnerConfig(**{"lr": 1e-3, "threads": 1, "warmup_steps": 0, "micro_batch_tokens": 40, **changes})
    return Trainer(model, learner, objective, correction, 1.0, ranks)


def in_mini_batches(groups: list[TrainGroup], count: int) -> list[TrainGroup]:
    return [replace(group, mini_batch=index % count) for index, group in enumerate(groups)]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.float().clone() for name, value in trainer.weights()}


def furthest(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_many_micro_batches_of_one_row_equal_one_micro_batch(model: Path, ranks: Ranks) -> None:
    found = []
    for budget in (16, 10_000):
        trainer = trainer_of(model, ranks, micro_batch_tokens=budget)
        metrics = [trainer.step(random_groups(7, seed=s), s).metrics for s in range(2)]
        found.append((metrics, weights(trainer)))
    (many, many_weights), (one, one_weights) = found
    assert [m["loss"] for m in many] == pytest.approx([m["loss"] for m in one], abs=1e-6)
    assert [m["grad_norm"] for m in many] == pytest.approx([m["grad_norm"] for m in one], rel=1e-6)
    assert furthest(many_weights, one_weights) < 1e-6


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_zero_stage_takes_the_step_of_stage_0(model: Path, ranks: Ranks, stage: int) -> None:
    results = []
    for number in (0, stage):
        trainer = trainer_of(model, ranks, zero_stage=number)
        metrics = [trainer.step(random_groups(5, seed=s), s).metrics for s in range(2)]
        results.append((metrics, weights(trainer)))
    (base, base_weights), (other, other_weights) = results
    for name in ("loss", "grad_norm", "entropy"):
        assert [m[name] for m in other] == pytest.approx([m[name] for m in base], rel=1e-5)
    assert furthest(base_weights, other_weights) < ROUNDING


def test_a_step_is_scaled_to_the_mean_advantage_of_the_config_over_all_its_mini_batches(
    model: Path, ranks: Ranks
) -> None:
    groups = in_mini_batches(random_groups(6), 2)
    size = sum(g.weight * abs(c.advantage) for g in groups for c in g.completions) / sum(g.eligible for g in groups)
    asked = ObjectiveConfig(scale=0.5)
    scaled = trainer_of(model, ranks, objective=asked, mini_batches=2).step(groups, 0).metrics["loss"]
    by_hand = [replace(group, weight=group.weight * 0.5 / size) for group in groups]
    found = trainer_of(model, ranks, mini_batches=2)
    assert found.step(by_hand, 0).metrics["loss"] == pytest.approx(scaled, rel=1e-6)


def test_each_mini_batch_is_an_optimiser_step_of_its_own(model: Path, ranks: Ranks) -> None:
    groups = in_mini_batches(random_groups(7), 3)
    whole, apart = (trainer_of(model, ranks, mini_batches=n) for n in (3, 1))
    result = whole.step(groups, 0)
    singles = [apart.step([replace(g, mini_batch=0) for g in groups[k::3]], 0).metrics for k in range(3)]
    assert furthest(weights(whole), weights(apart)) == 0
    assert result.applied
    assert result.metrics["loss"] == pytest.approx(np.mean([m["loss"] for m in singles]))
    assert result.metrics["grad_norm"] == max(m["grad_norm"] for m in singles)
    assert result.metrics["trained_tokens"] == sum(m["trained_tokens"] for m in singles)


def test_the_proximal_policy_of_every_mini_batch_is_that_of_the_steps_start(model: Path, ranks: Ranks) -> None:
    correction = CorrectionConfig(kind="decoupled", clip_low=0.02, clip_high=0.02)
    groups = in_mini_batches(random_groups(6), 2)
    whole, apart = (trainer_of(model, ranks, correction, lr=5e-3, mini_batches=n) for n in (2, 1))
    start = whole.logprobs(groups)
    result = whole.step(groups, 0)
    kept = [
        replace(group, mini_batch=0, completions=tuple(
            replace(c, proximal=logprobs) for c, logprobs in zip(group.completions, of_group, strict=True)
        ))
        for group, of_group in zip(groups, start, strict=True)
    ]  # fmt: skip
    apart.step(kept[0::2], 0)
    later = apart.step(kept[1::2], 0).metrics
    assert furthest(weights(whole), weights(apart)) == 0
    # The second optimiser step meets tokens that the first has moved by more than 2 %, and only it does.
    assert later["clip_share_positive"] > 0
    assert 0 < result.metrics["clip_share_positive"] < later["clip_share_positive"]


@pytest.mark.parametrize(
    ("kind", "covariance"), [("tis", "off"), ("decoupled", "off"), ("m2po", "clip"), ("decoupled", "kl")]
)
def test_mini_batches_take_the_same_step_at_any_micro_batch_and_zero_stage(
    model: Path, ranks: Ranks, kind: Any, covariance: Any
) -> None:
    bounds = {"clip": {"cov_low": 0.1, "cov_share": 0.2}, "kl": {"cov_share": 0.2}}.get(covariance, {})
    correction, found = CorrectionConfig(kind=kind), []
    objective = ObjectiveConfig(covariance=covariance, **bounds)
    for budget, stage in ((16, 0), (10_000, 0), (40, 1), (40, 3)):
        changes = {"micro_batch_tokens": budget, "zero_stage": stage, "mini_batches": 2}
        trainer = trainer_of(model, ranks, correction, objective, **changes)
        metrics = trainer.step(in_mini_batches(random_groups(5), 2), 0).metrics
        found.append((metrics, weights(trainer)))
    (first, first_weights), *others = found
    for metrics, moved in others:
        assert metrics == pytest.approx(first, rel=1e-5, abs=1e-6)
        assert furthest(first_weights, moved) < ROUNDING


def test_a_mini_batch_that_is_not_finite_ends_the_step_and_keeps_the_ones_before(model: Path, ranks: Ranks) -> None:
    groups = in_mini_batches(random_groups(4), 2)
    bad = [group if group.mini_batch == 0 else poisoned([group])[0] for group in groups]
    hit, clean = (trainer_of(model, ranks, mini_batches=n) for n in (2, 1))
    result = hit.step(bad, 0)
    clean.step(groups[0::2], 0)
    assert result.applied
    assert result.reason.startswith("in mini-batch 2 ")
    assert furthest(weights(hit), weights(clean)) == 0


def poisoned(groups: list[TrainGroup]) -> list[TrainGroup]:
    first, *rest = groups
    bad = tuple(replace(c, advantage=float("nan")) for c in first.completions)
    return [replace(first, completions=bad), *rest]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_non_finite_step_changes_neither_weights_nor_optimiser(model: Path, ranks: Ranks, stage: int) -> None:
    clean, hit = (trainer_of(model, ranks, zero_stage=stage) for _ in range(2))
    for trainer in (clean, hit):
        assert trainer.step(random_groups(4), 0).applied
    before = weights(hit)
    result = hit.step(poisoned(random_groups(4, seed=9)), 1)
    assert not result.applied
    assert "nan" in result.reason
    assert furthest(before, weights(hit)) == 0
    for trainer in (clean, hit):
        assert trainer.step(random_groups(4, seed=1), 1).applied
    assert furthest(weights(clean), weights(hit)) == 0


def test_bfloat16_trains_with_float32_master_weights(model: Path, ranks: Ranks) -> None:
    trainer = trainer_of(model, ranks, lr=1e-4, dtype="bf16", zero_stage=1)
    start = weights(trainer)
    # Between 1/8 and 1/4 neighbouring bfloat16 numbers are 2^−10 apart: one AdamW step of 1e−4 rounds back, and only
    # master weights add up eight of them.
    large = {name: (value.abs() > 0.13) & (value.abs() < 0.24) for name, value in start.items()}
    moved = []
    for step in range(8):
        trainer.step(random_groups(6), step)
        now = weights(trainer)
        moved.append(float(torch.cat([(now[n] != start[n])[large[n]] for n in start]).float().mean()))
    assert moved[0] == 0
    assert moved[7] > 0.5


def test_warm_up_and_gradient_clipping_do_what_the_config_says(model: Path, ranks: Ranks) -> None:
    trainer = trainer_of(model, ranks, warmup_steps=3, lr=1e-3, betas=(0.0, 0.0))
    moves = []
    for step in range(5):
        before = weights(trainer)
        trainer.step(random_groups(4), step)
        moves.append(furthest(before, weights(trainer)))
    # With betas 0, AdamW moves every weight by lr · g / (|g| + ε) ≈ lr.
    assert moves == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3], rel=0.02)


def test_an_optimiser_that_cannot_be_built_is_refused_with_what_it_needs(
    model: Path, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler, no ninja
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))  # and nothing that was built before
    with pytest.raises(VergeError, match=r"learner\.optimiser is cpu_adam, .* install a C\+\+ compiler and ninja"):
        trainer_of(model, ranks, optimiser="cpu_adam")


@pytest.mark.parametrize("stage", [0, 2])
def test_a_checkpoint_restores_weights_and_optimiser_bit_for_bit(
    model: Path, ranks: Ranks, stage: int, tmp_path: Path
) -> None:
    one = trainer_of(model, ranks, zero_stage=stage)
    one.step(random_groups(4), 0)
    checkpoints = Checkpoints(tmp_path, 2, ranks)
    checkpoints.save(1, one, {"step": 1})
    two = trainer_of(model, ranks, zero_stage=stage)
    assert checkpoints.load(two) == {"step": 1}
    for trainer in (one, two):
        trainer.step(random_groups(4, seed=1), 1)
    assert furthest(weights(one), weights(two)) == 0


@pytest.mark.parametrize("stage", [2, 3])
def test_a_checkpoint_of_another_number_of_ranks_is_refused(
    model: Path, ranks: Ranks, stage: int, tmp_path: Path
) -> None:
    trainer, checkpoints = trainer_of(model, ranks, zero_stage=stage), Checkpoints(tmp_path, 2, ranks)
    trainer.step(random_groups(4), 0)
    checkpoints.save(1, trainer, {"step": 1})
    (part,) = (tmp_path / "step-0000001" / "state").glob("*optim_states.pt")
    part.with_name(part.name.replace("pp_rank_0", "pp_rank_1")).write_bytes(part.read_bytes())  # as of two ranks
    with pytest.raises(VergeError, match=rf"in 2 parts, one a rank, but there are 1 ranks, and ZeRO {stage}"):
        checkpoints.load(trainer)


def test_the_latest_checkpoints_are_kept_and_the_pointer_is_never_at_an_unfinished_one(
    model: Path, ranks: Ranks, tmp_path: Path
) -> None:
    trainer, checkpoints = trainer_of(model, ranks), Checkpoints(tmp_path, 2, ranks)
    assert checkpoints.load(trainer) is None
    for step in (3, 6, 9):
        checkpoints.save(step, trainer, {"step": step})
    (tmp_path / ".step-0000012.tmp").mkdir()  # as left by a kill
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-0000006", "step-0000009"]
    assert checkpoints.load(trainer) == {"step": 9}
    (tmp_path / "latest").write_text("step-0000003")
    with pytest.raises(VergeError, match="not a checkpoint"):
        checkpoints.load(trainer)


def test_a_run_can_be_sent_back_to_a_checkpoint_or_begin_anew_and_loses_none(
    model: Path, ranks: Ranks, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    trainer, checkpoints = trainer_of(model, ranks), Checkpoints(folder, 3, ranks)
    for step in (1, 2, 3):
        trainer.step(random_groups(4, seed=step), step - 1)
        checkpoints.save(step, trainer, {"step": step})
    back = Checkpoints(folder, 3, ranks)
    assert back.load(trainer, str(folder / "step-0000002")) == {"step": 2}
    assert (folder / "latest").read_text() == "step-0000002"
    trainer.step(random_groups(4, seed=9), 2)
    back.save(3, trainer, {"step": 3, "again": True})  # the other step 3 is replaced
    assert Checkpoints(folder, 3, ranks).load(trainer) == {"step": 3, "again": True}
    anew = Checkpoints(folder, 3, ranks)
    assert anew.load(trainer, "never") is None
    assert not folder.exists()
    aside = tmp_path / "checkpoints.1"
    assert anew.load(trainer, str(aside / "step-0000002")) == {"step": 2}
    anew.save(2, trainer, {"step": 2})
    assert (folder / "latest").read_text() == "step-0000002"
    with pytest.raises(VergeError, match=r"--resume is .*nowhere.*not a checkpoint"):
        anew.load(trainer, str(tmp_path / "nowhere"))


def test_a_run_that_went_back_keeps_its_newest_checkpoints_not_its_highest(
    model: Path, ranks: Ranks, tmp_path: Path
) -> None:
    trainer, checkpoints = trainer_of(model, ranks), Checkpoints(tmp_path, 2, ranks)
    for step in (8, 9, 3, 4):
        checkpoints.save(step, trainer, {"step": step})
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-0000003", "step-0000004"]


def test_flex_attention_is_for_gpus_and_refused_on_a_cpu() -> None:
    assert attention_for("auto", torch.device("cpu")) == attention_for("sdpa", torch.device("cuda")) == "sdpa"
    assert (
        attention_for("auto", torch.device("cuda")) == attention_for("flex", torch.device("cuda")) == "flex_attention"
    )
    with pytest.raises(VergeError, match=r"learner\.attention is flex.*set it to auto or sdpa"):
        attention_for("flex", torch.device("cpu"))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VergeError, match=r"has no config\.json"):
        load_model(tmp_path, torch.float32)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(VergeError, match="cannot be loaded"):
        load_model(tmp_path, torch.float32)


def test_a_batch_in_which_nothing_has_an_advantage_is_not_applied(model: Path, ranks: Ranks) -> None:
    groups = [replace(g, completions=()) for g in random_groups(2)]
    result = trainer_of(model, ranks).step(groups, 0)
    assert not result.applied
    assert np.isfinite(result.metrics["loss"])
