"""Checkpoints: DeepSpeed's state and the learner's, under one name, pointed to only once complete.

checkpoints/step-0000050/{state/…, learner.json}      checkpoints/latest  →  "step-0000050"
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from learner.publish import fsync_path, fsync_tree
from learner.ranks import Ranks
from learner.steps import TakesSteps
from store.errors import VergeError

_POINTER = "latest"
_STATE = "state"


class Checkpoints:
    """The newest `keep` checkpoints of a run, in a folder that all ranks see.

        write to .step-N.tmp ──▶ fsync ──▶ rename to step-N ──▶ point `latest` at it ──▶ remove old ones

    Invariant: `latest` names a complete checkpoint, or does not exist.
    """

    def __init__(self, folder: Path, keep: int, ranks: Ranks) -> None:
        self._folder, self._keep, self._ranks = folder, keep, ranks
        self._current = ""
        """The checkpoint of what the trainer holds now, if `latest` names it."""

    def save(self, step: int, trainer: TakesSteps, state: dict[str, Any]) -> None:
        """Collective. `state` is JSON, and that of rank 0 counts."""
        name = f"step-{step:07d}"
        if name == self._current:
            return  # nothing was trained since, and the one in place must not be touched
        temporary = self._folder / f".{name}.tmp"
        if self._ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._ranks.wait()
        try:
            trainer.save(temporary, _STATE)
            self._ranks.wait()
            if self._ranks.first:
                self._complete(name, temporary, state)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            shutil.rmtree(temporary, ignore_errors=True)
            why = str(error).splitlines()[0]
            raise VergeError(
                f"checkpoint {self._folder / name} cannot be written, is the disk full? ({why}); free space, or lower "
                "learner.keep_checkpoints, and start again: the run resumes"
            ) from error
        self._ranks.wait()
        self._current = name

    def _complete(self, name: str, temporary: Path, state: dict[str, Any]) -> None:
        (temporary / "learner.json").write_text(json.dumps(state))
        fsync_tree(temporary)
        final = self._folder / name
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        fsync_path(self._folder)
        write_atomically(self._folder / _POINTER, name)
        others = [path for path in self._folder.glob("step-*") if path.name != name]
        # By age, not by step: a run that was sent back to an earlier step leaves later ones behind.
        for old in sorted(others, key=_written_s, reverse=True)[self._keep - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self, trainer: TakesSteps, resume: str = "auto") -> dict[str, Any] | None:
        """Restore a checkpoint and return the learner's state; None when the run begins anew. Collective.

        resume: `auto`, the latest one, if there is one; a checkpoint's folder, from which this run then goes on, also
        if it was further; `never`: what is there is set aside.

        Raises:
            VergeError: there is no checkpoint where there should be one, or it cannot be read.
        """
        if self._ranks.first:
            for unfinished in self._folder.glob(".step-*.tmp"):
                shutil.rmtree(unfinished, ignore_errors=True)
            if resume == "never":
                _set_aside(self._folder)
        chosen = "" if resume in ("auto", "never") else resume
        if resume == "auto" and (latest := self._latest()) is not None:
            chosen = str(self._folder / latest)
        source = self._ranks.broadcast(chosen)
        if not source:
            return None
        folder = Path(source).resolve()
        if not (folder / "learner.json").is_file():
            named = f"{self._folder / _POINTER} names" if resume == "auto" else "--resume is"
            raise VergeError(f"{named} {str(source)!r}, which is not a checkpoint; it should be …/checkpoints/step-…")
        trainer.load(folder, _STATE)
        if folder.parent == self._folder.resolve():
            self._current = folder.name
            if self._ranks.first:
                write_atomically(self._folder / _POINTER, folder.name)
        state: dict[str, Any] = json.loads((folder / "learner.json").read_text())
        return state

    def _latest(self) -> str | None:
        pointer = self._folder / _POINTER
        return pointer.read_text().strip() if pointer.is_file() else None


def _written_s(checkpoint: Path) -> float:
    file = checkpoint / "learner.json"
    return file.stat().st_mtime if file.is_file() else 0.0  # half removed, by a learner that died


def _set_aside(folder: Path) -> None:
    """Rename the folder, if it is there, to the first free NAME.N."""
    if not folder.exists():
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(aside)


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's content: a reader sees the old or the new, and after a power cut too."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    fsync_path(path.parent)
