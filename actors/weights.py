"""Following the learner's weights: wait for a manifest, check what it promises, hand it to the engine."""

import asyncio
from pathlib import Path

from store.client import Store
from store.errors import VergeError
from store.snapshots import WEIGHTS_FILE, sha256_of
from store.wire import Manifest


def check_snapshot(manifest: Manifest) -> Path:
    """The folder of a snapshot whose weights are, byte for byte, what the learner announced.

    Raises:
        FileNotFoundError: the snapshot has been removed: a newer one exists, or its folder is not shared.
        VergeError: the bytes are not those announced.
    """
    folder = Path(manifest.path)
    found = sha256_of(folder / WEIGHTS_FILE)
    if found != manifest.sha256:
        raise VergeError(
            f"snapshot {folder} of version {manifest.version} has sha256 {found[:12]}…, but {manifest.sha256[:12]}… "
            "was announced; it was damaged on the way, so it is not loaded"
        )
    return folder


async def newest_snapshot(store: Store, after_version: int, block_ms: int) -> tuple[Manifest, Path] | None:
    """The newest announced snapshot above `after_version` that can be read, or None if there is none in time.

    A snapshot that vanished between its announcement and our reading is passed over: the learner removes one only
    after it has announced others.
    """
    manifest = await store.wait_manifest(after_version, block_ms)
    if manifest is None:
        return None
    try:
        return manifest, await asyncio.to_thread(check_snapshot, manifest)
    except FileNotFoundError:
        newest = await store.manifest()
        if newest is not None and newest.version > manifest.version:
            return None  # ask again: the newer one is the one to load
        raise VergeError(
            f"snapshot {manifest.path} of version {manifest.version} cannot be read here; "
            "the learner's weights folder must be visible to every actor under the same path"
        ) from None
