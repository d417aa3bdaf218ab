"""Commits in flight: those made at the same time share their round trips to the server."""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack
from redis import exceptions

from store.keys import Keys
from store.link import AWAY, Argument, Link
from store.runs import CONSUMERS
from store.wire import RolloutGroup

_BATCH = 64
_BATCH_BYTES = 8 << 20
_FINISH_WITHIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt to commit. Its payload has a name of its own: a rival on the same ticket cannot replace it."""

    group: RolloutGroup
    payload: bytes
    outcome: asyncio.Future[bool]
    payload_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.payload_id = f"{self.group.id}:{secrets.token_hex(8)}"


class Commits:
    """A queue of attempts, sent in batches by one task while there are any.

    waiting ──▶ payloads SET with expiry, one commit.lua ──▶ answered ──▶ payload PERSIST, with the next batch

    Killed before the script, nothing counts and the payload expires. Killed after it, the group counts; its payload
    keeps the expiry if the last step was not reached, and the group is lost only if nobody draws it before.
    """

    def __init__(self, link: Link, keys: Keys, payload_ttl_s: int) -> None:
        self._link = link
        self._keys = keys
        self._payload_ttl_s = payload_ttl_s
        self._waiting: list[_Attempt] = []
        self._settled: list[tuple[str, bool]] = []
        self._sender: asyncio.Task[None] | None = None

    async def commit(self, group: RolloutGroup, payload: bytes) -> bool:
        """Whether this attempt turned the group's ticket into evidence."""
        attempt = _Attempt(group, payload, asyncio.get_running_loop().create_future())
        self._waiting.append(attempt)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())
        return await attempt.outcome

    async def finish(self) -> None:
        """Wait for the last round trip, but not for a server that is away."""
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=_FINISH_WITHIN_S)
            self._sender.cancel()

    async def _send_all(self) -> None:
        batch: list[_Attempt] = []
        try:
            while self._waiting or self._settled:
                batch = self._next_batch()
                settled, self._settled = self._settled, []
                self._answer(batch, await self._outcomes(batch, settled))
                await asyncio.sleep(0)  # those answered may have more to commit: it shares the next round trip
        finally:
            for attempt in (*batch, *self._waiting):  # none, unless this task is cancelled
                attempt.outcome.cancel()

    async def _outcomes(self, batch: Sequence[_Attempt], settled: Sequence[tuple[str, bool]]) -> Sequence[Any]:
        try:
            return list(await self._link.call(partial(self._send, batch, settled)))
        except Exception as error:  # whatever it is, it is raised where the commits are waited for
            if not batch:
                print(f"store: {len(settled)} payloads keep their expiry: {error}", file=sys.stderr, flush=True)
            return [error] * len(batch)

    def _answer(self, batch: Sequence[_Attempt], outcomes: Sequence[Any]) -> None:
        for attempt, outcome in zip(batch, outcomes, strict=True):
            failed = isinstance(outcome, Exception)
            if not failed:
                self._settled.append((self._keys.payload(attempt.payload_id), outcome))
            if attempt.outcome.done():  # the caller was cancelled
                continue
            if failed:
                attempt.outcome.set_exception(outcome)
            else:
                attempt.outcome.set_result(outcome)

    def _next_batch(self) -> list[_Attempt]:
        count = total = 0
        for attempt in self._waiting[:_BATCH]:
            total += len(attempt.payload)
            if count and total > _BATCH_BYTES:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _send(self, batch: Sequence[_Attempt], settled: Sequence[tuple[str, bool]], redis: Any) -> list[Any]:
        """One round trip; per attempt whether it committed, or the exception that says why not."""
        script = self._link.script("commit")
        pipe = redis.pipeline(transaction=False)
        for attempt in batch:
            pipe.set(self._keys.payload(attempt.payload_id), attempt.payload, ex=self._payload_ttl_s)
        if self._link.is_cluster:  # payloads go to other nodes than the script, which must not overtake them
            written = await pipe.execute()
            pipe = redis.pipeline(transaction=False)
        for key, committed in settled:
            # Not pipe.unlink: in redis-py's pipeline of a cluster that is a coroutine, which nobody would await.
            pipe.execute_command("PERSIST" if committed else "UNLINK", key)
        if batch:
            pipe.execute_command(script.command, script.sha, *self._arguments(batch))
        replies = await pipe.execute(raise_on_error=False)
        if not batch:
            return []
        scripted = replies[-1]
        if isinstance(scripted, AWAY):  # one node's; of a single server it is raised
            raise scripted
        if isinstance(scripted, exceptions.NoScriptError):
            await redis.script_load(script.text)
            return await self._send(batch, [], redis)
        if not self._link.is_cluster:
            written = replies[: len(batch)]
        outcomes = [scripted] * len(batch) if isinstance(scripted, Exception) else scripted
        return [self._outcome(*pair) for pair in zip(written, outcomes, strict=True)]

    def _outcome(self, written: Any, scripted: Any) -> bool | Exception:
        for reply in (scripted, written):
            if isinstance(reply, Exception):
                return self._link.in_words(reply)
        return bool(scripted)

    def _arguments(self, batch: Sequence[_Attempt]) -> list[Argument]:
        """The number of keys, the keys, and the arguments of commit.lua."""
        keys = self._keys
        named = [keys.tickets, keys.counters, keys.groups, keys.live]
        facts = []
        for attempt in batch:
            group, evidence = attempt.group, attempt.group.evidence
            versions = [span.version for item in evidence for span in item.spans]
            named += [keys.problem(group.problem_id), keys.group(group.id)]
            facts.append([
                group.id, group.problem_id, len(evidence), group.correct, len(group.completions) - len(evidence),
                min(versions), max(versions), sum(len(item.token_ids) for item in evidence),
                attempt.payload_id, len(attempt.payload),
            ])  # fmt: skip
        return [len(named), *named, CONSUMERS, keys.meta, msgpack.packb(facts)]
