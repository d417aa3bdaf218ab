"""`verge track`: a tracker is told of every step and evaluation, in a process that the run does not depend on."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ops.beside import Beside
from ops.children import Child
from ops.config import RunConfig
from ops.monitor.known import Values, of_dynamics, of_round
from ops.monitor.trackers import Figures, Tracker, tracker_of
from ops.runfolder import open_config, store_of, write_atomically
from store.client import Store
from store.errors import VergeError
from store.evaluations import Round

FOLDER = "track"
"""Of a run folder: the tracker's files, and how far it has been told."""
_LOOK_EVERY_S = 2.0
_RECENT, _ALL = 100, 100_000
_GRACE_S = 20.0


def track(run: Path, overrides: Sequence[str] = ()) -> None:
    """Tell the run's tracker every step that it has not been told, and those to come, until the run is over.

    Raises:
        VergeError: there is no tracker or no such run, or the tracker failed; told again, it goes on where it was.
    """
    config = open_config(run, overrides)
    with store_of(config) as (url, password):
        folder = config.run_folder / FOLDER
        with _its_faults(config.track.kind):
            tracker = tracker_of(config, folder)
        said = f"track: {config.track.kind} is told of run {config.name}; its files are in {folder}"
        print(said, file=sys.stderr, flush=True)
        try:
            asyncio.run(_follow(config, url, password, Telling(tracker, folder / "told.json")))
        finally:
            with _its_faults(config.track.kind):
                tracker.close()


@contextmanager
def _its_faults(kind: str) -> Iterator[None]:
    """A tracker's code is not ours: whatever it raises, one line says it."""
    try:
        yield
    except VergeError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        raise VergeError(f"{kind} failed: {type(error).__name__}: {lines[0]}") from error


class Telling:
    """What a tracker has been told, also by earlier processes: the key of the last record is kept in a file, and in
    one more the version of the last evaluation."""

    def __init__(self, tracker: Tracker, note: Path) -> None:
        self._tracker, self._note = tracker, note
        self._last: list[float] | None = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
        self._evaluated = note.with_name("evaluated.json")
        noted = self._evaluated.read_text(encoding="utf-8") if self._evaluated.exists() else "-1"
        self.version: int = json.loads(noted)
        """Of the last evaluation that was told."""

    def missed(self, recent: Sequence[Mapping[str, float]]) -> bool:
        """Whether older records than these have not been told, either."""
        return self._last not in [_key(record) for record in recent]

    def tell(self, history: Sequence[Mapping[str, float]]) -> None:
        """Tell what comes after the last record that was told; all, where that is not among them."""
        keys = [_key(record) for record in history]
        first = keys.index(self._last) + 1 if self._last in keys else 0
        for record in history[first:]:
            if "step" in record:
                self._tracker.log(int(record["step"]), figures(record))
        if history[first:]:
            self._last = keys[-1]
            write_atomically(self._note, json.dumps(self._last))

    def evaluations(self, rounds: Sequence[Round], ks: Sequence[int]) -> None:
        """Tell rounds, which come after `version`."""
        for one in rounds:
            self._tracker.evaluated(one.step, _figures(of_round(one, ks)))
            self.version = one.version
            write_atomically(self._evaluated, json.dumps(self.version))


def figures(dynamics: Mapping[str, float]) -> Figures:
    """What the learner recorded of a step, by the names of METRICS.md."""
    return _figures(of_dynamics(dynamics))


def _figures(metrics: Values) -> Figures:
    return {
        f"{name}/{label}" if label else name: float(value)
        for name, values in metrics.items()
        for label, value in values.items()
    }


def _key(record: Mapping[str, float]) -> list[float]:
    """What tells a record from others: a step that was taken again has another duration."""
    return [record.get(name, -1.0) for name in ("step", "step_s", "wait_s")]


async def _follow(config: RunConfig, url: str, password: str | None, telling: Telling) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    store = await Store.connect(url, config.name, password, patience_s=config.store.patience_s)
    try:
        over = False
        while not over:
            over = stopping.is_set() or (await store.phase())[0] != "running"  # and then all that there is, once more
            recent = await store.dynamics_history(_RECENT)
            if len(recent) == _RECENT and telling.missed(recent):
                recent = await store.dynamics_history(_ALL)
            rounds = await store.rounds(telling.version)
            with _its_faults(config.track.kind):
                telling.tell(recent)
                telling.evaluations(rounds, config.evaluation.k)
            if not over:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), _LOOK_EVERY_S)
    finally:
        await store.close()


def tracker_beside(config: RunConfig, folder: Path, say: Callable[[str], None]) -> Beside:
    """`verge track` as a child of `verge up`, off with track.kind = "none"."""
    child = Child("track", ["track", str(folder)], folder / "logs" / "track.log")
    return Beside("the tracker", child if config.track.kind != "none" else None, _GRACE_S, say)
