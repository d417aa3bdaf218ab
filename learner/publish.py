"""Weights out: a Hugging Face folder per version, complete before anyone hears of it, written meanwhile."""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save, save_file

from learner.store_thread import StoreThread
from store.deltas import encode_delta
from store.errors import VergeError
from store.snapshots import DELTA_FILE, LIVE_BEAT_S, STARTING_S, WEIGHTS_FILE, sha256_of
from store.wire import Manifest

_METADATA = {"format": "pt"}
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


class Publisher:
    """Publishes versions in order, one at a time, from a thread.

        copy (blocks the step) ──▶ write to .tmp ──▶ fsync ──▶ rename ──▶ announce ──▶ remove old ones

    With `full_every` above 1 a version is written as what changed since the one before, and in full every so often,
    when an actor asks for it, when it is the first of this process, and when there is no smaller delta.

    Invariants: what is announced is complete on disk, and a delta has all before it on disk back to a full one; a full
    one is hashed from the disk; versions only rise; `announced_step` is the step whose weights the actors can load.
    """

    def __init__(
        self, line: StoreThread, folder: Path, base: Path, keep: int, dtype: torch.dtype, full_every: int = 1
    ) -> None:
        self._line, self._folder, self._base = line, folder, base
        self._keep, self._dtype, self._full_every = keep, dtype, full_every
        self._thread = ThreadPoolExecutor(1, "publish")
        self._pending: Future[None] | None = None
        self._previous: tuple[Manifest, bytes] | None = None
        """The newest snapshot and its weights file; nothing while every snapshot is full."""
        self._since_full = 0
        self.announced_step = 0
        self.blocked_s = 0.0
        """Seconds for which the last `begin` held up training."""
        self.size_ratio = 1.0
        """Bytes of the last snapshot over those of a full one."""

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
        with _disk_full_in_words(version, folder):
            manifest = self._write(version, folder, step, weights)
        self._line.call(self._line.store.announce(manifest))
        self.announced_step = step
        self._remove_old(version)

    def _write(self, version: int, folder: Path, step: int, weights: Mapping[str, torch.Tensor]) -> Manifest:
        if self._full_every == 1:
            write_snapshot(folder, weights, self._base)
            return manifest_of(version, folder, step)
        data, previous = save(dict(weights), _METADATA), self._previous
        self._since_full += 1
        manifest, wants_full = None, any(beat.get("wants_full") for beat in self._live_beats())
        if previous is not None and self._since_full < self._full_every and not wants_full:
            manifest = write_delta_snapshot(folder, version, step, data, *previous)
        if manifest is None:
            write_snapshot(folder, weights, self._base)
            manifest = manifest_of(version, folder, step)
            self._since_full = 0
        self._previous = manifest, data
        self.size_ratio = manifest.bytes / len(data)
        return manifest

    def unchanged(self, step: int) -> None:
        """Step `step` left the weights as they were: those announced are its own, and tickets are paced by it."""
        self.finish()
        self.announced_step = step

    def complete(self) -> None:
        """Make the newest snapshot a whole Hugging Face folder, if it is a delta; after `finish`."""
        if self._previous is not None and self._previous[0].format == "delta":
            manifest, data = self._previous
            folder = Path(manifest.path)
            temporary = folder / f".{WEIGHTS_FILE}.tmp"
            with _disk_full_in_words(manifest.version, folder):
                _copy_beside_weights(self._base, folder, str(self._dtype).removeprefix("torch."))
                temporary.write_bytes(data)
                fsync_tree(folder)
                temporary.rename(folder / WEIGHTS_FILE)
                fsync_path(folder)

    def _live_beats(self) -> list[dict[str, object]]:
        now = time.time()

        def lives(beat: dict[str, object]) -> bool:
            silent_s = STARTING_S if beat.get("engine") == "starting" else LIVE_BEAT_S
            return now - float(str(beat.get("time_s", now))) < silent_s

        return [beat for beat in self._line.call(self._line.store.actors()).values() if lives(beat)]

    def _remove_old(self, newest: int) -> None:
        """Keep the newest, what live actors have or read, and all that those which are deltas begin from."""
        beats = self._live_beats()
        in_use = {int(str(beat["version"])) for beat in beats if "version" in beat}
        reading = [int(str(beat["reads_from"])) for beat in beats if "reads_from" in beat]
        folders = {int(folder.name[1:]): folder for folder in self._folder.glob("v[0-9]*")}
        oldest = min([newest - self._keep + 1, *reading])
        full = [version for version, folder in folders.items() if (folder / WEIGHTS_FILE).is_file()]
        first = max((version for version in full if version <= oldest), default=oldest)
        for version, folder in folders.items():
            if version < first and version not in in_use:
                shutil.rmtree(folder, ignore_errors=True)


def write_snapshot(folder: Path, weights: Mapping[str, torch.Tensor], base: Path) -> None:
    """Write `weights`, with `base`'s config and tokenizer, as the Hugging Face folder `folder`, all or nothing.

    A folder of that name left by a learner that died is replaced. OSError when the disk refuses.
    """
    with _whole_folder(folder) as temporary:
        dtype = next(str(w.dtype).removeprefix("torch.") for w in weights.values() if w.is_floating_point())
        _copy_beside_weights(base, temporary, dtype)
        save_file(dict(weights), temporary / WEIGHTS_FILE, _METADATA)


def write_delta_snapshot(
    folder: Path, version: int, step: int, data: bytes, base: Manifest, base_data: bytes
) -> Manifest | None:
    """Write what changed from one weights file's bytes to another's as the snapshot `folder`, all or nothing.

    Returns:
        The manifest, or None where no delta is smaller than the weights.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    delta = encode_delta(base_data, base.sha256, data, sha256)
    if delta is None:
        return None
    with _whole_folder(folder) as temporary:
        (temporary / DELTA_FILE).write_bytes(delta)
    return Manifest(version, str(folder.absolute()), sha256, len(delta), step, time.time(), "delta", base.version)


@contextlib.contextmanager
def _disk_full_in_words(version: int, folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        why = getattr(error, "strerror", None) or error
        raise VergeError(
            f"version {version} cannot be written to {folder}: {why}; free space there, "
            "or lower learner.keep_snapshots, and start again: the run resumes"
        ) from error


@contextlib.contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder, which becomes `folder` once it is written and durable, or vanishes."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        fsync_tree(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        fsync_path(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _copy_beside_weights(base: Path, folder: Path, dtype: str) -> None:
    """All of a model's folder but its weights, with the dtype of the new ones in its config."""
    for source in base.iterdir():
        is_weights = source.suffix in _WEIGHT_SUFFIXES or source.name.endswith(".index.json")
        if source.is_file() and not is_weights and source.name != "config.json":
            shutil.copyfile(source, folder / source.name)
    config = json.loads((base / "config.json").read_text())
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2))


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
