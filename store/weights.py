"""What the learner tells the run: published weights, and the dynamics it read from training."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from store.errors import VergeError
from store.keys import Keys
from store.link import MAX_BLOCK_MS, Link
from store.wire import Manifest

DYNAMICS_LOG = 100_000
"""Steps whose dynamics are kept."""


class Weights:
    """Manifests, one per version; versions only rise."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def announce(self, manifest: Manifest) -> None:
        """Tell the actors of a snapshot that is complete on disk. Saying it again is harmless.

        Raises:
            VergeError: this version or a newer one is announced with other weights.
        """
        keys = self._keys
        current = await self._link.run(
            "announce",
            [keys.weights, keys.weights_log],
            [*astuple(manifest)[:5], repr(manifest.time_s), *astuple(manifest)[6:]],
        )
        if current:
            raise VergeError(
                f"version {manifest.version} (sha256 {manifest.sha256[:12]}…) cannot be announced: the run has version "
                f"{int(current[0])} (sha256 {current[1].decode()[:12]}…); publish as version {int(current[0]) + 1}"
            )

    async def manifest(self, version: int | None = None) -> Manifest | None:
        """The manifest of a version, or the newest; None when there is none."""
        if version is None:
            newest = await self._link.call(lambda redis: redis.xrevrange(self._keys.weights_log, count=1))
            return _manifest(newest[0][1]) if newest else None
        entry = f"{version}-1"
        found = await self._link.call(lambda redis: redis.xrange(self._keys.weights_log, min=entry, max=entry))
        return _manifest(found[0][1]) if found else None

    async def wait_manifest(self, after_version: int, block_ms: int) -> Manifest | None:
        """The newest manifest as soon as its version is above `after_version`; None after `block_ms` milliseconds."""
        deadline = time.monotonic() + block_ms / 1000
        after = f"{after_version}-1" if after_version >= 0 else "0-0"
        while True:
            newest = await self.manifest()
            if newest is not None and newest.version > after_version:
                return newest
            left_ms = int(1000 * (deadline - time.monotonic()))
            if left_ms <= 0:
                return None
            await self._wait(after, min(left_ms, MAX_BLOCK_MS))

    async def _wait(self, after: str, block_ms: int) -> None:
        await self._link.call(lambda redis: redis.xread({self._keys.weights_log: after}, count=1, block=block_ms))

    async def manifests(self) -> list[Manifest]:
        """Every manifest, oldest first."""
        found = await self._link.call(lambda redis: redis.xrange(self._keys.weights_log))
        return [_manifest(fields) for _, fields in found]

    async def record_dynamics(self, dynamics: Mapping[str, float]) -> None:
        """Replace the current dynamics and append them to their history. NaN is kept as NaN."""
        texts = {name: repr(float(value)) for name, value in dynamics.items()}

        async def write(redis: Any) -> None:
            pipe = redis.pipeline(transaction=True)
            pipe.delete(self._keys.dynamics)  # a name that this step does not have must not keep an old value
            pipe.hset(self._keys.dynamics, mapping=texts)
            pipe.xadd(self._keys.dynamics_log, texts, maxlen=DYNAMICS_LOG, approximate=True)
            await pipe.execute()

        await self._link.call(write)

    async def dynamics(self) -> dict[str, float]:
        """The last value of every dynamic; {} before the first step."""
        found = await self._link.call(lambda redis: redis.hgetall(self._keys.dynamics))
        return {name.decode(): float(value) for name, value in found.items()}

    async def dynamics_history(self, count: int) -> list[dict[str, float]]:
        """The last `count` records, oldest first."""
        found = await self._link.call(lambda redis: redis.xrevrange(self._keys.dynamics_log, count=count))
        return [{name: float(value) for name, value in _pairs(fields)} for _, fields in reversed(found)]

    async def dynamics_times(self, count: int) -> list[float]:
        """When each of the last `count` records was made, oldest first: Unix seconds of the store's clock."""
        found = await self._link.call(lambda redis: redis.xrevrange(self._keys.dynamics_log, count=count))
        return [int(entry.partition(b"-")[0]) / 1000 for entry, _ in reversed(found)]


def _pairs(fields: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(name.decode(), value) for name, value in zip(fields[::2], fields[1::2], strict=True)]


def _manifest(fields: Sequence[bytes]) -> Manifest:
    values: dict[str, Any] = dict(_pairs(fields))
    return Manifest(
        int(values["version"]), values["path"].decode(), values["sha256"].decode(), int(values["bytes"]),
        int(values["step"]), float(values["time_s"]),
        # A run that was begun before there were deltas has manifests without them.
        values.get("format", b"full").decode(), int(values.get("base", -1)),
    )  # fmt: skip
