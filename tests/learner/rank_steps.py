"""Run under torchrun by test_two_ranks: steps on this rank's share of the same groups, then the whole loop.

argv: a JSON file with `model`, `output` and `stages` (rank 0 writes stage<n>.json, .safetensors there for each ZeRO
stage), and `url`, `password`, `run` of a run in a store, which the loop trains on.
"""

import json
import sys
from pathlib import Path

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


def train(
    model: Path, ranks: Ranks, stage: int, budget: int = 40, output: Path | None = None
) -> list[dict[str, float]]:
    learner = LearnerConfig(zero_stage=stage, lr=1e-3, micro_batch_tokens=budget, threads=1, warmup_steps=1)
    trainer = Trainer(model, learner, ObjectiveConfig(), CorrectionConfig(), 1.0, ranks)
    metrics = []
    for step in range(STEPS):
        # One group fewer than ranks in the second step: a rank without work must not stop the others.
        groups = random_groups(7 if step == 0 else 1, seed=step)
        share = balance([g.tokens for g in groups], ranks.world)[ranks.rank]
        metrics.append(trainer.step([groups[i] for i in share], step).metrics)
    weights = {name: value.clone() for name, value in trainer.weights()}
    if ranks.first and output is not None:
        save_file(weights, output / f"stage{stage}.safetensors")
        (output / f"stage{stage}.json").write_text(json.dumps(metrics))
    return metrics


def settings_of(model: Path, run_dir: Path, url: str, password: str | None, run: str) -> LearnerSettings:
    return LearnerSettings(
        learner=LearnerConfig(steps=4, groups_per_step=5, lr=1e-3, zero_stage=2, threads=1, stall_s=120),
        objective=ObjectiveConfig(),
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
    for number in given["stages"]:
        train(Path(given["model"]), ours, number, output=output)
    run_learner(settings_of(Path(given["model"]), output, given["url"], given["password"], given["run"]))
