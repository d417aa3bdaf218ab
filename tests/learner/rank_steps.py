"""Run under torchrun by test_trainer: a few steps at each ZeRO stage, this rank's share of the same groups.

argv: model folder, output folder, then the ZeRO stages. Rank 0 writes stage<n>.json (metrics) and .safetensors.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from learner.batches import balance
from learner.config import CorrectionConfig, LearnerConfig, ObjectiveConfig
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


if __name__ == "__main__":
    folder, output, *stages = sys.argv[1:]
    ours = Ranks()
    echoed = ours.broadcast({"text": "α", "number": 0.1} if ours.first else None)
    assert echoed == {"text": "α", "number": 0.1}
    for number in stages:
        train(Path(folder), ours, int(number), output=Path(output))
