"""`verge bench publish`: how much smaller a delta is than the weights, and what making and applying one costs."""

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from learner.batches import TrainCompletion, TrainGroup
from learner.config import CorrectionConfig, LearnerConfig, ObjectiveConfig
from learner.ranks import Ranks
from learner.trainer import Trainer
from ops.figures import check
from store.deltas import apply_deltas, encode_delta

LR = 1e-6
STEPS = 3
RATIO = 0.2


def run(model: Path) -> dict[str, Any]:
    """Train a model for a few steps in bf16 and publish each.

    Returns:
        `checks`: those of `publish_figures`.
    """
    return {"checks": publish_figures(model), "model": str(model), "lr": LR}


def publish_figures(model: Path) -> list[dict[str, Any]]:
    """Train `STEPS` steps of bf16 AdamW at lr 1e-6, from the first on, whose updates are the largest there are.

    Returns:
        delta_size_ratio: bytes of the largest delta over those of the weights; delta_over_hash_time: seconds to make
        the slowest, over those to take the SHA-256 that a full snapshot takes, too; apply_over_hash_time: seconds to
        rebuild and check all of them as one chain, over the same.
    """
    trainer = Trainer(
        model,
        LearnerConfig(lr=LR, warmup_steps=0, dtype="bf16", zero_stage=1),
        ObjectiveConfig(),
        CorrectionConfig(),
        1.0,
        Ranks(),
    )
    data = _weights_file(trainer)
    digest, hash_s = _hashed(data)
    sizes, making_s, deltas = [], [], []
    with tempfile.TemporaryDirectory(prefix="verge-bench-") as folder:
        base = Path(folder, "base")
        base.write_bytes(data)
        for step in range(STEPS):
            trainer.step([_group(step, trainer.config.vocab_size)], step)
            after = _weights_file(trainer)
            after_digest, _ = _hashed(after)
            began = time.perf_counter()
            delta = encode_delta(data, digest, after, after_digest)
            making_s.append(time.perf_counter() - began)
            sizes.append(len(delta or after) / len(after))
            if delta is not None:
                deltas.append(Path(folder, str(step)))
                deltas[-1].write_bytes(delta)
            data, digest = after, after_digest
        began = time.perf_counter()
        apply_deltas(base, deltas, Path(folder, "out"))
        applying_s = time.perf_counter() - began
    return [
        check("delta_size_ratio", max(sizes), RATIO, max(sizes) <= RATIO),
        check("delta_over_hash_time", max(making_s) / hash_s, 5.0, max(making_s) <= 5 * hash_s),
        check("apply_over_hash_time", applying_s / hash_s, 10.0, applying_s <= 10 * hash_s),
    ]


def _weights_file(trainer: Trainer) -> bytes:
    return save({name: value.to(torch.bfloat16).clone() for name, value in trainer.weights()}, {"format": "pt"})


def _hashed(data: bytes) -> tuple[str, float]:
    began = time.perf_counter()
    digest = hashlib.sha256(data).hexdigest()
    return digest, time.perf_counter() - began


def _group(seed: int, vocabulary: int) -> TrainGroup:
    """Random tokens: a gradient for every weight."""
    rng, length = np.random.default_rng(seed), 16
    completions = tuple(
        TrainCompletion(rng.integers(0, vocabulary, length), np.full(length, np.log(1 / vocabulary), np.float32), sign)
        for sign in (1.0, -1.0)
    )
    return TrainGroup(str(seed), rng.integers(0, vocabulary, length), completions, 1.0, 2, 2 * length)
