"""Run under torchrun by test_two_ranks: steps on this rank's share of the same groups, then the whole loop.

argv: a JSON file with `model`, `output` and `cases` (rank 0 writes <case>.json, .safetensors there for each of them),
and `url`, `password`, `run` of a run in a store, which the loop trains on.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from learner.batches import balance
from learner.config import (
    AdmissionConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.loop import run_learner
from learner.ranks import Ranks
from learner.trainer import Trainer
from tests.learner.scripted import random_groups

STEPS = 2
CASES: dict[str, dict[str, Any]] = {
    # Every ZeRO stage that communicates in its own way.
    "stage 0": {"zero_stage": 0},
    "stage 2": {"zero_stage": 2},
    "stage 3": {"zero_stage": 3},
    "decoupled": {"mini_batches": 2, "correction": {"kind": "decoupled"}, "objective": {"scale": 0.5}},
    "m2po and clip_cov": {
        "objective": {"covariance": "clip", "cov_low": 0.1, "cov_share": 0.2},
        "correction": {"kind": "m2po"},
        "zero_stage": 3,
    },
}


def train(model: Path, ranks: Ranks, case: str, output: Path) -> list[dict[str, float]]:
    chosen = CASES[case].copy()
    objective = ObjectiveConfig(**{"scale": None} | chosen.pop("objective", {}))
    correction = CorrectionConfig(**chosen.pop("correction", {}))
    learner = LearnerConfig(lr=1e-3, micro_batch_tokens=40, threads=1, warmup_steps=1, **chosen)
    trainer = Trainer(model, learner, objective, correction, 1.0, ranks)
    metrics, minis = [], learner.mini_batches
    for step in range(STEPS):
        # One group fewer than ranks in the second step: a rank without work must not stop the others.
        groups = random_groups(7 if step == 0 else 1, seed=step)
        share = balance([g.tokens for g in groups], ranks.world, minis)[ranks.rank]
        metrics.append(trainer.step([replace(groups[i], mini_batch=i % minis) for i in share], step).metrics)
    weights = {name: value.clone() for name, value in trainer.weights()}
    if ranks.first:
        save_file(weights, output / f"{case}.safetensors")
        (output / f"{case}.json").write_text(json.dumps(metrics))
    return metrics


def settings_of(model: Path, run_dir: Path, url: str, password: str | None, run: str) -> LearnerSettings:
    return LearnerSettings(
        learner=LearnerConfig(steps=4, groups_per_step=5, lr=1e-3, zero_stage=2, threads=1, stall_s=120),
        objective=ObjectiveConfig(advantage="filtered"),
        correction=CorrectionConfig(),
        gating=GatingConfig(),
        draw=DrawConfig(),
        admission=AdmissionConfig(),
        model=model,
        run_dir=run_dir,
        store_url=url,
        store_password=password,
        run=run,
        temperature=1.0,
        group_size=8,
    )


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    ours = Ranks()
    echoed = ours.broadcast({"text": "α", "number": 0.1} if ours.first else None)
    assert echoed == {"text": "α", "number": 0.1}
    output = Path(given["output"])
    for name in given["cases"]:
        train(Path(given["model"]), ours, name, output)
    told: list[Mapping[str, float]] = []
    settings = settings_of(Path(given["model"]), output, given["url"], given["password"], given["run"])
    run_learner(settings, observe=told.append)
    (output / f"told-{ours.rank}.json").write_text(json.dumps(told))
