"""What the loop asks of whoever takes its steps: the DeepSpeed trainer, or in a simulation one that only takes time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from learner.batches import TrainGroup
from learner.trainer import StepResult


class TakesSteps(Protocol):
    """A trainer as `learner.trainer.Trainer` is one; every method is collective."""

    config: Any
    """Of the model: at least `vocab_size` and `max_position_embeddings`."""

    def step(self, groups: list[TrainGroup], number: int) -> StepResult:
        """Take step `number` (from 0) on this rank's groups; the metrics have at least `entropy`."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and full value of everything that a snapshot holds."""

    def save(self, folder: Path, tag: str) -> None:
        """Write the state to folder/tag."""

    def load(self, folder: Path, tag: str) -> None:
        """Read it back."""
