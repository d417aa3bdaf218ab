"""Experiment trackers behind one interface."""

import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ops.config import RunConfig
from store.errors import VergeError

Figures = Mapping[str, float]
"""Names as in METRICS.md; those with a label end in it, as in `learner/lag_groups/2`."""


class Tracker(Protocol):
    """Somewhere figures go."""

    def log(self, step: int, figures: Figures) -> None:
        """The figures of one step. After a resume, steps may come again."""

    def evaluated(self, step: int, figures: Figures) -> None:
        """Those of an evaluation of the weights that a step made, which may be over after later steps were told."""

    def close(self) -> None:
        """Write what is held back."""


class TensorBoard:
    """Event files, which `tensorboard --logdir` shows. A step that comes again takes the place of the one before.

    Evaluations are beside them in a folder of their own, where none is taken back by that.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make = SummaryWriter
        self._folder = folder
        self._writer: Any = None
        self._evaluations: Any = None
        self._last = -1

    def log(self, step: int, figures: Figures) -> None:
        """As Tracker."""
        if self._writer is None or step <= self._last:  # what was logged of this step and later ones is not shown again
            if self._writer is not None:
                self._writer.close()
            self._writer = self._make(str(self._folder), purge_step=step)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
        self._last = step

    def evaluated(self, step: int, figures: Figures) -> None:
        """As Tracker."""
        if self._evaluations is None:
            self._evaluations = self._make(str(self._folder / "evaluations"))
        for name, value in figures.items():
            self._evaluations.add_scalar(name, value, step)
        self._evaluations.flush()

    def close(self) -> None:
        """As Tracker."""
        for writer in (self._writer, self._evaluations):
            if writer is not None:
                writer.close()


class WandB:
    """Weights & Biases. The run has an id in `track/wandb-id`, so that it is continued where this run is."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        note = folder / "wandb-id"
        if not note.exists():
            note.write_text(secrets.token_hex(8), encoding="utf-8")
        self._run = wandb.init(
            project=config.track.project,
            name=config.name,
            id=note.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(folder),
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(console="off", save_code=False),
        )
        self._run.define_metric("*", step_metric="step")  # wandb's own step only ever rises, ours may come again

    def log(self, step: int, figures: Figures) -> None:
        """As Tracker."""
        self._run.log({"step": step, **figures})

    evaluated = log

    def close(self) -> None:
        """As Tracker."""
        self._run.finish()


def tracker_of(config: RunConfig, folder: Path) -> Tracker:
    """The tracker that [track] names, which keeps its files in `folder`.

    Raises:
        VergeError: it names none, or one that is not installed.
    """
    kind = config.track.kind
    if kind == "none":
        raise VergeError('track.kind is "none": there is nobody to tell; --set track.kind=tensorboard, or wandb')
    if importlib.util.find_spec(kind) is None:
        raise VergeError(f"track.kind is {kind}, which is not installed: pip install 'verge-rl[track]'")
    folder.mkdir(parents=True, exist_ok=True)
    return WandB(folder, config) if kind == "wandb" else TensorBoard(folder)
