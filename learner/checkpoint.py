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

    def save(self, step: int, trainer: TakesSteps, state: dict[str, Any]) -> None:
        """Collective. `state` is JSON, and that of rank 0 counts."""
        name = f"step-{step:07d}"
        if self._ranks.broadcast(self._latest() == name):
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

    def _complete(self, name: str, temporary: Path, state: dict[str, Any]) -> None:
        (temporary / "learner.json").write_text(json.dumps(state))
        fsync_tree(temporary)
        final = self._folder / name
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        fsync_path(self._folder)
        write_atomically(self._folder / _POINTER, name)
        others = sorted((path for path in self._folder.glob("step-*") if path.name != name), reverse=True)
        for old in others[self._keep - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self, trainer: TakesSteps) -> dict[str, Any] | None:
        """Restore the latest checkpoint and return the learner's state; None when there is none. Collective."""
        name = self._ranks.broadcast(self._latest())
        if name is None:
            return None
        folder = self._folder / name
        if not (folder / "learner.json").is_file():
            raise VergeError(f"{self._folder / _POINTER} names {name!r}, which is not a checkpoint there")
        trainer.load(folder, _STATE)
        state: dict[str, Any] = json.loads((folder / "learner.json").read_text())
        return state

    def _latest(self) -> str | None:
        pointer = self._folder / _POINTER
        return pointer.read_text().strip() if pointer.is_file() else None


def write_atomically(path: Path, text: str) -> None:
    """Replace the file's content: a reader sees the old or the new, and after a power cut too."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    fsync_path(path.parent)
