"""Rollout groups: the log of all, the pool of those that can still be drawn, and how they leave it."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

from store.errors import CodecError
from store.keys import Keys
from store.link import Link
from store.problems import chunks, rows
from store.wire import GroupEntry, RolloutGroup, decode_group

Reason = Literal["used", "expired", "zero_mass", "lost_payload"]

_INDEX = ("entry", "problem", "G", "c", "version_min", "version_max", "tokens", "uses", "last_step")
_FETCH_CHUNK = 64
_CHUNK = 1000


class Groups:
    """The life of a group.

    committed ──▶ live ──use (step)──▶ live ──retire──▶ used
                   │  ▲───rollback (step)──┘       └──▶ expired, zero_mass, lost_payload (refunded)

    Invariants: committed = live + used + expired + zero_mass + lost_payload, and
    refunded = refused + poisoned + expired + zero_mass + lost_payload + rolled_back.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def entries(self, after: str = "0-0", count: int = 10_000, inclusive: bool = False) -> list[GroupEntry]:
        """Up to `count` entries of the groups log after (or from) the stream id `after`, oldest first."""
        start = after if inclusive else f"({after}"
        found = await self._link.call(lambda redis: redis.xrange(self._keys.groups, min=start, count=count))
        return [entry_of(stream_id, fields) for stream_id, fields in found]

    async def last_entry(self) -> str:
        """The stream id of the newest entry of the groups log, "0-0" when there is none."""
        newest = await self._link.call(lambda redis: redis.xrevrange(self._keys.groups, count=1))
        return newest[0][0].decode() if newest else "0-0"

    async def live_groups(self) -> list[tuple[GroupEntry, int, int]]:
        """The pool, oldest first: (entry, uses, last step, −1 before the first use)."""
        ids = [name.decode() for name in await self._link.call(lambda redis: redis.smembers(self._keys.live))]
        found = await rows(self._link, [self._keys.group(group_id) for group_id in ids], _INDEX)
        pool = []
        for group_id, (entry, problem, size, correct, low, high, tokens, uses, last) in zip(ids, found, strict=True):
            if entry:  # else it left between the two reads
                index = _entry(group_id, entry.decode(), problem, size, correct, low, high, tokens)
                pool.append((index, int(uses), int(last) if last else -1))
        pool.sort(key=lambda item: stream_order(item[0].stream_id))
        return pool

    async def last_steps(self, ids: Sequence[str]) -> list[int | None]:
        """For each group the last step that drew it, −1 before the first; None once it has left the pool."""
        found = await rows(self._link, [self._keys.group(group_id) for group_id in ids], ("entry", "last_step"))
        return [(int(last) if last else -1) if entry else None for entry, last in found]

    async def fetch(self, ids: Sequence[str], *, count: bool = True) -> dict[str, RolloutGroup | None]:
        """The payloads of groups. None: it is gone, or not what the index says; retire the group as `lost_payload`.

        `count` False: a reader, who may not count those that cannot be decoded.
        """
        found: dict[str, RolloutGroup | None] = {}
        for chunk in chunks(ids, _FETCH_CHUNK):
            index = await rows(self._link, [self._keys.group(group_id) for group_id in chunk],
                               ("payload", "problem", "G", "c"))  # fmt: skip
            payloads = await self._link.call(partial(self._payloads, index))
            undecodable = 0
            for group_id, row, payload in zip(chunk, index, payloads, strict=True):
                found[group_id] = None
                if payload is None:
                    continue
                try:
                    found[group_id] = _expected(decode_group(payload), group_id, row)
                except CodecError as error:
                    undecodable += 1
                    print(f"store: payload of group {group_id} is lost: {error}", file=sys.stderr, flush=True)
            if undecodable and count:
                await self._link.call(partial(self._count_undecodable, undecodable))
        return found

    async def _payloads(self, index: Sequence[Sequence[Any]], redis: Any) -> list[bytes | None]:
        pipe = redis.pipeline(transaction=False)
        for row in index:
            pipe.get(self._keys.payload(row[0].decode() if row[0] else ""))
        return list(await pipe.execute())

    async def _count_undecodable(self, count: int, redis: Any) -> None:
        await redis.hincrby(self._keys.counters, "undecodable", count)

    async def use(self, ids: Sequence[str], step: int) -> int:
        """Record that groups were drawn at `step`; returns how many it was news of."""
        recorded = 0
        for chunk in chunks(ids, _CHUNK):
            keys = [self._keys.counters, *map(self._keys.group, chunk)]
            recorded += await self._link.run("use", keys, [step])
        return recorded

    async def retire(self, ids: Sequence[str], reason: Reason) -> int:
        """Let groups leave the pool and delete their payloads; returns how many were still there."""
        if reason not in get_args(Reason):
            raise ValueError(f"reason is {reason!r}, must be one of {', '.join(get_args(Reason))}")
        left = 0
        keys = self._keys
        for chunk in chunks(ids, _CHUNK):
            count, garbage = await self._link.run(
                "retire",
                [keys.live, keys.counters, keys.used_at, keys.garbage, *map(keys.group, chunk)],
                [reason, *chunk],
            )
            left += count
            if garbage:
                await self._link.call(partial(self._delete, garbage))
        return left

    async def _delete(self, garbage: Sequence[bytes], redis: Any) -> None:
        pipe = redis.pipeline(transaction=False)
        for payload_id in garbage:
            pipe.execute_command("UNLINK", self._keys.payload(payload_id.decode()))
        await pipe.execute()
        await redis.srem(self._keys.garbage, *garbage)

    async def rollback(self, step: int) -> int:
        """Forget the draws after `step`, the step of the checkpoint that the learner resumes from.

        Returns:
            How many groups of the pool lost a use. Groups that had left as used are refunded.
        """
        keys = self._keys
        return int(await self._link.run("rollback", [keys.live, keys.counters, keys.used_at], [step, keys.group("")]))


def stream_order(stream_id: str) -> tuple[int, int]:
    """A stream id as a tuple that sorts in time."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence)


def entry_of(stream_id: bytes, fields: Sequence[bytes]) -> GroupEntry:
    """An entry of the groups log, its fields in the order of commit.lua."""
    return _entry(fields[1].decode(), stream_id.decode(), *fields[3::2])


def _entry(group_id: str, stream_id: str, problem: bytes, *numbers: bytes) -> GroupEntry:
    size, correct, low, high, tokens = map(int, numbers)
    seconds = int(stream_id.partition("-")[0]) / 1000
    return GroupEntry(group_id, stream_id, problem.decode(), size, correct, low, high, tokens, seconds)


def _expected(group: RolloutGroup, group_id: str, row: Sequence[bytes]) -> RolloutGroup:
    facts = (group_id, row[1].decode(), int(row[2]), int(row[3]))
    if (group.id, group.problem_id, group.size, group.correct) != facts:
        raise CodecError(f"payload is of group {group.id!r}, {group.correct}/{group.size}; the index says {facts}")
    return group
