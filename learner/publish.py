"""Weights out: a Hugging Face folder per version, complete before anyone hears of it, written meanwhile."""

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from learner.store_thread import StoreThread
from store.errors import VergeError
from store.snapshots import WEIGHTS_FILE, sha256_of
from store.wire import Manifest

LIVE_BEAT_S = 120.0
"""An actor whose last heartbeat is older does not keep a snapshot on disk."""
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


class Publisher:
    """Publishes versions in order, one at a time, from a thread.

        copy (blocks the step) ──▶ write to .tmp ──▶ fsync ──▶ rename ──▶ sha256 ──▶ announce ──▶ remove old ones

    Invariants: what is announced is complete on disk and hashed from the disk; versions only rise; `announced` is the
    step whose weights the actors can load.
    """

    def __init__(self, line: StoreThread, folder: Path, base: Path, keep: int, dtype: torch.dtype) -> None:
        self._line, self._folder, self._base = line, folder, base
        self._keep, self._dtype = keep, dtype
        self._thread = ThreadPoolExecutor(1, "publish")
        self._pending: Future[None] | None = None
        self.announced_step = 0
        self.blocked_s = 0.0
        """Seconds for which the last `begin` held up training."""

    def announce_base(self) -> None:
        """Announce the base model as version 0."""
        self._line.call(self._line.store.announce(manifest_of(0, self._base, 0)))

    def begin(self, version: int, step: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy the weights to memory and publish them in the background; waits for the previous version first."""
        started = time.perf_counter()
        self.finish()
        copy = {name: value.to("cpu", self._target(value), copy=True).contiguous() for name, value in weights}
        self.blocked_s = time.perf_counter() - started
        self._pending = self._thread.submit(self._publish, version, step, copy)

    def poll(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait until everything begun is announced."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        """End the thread; what it is writing is completed."""
        self._thread.shutdown()

    def _target(self, value: torch.Tensor) -> torch.dtype:
        return self._dtype if value.is_floating_point() else value.dtype

    def _publish(self, version: int, step: int, weights: Mapping[str, torch.Tensor]) -> None:
        folder = self._folder / f"v{version:07d}"
        try:
            write_snapshot(folder, weights, self._base)
        except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
            why = getattr(error, "strerror", None) or error
            raise VergeError(
                f"version {version} cannot be written to {folder}: {why}; free space there, "
                "or lower learner.keep_snapshots, and start again: the run resumes"
            ) from error
        self._line.call(self._line.store.announce(manifest_of(version, folder, step)))
        self.announced_step = step
        self._remove_old(version)

    def _remove_old(self, newest: int) -> None:
        beats = self._line.call(self._line.store.actors())
        now = time.time()
        in_use = {
            int(str(beat["version"]))
            for beat in beats.values()
            if "version" in beat and now - float(str(beat.get("time_s", now))) < LIVE_BEAT_S
        }
        for folder in self._folder.glob("v[0-9]*"):
            version = int(folder.name[1:])
            if version <= newest - self._keep and version not in in_use:
                shutil.rmtree(folder, ignore_errors=True)


def write_snapshot(folder: Path, weights: Mapping[str, torch.Tensor], base: Path) -> None:
    """Write `weights`, with `base`'s config and tokenizer, as the Hugging Face folder `folder`, all or nothing.

    A folder of that name left by a learner that died is replaced. OSError when the disk refuses.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for source in base.iterdir():
            is_weights = source.suffix in _WEIGHT_SUFFIXES or source.name.endswith(".index.json")
            if source.is_file() and not is_weights and source.name != "config.json":
                shutil.copyfile(source, temporary / source.name)
        config = json.loads((base / "config.json").read_text())
        dtype = next(str(w.dtype).removeprefix("torch.") for w in weights.values() if w.is_floating_point())
        config.pop("torch_dtype", None)
        (temporary / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2))
        save_file(dict(weights), temporary / WEIGHTS_FILE, {"format": "pt"})
        fsync_tree(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        fsync_path(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def manifest_of(version: int, folder: Path, step: int) -> Manifest:
    """The manifest of a complete snapshot, hashed from disk."""
    weights = folder / WEIGHTS_FILE
    return Manifest(version, str(folder.absolute()), sha256_of(weights), weights.stat().st_size, step, time.time())


def fsync_tree(folder: Path) -> None:
    """Make every file and folder below `folder`, and itself, durable."""
    for path in sorted(folder.rglob("*"), reverse=True):
        fsync_path(path)
    fsync_path(folder)


def fsync_path(path: Path) -> None:
    """Make one file's content, or one folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
