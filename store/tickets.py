"""Tickets: permission to roll a problem out once, from its issue to the one end it has."""

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from store.commits import Commits
from store.errors import CodecError
from store.keys import Keys
from store.link import Argument, Link
from store.runs import CONSUMERS
from store.wire import RolloutGroup, Ticket, encode_group

REFUSED_LOG = 10_000
"""Refusals that are kept with their reason."""

_GIVEN_BACK_MS = 365 * 24 * 3600 * 1000
_LOOK_AGAIN_MS = 500

_HELD = {
    "groups": "the pool and the open tickets are at store.max_groups",
    "bytes": "the pool and what the open tickets will bring are at store.max_payload_mib",
}

Committed = Literal["committed", "duplicate", "refused"]


class Tickets:
    """The life of a ticket.

    issued ──take──▶ leased ──commit──▶ committed          (a group, in the pool)
      ▲                │ ├────refuse──▶ refused            (refunded)
      │                │ └──too many deliveries─▶ poisoned (refunded)
      └──lease over,───┘
         give_back

    Invariant: the tickets stream has an entry exactly while its ticket has not ended, so that each ends once, whoever
    tries and however often: issued = committed + refused + poisoned + entries.
    """

    def __init__(self, link: Link, keys: Keys, lease_s: float, payload_ttl_s: int, max_deliveries: int) -> None:
        self._link = link
        self._keys = keys
        self._lease_ms = int(1000 * lease_s)
        self._commits = Commits(link, keys, payload_ttl_s)
        self._max_deliveries = max_deliveries
        self._cursor = "0-0"
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    async def finish(self) -> None:
        """Let commits in flight come to their end; for the client that is about to close."""
        await self._commits.finish()

    async def issue(self, problem_ids: Sequence[str], limit: int) -> int:
        """Add tickets for the first problems while issued − refunded < limit; returns how many were added.

        Fewer, too, while the pool and the open tickets are at the limits of `set_limits`.

        Raises:
            VergeError: the run does not have one of the problems; nothing is issued then.
        """
        if not problem_ids:
            return 0
        added, _, _ = await self._issue(problem_ids, limit)
        return int(added)

    async def room(self, limit: int) -> tuple[int, str]:
        """(tickets that `issue` would add now, which limit of the pool holds them back: "" when none does)."""
        _, room, nearest = await self._issue((), limit)
        return int(room), "" if room else _HELD.get(nearest.decode(), "")

    async def _issue(self, problem_ids: Sequence[str], limit: int) -> Any:
        keys = self._keys
        names = [keys.tickets, keys.counters, keys.issued, keys.live, *map(keys.problem, problem_ids)]
        return await self._link.run("issue", names, [secrets.token_hex(8), limit, keys.meta, *problem_ids])

    async def take(self, consumer: str, count: int, block_ms: int = 0) -> list[Ticket]:
        """Lease up to `count` tickets: first those whose lease ran out, then new ones.

        Waits up to `block_ms` milliseconds for the first. A ticket that this consumer took through this object and
        has neither ended nor given back is renewed, never returned again.
        """
        deadline = time.monotonic() + block_ms / 1000
        while True:
            tickets, newest = await self._take_now(consumer, count)
            left_ms = int(1000 * (deadline - time.monotonic()))
            if tickets or count <= 0 or left_ms <= 0:
                return tickets
            # Waiting reads past the newest ticket without taking it: a cancelled wait leaves no lease behind. A lease
            # that runs out wakes nobody, so look again now and then.
            await self._wait(newest, min(left_ms, _LOOK_AGAIN_MS))

    async def _take_now(self, consumer: str, count: int) -> tuple[list[Ticket], str]:
        if count <= 0:
            return [], ""
        held, keys = self._held[consumer], self._keys
        arguments: list[Argument] = [
            CONSUMERS, consumer, count, self._lease_ms, self._cursor, self._max_deliveries, REFUSED_LOG, *held,
        ]  # fmt: skip
        cursor, found, newest = await self._link.run("take", [keys.tickets, keys.counters, keys.refused], arguments)
        self._cursor = cursor.decode()
        tickets = [Ticket(ticket_id.decode(), problem.decode(), times) for ticket_id, problem, times in found]
        held.update(ticket.id for ticket in tickets)
        return tickets, newest.decode()

    async def _wait(self, newest: str, block_ms: int) -> None:
        await self._link.call(lambda redis: redis.xread({self._keys.tickets: newest}, count=1, block=block_ms))

    async def renew(self, consumer: str, tickets: Iterable[Ticket]) -> int:
        """Make the leases last a whole `lease_s` again; returns how many the consumer still had."""
        return await self._set_idle(consumer, [ticket.id for ticket in tickets], 0)

    async def give_back(self, consumer: str, tickets: Iterable[Ticket]) -> int:
        """Let others take the tickets at once; returns how many the consumer still had."""
        ids = [ticket.id for ticket in tickets]
        kept = await self._set_idle(consumer, ids, _GIVEN_BACK_MS)
        self._held[consumer].difference_update(ids)
        return kept

    async def _set_idle(self, consumer: str, ids: Sequence[str], idle_ms: int) -> int:
        if not ids:
            return 0
        return int(await self._link.run("renew", [self._keys.tickets], [CONSUMERS, consumer, idle_ms, *ids]))

    async def commit(self, consumer: str, group: RolloutGroup) -> Committed:
        """Turn a ticket into evidence and its group into the pool's, once.

        Returns:
            "duplicate" when the ticket had ended already; "refused" when no completion is evidence.

        Raises:
            CodecError: the group breaks a rule of store/wire.py, or no version span says which weights wrote it.
        """
        payload = encode_group(group)
        if group.size == 0:
            await self.refuse(consumer, Ticket(group.id, group.problem_id), "every completion ended in an error",
                              group.errors)  # fmt: skip
            return "refused"
        if group.tokens == 0:
            raise CodecError(f"rollout group {group.id!r} has no token, so no version: nothing can be learnt from it")
        committed = await self._commits.commit(group, payload)
        self._held[consumer].discard(group.id)
        return "committed" if committed else "duplicate"

    async def refuse(self, consumer: str, ticket: Ticket, reason: str, errors: int = 0) -> bool:
        """End a ticket without evidence and refund it; False when it had ended already.

        Args:
            reason: kept, with the problem, in a log of the last refusals.
            errors: completions that the verifier or the engine failed on, added to the counter of that name.
        """
        keys = self._keys
        arguments: list[Argument] = [CONSUMERS, ticket.id, consumer, reason[:500], errors, REFUSED_LOG]
        ended = await self._link.run("refuse", [keys.tickets, keys.counters, keys.refused], arguments)
        self._held[consumer].discard(ticket.id)
        return bool(ended)

    async def refusals(self, count: int = 100) -> list[dict[str, str]]:
        """The last refusals, newest first: ticket, problem, consumer, reason, errors."""
        found = await self._link.call(lambda redis: redis.xrevrange(self._keys.refused, count=count))
        return [texts(fields) for _, fields in found]

    async def open_tickets(self) -> tuple[int, int]:
        """(tickets that have not ended, of them leased)."""

        async def ask(redis: Any) -> Any:
            pipe = redis.pipeline(transaction=False)
            pipe.xlen(self._keys.tickets)
            pipe.xpending(self._keys.tickets, CONSUMERS)
            return await pipe.execute()

        length, pending = await self._link.call(ask)
        return int(length), int(pending["pending"])


def texts(fields: Sequence[bytes]) -> dict[str, str]:
    """The fields of a stream entry, as sent, as a dict."""
    return {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
