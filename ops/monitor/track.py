"""Experiment trackers behind one call, in a thread of their own: whatever one of them does, the run goes on."""

import importlib.util
import queue
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ops.config import RunConfig
from ops.monitor.known import of_dynamics
from store.errors import VergeError

_AHEAD = 1000
"""Steps that may wait for a tracker that hangs; later ones are not logged."""
_CLOSE_WITHIN_S = 10.0

Figures = Mapping[str, float]
"""Names as in METRICS.md; those with a label end in it, as in `learner/lag_groups/2`."""


class Tracker(Protocol):
    """Somewhere figures go."""

    def log(self, step: int, figures: Figures) -> None:
        """The figures of one step. After a resume, steps may come again."""

    def close(self) -> None:
        """Write what is held back."""


class TensorBoard:
    """Event files, which `tensorboard --logdir` shows. A step that comes again replaces the one before."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def log(self, step: int, figures: Figures) -> None:
        """As Tracker."""
        if self._writer is None:  # what an earlier process logged of this step and later ones is not shown any more
            self._writer = self._make(str(self._folder), purge_step=step)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """As Tracker."""
        if self._writer is not None:
            self._writer.close()


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
            settings=wandb.Settings(console="off", silent=True, save_code=False),
        )
        self._run.define_metric("*", step_metric="step")  # wandb's own step only ever rises, ours may come again

    def log(self, step: int, figures: Figures) -> None:
        """As Tracker."""
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        """As Tracker."""
        self._run.finish()


class Tracking:
    """A tracker that cannot hold up or stop whoever tells it figures.

    starting ──▶ logging ──▶ closed
        └───────────┴── it raises, or `_AHEAD` steps wait for it ──▶ given up: said once, and the rest is dropped
    """

    def __init__(self, make: Callable[[], Tracker], name: str) -> None:
        self._name = name
        self._waiting: queue.Queue[tuple[int, Figures] | None] = queue.Queue(_AHEAD)
        self._given_up = False
        self._thread = threading.Thread(target=self._work, args=(make,), name="track", daemon=True)
        self._thread.start()

    def log(self, dynamics: Mapping[str, float]) -> None:
        """What the learner recorded of a step. Never waits, never raises."""
        if self._given_up:
            return
        figures = {
            f"{name}/{label}" if label else name: float(value)
            for name, values in of_dynamics(dynamics).items()
            for label, value in values.items()
        }
        self._put((int(dynamics["step"]), figures))

    def close(self) -> None:
        """Let it write what waits, for some seconds."""
        if self._given_up:
            return
        self._put(None)
        self._thread.join(_CLOSE_WITHIN_S)
        if self._thread.is_alive():
            self._give_up(f"it did not end within {_CLOSE_WITHIN_S:g} s")

    def _put(self, told: tuple[int, Figures] | None) -> None:
        try:
            self._waiting.put_nowait(told)
        except queue.Full:
            self._give_up(f"it is {_AHEAD} steps behind")

    def _work(self, make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            while (told := self._waiting.get()) is not None:
                tracker.log(*told)
            tracker.close()
        except BaseException as error:  # a tracker's code is not ours: not even its exits may end the run
            self._give_up(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")

    def _give_up(self, reason: str) -> None:
        if not self._given_up:
            self._given_up = True
            say = f"learner: {self._name} is told no more, because {reason}; the run goes on"
            print(say, file=sys.stderr, flush=True)


def tracking(config: RunConfig) -> Tracking | None:
    """The run's tracker, as [track] says; None where it says none. VergeError where its package is not installed."""
    kind, folder = config.track.kind, config.run_folder / "track"
    if kind == "none":
        return None
    if importlib.util.find_spec(kind) is None:
        raise VergeError(
            f"track.kind is {kind}, which is not installed: pip install 'verge-rl[track]', or set \"none\""
        )
    folder.mkdir(parents=True, exist_ok=True)
    make = partial(WandB, folder, config) if kind == "wandb" else partial(TensorBoard, folder)
    return Tracking(make, kind)
