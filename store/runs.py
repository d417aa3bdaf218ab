"""A run: what it was opened with, whether it has ended, its counters, who works on it, and its one learner."""

import json
import time
from collections.abc import Mapping
from typing import Literal, get_args

from store.errors import VergeError
from store.keys import Keys
from store.link import Link

STORE_SCHEMA = "1"
CONSUMERS = "actors"
"""The consumer group of the tickets stream."""

Phase = Literal["running", "done", "failed"]

COUNTERS = (
    "issued", "refunded", "committed", "duplicate", "refused", "poisoned", "drawn", "used", "expired", "zero_mass",
    "lost_payload", "rolled_back", "errors", "undecodable", "live_bytes", "payload_bytes",
)  # fmt: skip
_REQUIRED = ("fingerprint", "gamma", "group_size")
_CONFIG = "config:"


class Runs:
    """The facts about the run itself."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def open_run(self, meta: Mapping[str, str]) -> None:
        """Create the run, or check that it is the same run.

        Args:
            meta: `fingerprint` of the config, `gamma` and `group_size` as decimal text, and, so that a difference
                can be named, the fields that the fingerprint covers as `config:<name>`. All of these are compared;
                further fields are kept as they were when the run was created.

        Raises:
            VergeError: a field is missing or gamma is not in (0, 1], or the stored run has another value of one.
        """
        missing = [field for field in _REQUIRED if field not in meta]
        if missing:
            raise VergeError(f"run {self._keys.run!r} cannot be opened without {', '.join(missing)}")
        if not 0.0 < float(meta["gamma"]) <= 1.0:
            raise VergeError(f"gamma is {meta['gamma']} but must be in (0, 1]: 1 never forgets")
        wanted = {"schema": STORE_SCHEMA, **meta}
        named = [field for field in wanted if field.startswith(_CONFIG)]
        compared = ["schema", "gamma", "group_size", *named, "fingerprint"]
        ordered = [*compared, *(field for field in wanted if field not in compared)]
        texts = [text for field in ordered for text in (field, wanted[field])]
        differs = await self._link.run(
            "open", [self._keys.meta, self._keys.tickets], [CONSUMERS, len(compared), *texts]
        )
        if differs:
            field, stored = (value.decode() for value in differs)
            raise VergeError(
                f"run {self._keys.run!r} was opened with {field.removeprefix(_CONFIG)} = {stored!r}, "
                f"but this process has {wanted[field]!r}; set it back, or give this run another name"
            )

    async def meta(self) -> dict[str, str]:
        """What the run was opened with; {} when it does not exist."""
        found = await self._link.call(lambda redis: redis.hgetall(self._keys.meta))
        return {field.decode(): value.decode() for field, value in found.items()}

    async def set_limits(self, max_groups: int, max_payload_bytes: int) -> None:
        """Bound the pool: `issue` holds tickets back when what they yield would not fit. Nothing is ever dropped."""
        limits = {"max_groups": max_groups, "max_payload_bytes": max_payload_bytes}
        await self._link.call(lambda redis: redis.hset(self._keys.meta, mapping=limits))

    async def set_phase(self, phase: Phase, reason: str = "") -> None:
        """Say whether the run goes on: its end is an event, never inferred."""
        if phase not in get_args(Phase):
            raise ValueError(f"phase is {phase!r}, must be one of {', '.join(get_args(Phase))}")
        await self._link.call(lambda redis: redis.hset(self._keys.meta, mapping={"phase": phase, "reason": reason}))

    async def phase(self) -> tuple[str, str]:
        """("running" | "done" | "failed", reason). A run that nobody has opened yet counts as running."""
        phase, reason = await self._link.call(lambda redis: redis.hmget(self._keys.meta, "phase", "reason"))
        return (phase or b"running").decode(), (reason or b"").decode()

    async def counters(self) -> dict[str, int]:
        """Every counter of the run, 0 where nothing happened. They change with the state that they count."""
        found = await self._link.call(lambda redis: redis.hgetall(self._keys.counters))
        return dict.fromkeys(COUNTERS, 0) | {field.decode(): int(value) for field, value in found.items()}

    async def beat(self, actor: str, facts: Mapping[str, object]) -> None:
        """Replace an actor's heartbeat; `time_s` (the actor's clock, Unix seconds) is added."""
        text = json.dumps({"time_s": time.time(), **facts})
        await self._link.call(lambda redis: redis.hset(self._keys.actors, actor, text))

    async def heartbeat(self, actor: str) -> dict[str, object] | None:
        """The last heartbeat of one actor; None when it never sent one."""
        text = await self._link.call(lambda redis: redis.hget(self._keys.actors, actor))
        return None if text is None else json.loads(text)

    async def actors(self) -> dict[str, dict[str, object]]:
        """The last heartbeat of every actor that ever sent one."""
        found = await self._link.call(lambda redis: redis.hgetall(self._keys.actors))
        return {actor.decode(): json.loads(text) for actor, text in found.items()}

    async def acquire_learner(self, token: str, ttl_s: float) -> bool:
        """Become the run's one learner for `ttl_s` seconds; False while another is."""
        ttl_ms = int(1000 * ttl_s)
        if await self._link.call(lambda redis: redis.set(self._keys.learner, token, nx=True, px=ttl_ms)):
            return True
        return await self.renew_learner(token, ttl_s)

    async def renew_learner(self, token: str, ttl_s: float) -> bool:
        """Stay the learner for `ttl_s` seconds more; False when that was lost."""
        return bool(await self._link.run("hold", [self._keys.learner], [token, int(1000 * ttl_s)]))

    async def release_learner(self, token: str) -> None:
        """Stop being the learner, if one is."""
        await self._link.run("hold", [self._keys.learner], [token, 0])
