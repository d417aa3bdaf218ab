"""Following the learner's weights: wait for a manifest, check what it promises, hand the engine a folder."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store.client import Store
from store.deltas import apply_deltas
from store.errors import VergeError
from store.snapshots import DELTA_FILE, WEIGHTS_FILE, sha256_of
from store.wire import Manifest


class CannotRead(VergeError):
    """A snapshot cannot be had; the weights that were loaded before are as good as they were."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A folder with the whole weights of a version, byte for byte what the learner announced."""

    manifest: Manifest
    folder: Path


class Snapshots:
    """Turns manifests into folders that vLLM can load.

    A full snapshot is read where the learner wrote it. A delta is applied, after those that were missed, to the last
    weights that were checked here, or to the last full ones; what comes out is a folder in `scratch`, one at a time,
    and has the announced checksum. So a broken chain is noticed before the engine is touched.

    `reads_from` is the oldest version that is read, until the next is asked for; the learner keeps all from there on.
    """

    def __init__(self, store: Store, scratch: Path) -> None:
        self._store, self._scratch = store, scratch
        self._have: Whole | None = None
        self.reads_from: int | None = None

    async def newest(self, after_version: int, block_ms: int) -> Whole | None:
        """The newest snapshot above `after_version`, whole and checked, or None if there is none in time.

        A snapshot that vanished between its announcement and our reading is passed over: the learner removes one only
        after it has announced others.

        Raises:
            CannotRead: it is damaged, or cannot be read here.
        """
        self.reads_from = None
        manifest = await self._store.wait_manifest(after_version, block_ms)
        if manifest is None:
            return None
        try:
            self._have = await self._whole(manifest)
        except FileNotFoundError:
            if self._have is not None:
                self._have = None
                return None  # ask again: what is gone may be what it would have been built on
            newest = await self._store.manifest()
            if newest is not None and newest.version > manifest.version:
                return None  # ask again: the newer one is the one to load
            raise CannotRead(
                f"snapshot {manifest.path} of version {manifest.version} cannot be read here; "
                "the learner's weights folder must be visible to every actor under the same path"
            ) from None
        except OSError as error:
            raise CannotRead(
                f"snapshot {manifest.path} cannot be read into {self._scratch}: {error.strerror}"
            ) from None
        return self._have

    async def _whole(self, manifest: Manifest) -> Whole:
        base, deltas = await self._chain(manifest)
        if not deltas:
            return base
        return await asyncio.to_thread(self._rebuild, base, deltas)

    async def _chain(self, manifest: Manifest) -> tuple[Whole, list[Manifest]]:
        """Checked whole weights, and the deltas that lead from them to `manifest`, oldest first."""
        deltas: list[Manifest] = []
        while True:
            self.reads_from = manifest.version
            if self._have is not None and self._have.manifest == manifest:
                return self._have, deltas
            if manifest.format == "full" or (Path(manifest.path) / WEIGHTS_FILE).is_file():
                return await asyncio.to_thread(check_snapshot, manifest), deltas
            deltas.insert(0, manifest)
            earlier = await self._store.manifest(manifest.base)
            if earlier is None:
                raise CannotRead(f"version {manifest.version} is a delta to {manifest.base}, which was never announced")
            manifest = earlier

    def _rebuild(self, base: Whole, deltas: list[Manifest]) -> Whole:
        newest = deltas[-1]
        folder = self._scratch / f"v{newest.version:07d}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for source in base.folder.iterdir():
                if source.is_file() and source.name not in (WEIGHTS_FILE, DELTA_FILE):
                    shutil.copyfile(source, folder / source.name)
            paths = [Path(delta.path) / DELTA_FILE for delta in deltas]
            found = apply_deltas(base.folder / WEIGHTS_FILE, paths, folder / WEIGHTS_FILE)
            if found != newest.sha256:
                raise _not_as_announced(newest, found)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, VergeError):
                raise CannotRead(f"version {newest.version} cannot be rebuilt: {error}") from error
            raise
        for other in self._scratch.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return Whole(newest, folder)


def check_snapshot(manifest: Manifest) -> Whole:
    """A snapshot whose weights are, byte for byte, what the learner announced.

    Raises:
        FileNotFoundError: the snapshot has been removed: a newer one exists, or its folder is not shared.
        CannotRead: the bytes are not those announced.
    """
    folder = Path(manifest.path)
    found = sha256_of(folder / WEIGHTS_FILE)
    if found != manifest.sha256:
        raise _not_as_announced(manifest, found)
    return Whole(manifest, folder)


def _not_as_announced(manifest: Manifest, found: str) -> CannotRead:
    return CannotRead(
        f"snapshot {manifest.path} of version {manifest.version} has sha256 {found[:12]}…, but {manifest.sha256[:12]}… "
        "was announced; it was damaged on the way, so it is not loaded"
    )


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this process among the machine's temporary ones (TMPDIR); those of dead processes are removed."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob("verge-weights-*"):
        with contextlib.suppress(ValueError):
            if not Path("/proc", str(int(left.name.rpartition("-")[2]))).exists():
                shutil.rmtree(left, ignore_errors=True)
    folder = parent / f"verge-weights-{os.getpid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
