"""Bounded memory: limits that hold tickets back and drop nothing, and a pool that leaves nothing behind."""

import asyncio
import os
import random
from typing import Any

import pytest

from store.client import Store
from store.server import EmbeddedServer
from store.wire import encode_group
from tests.store.scripted import Opened, group, play, problems

PLENTY = 10**6


async def commit_all(store: Store, tokens: int = 3) -> list[str]:
    """Commit every open ticket."""
    tickets = await store.take("a", PLENTY)
    made = [group(ticket, [1, 0], tokens=tokens) for ticket in tickets]
    assert set(await asyncio.gather(*(store.commit("a", one) for one in made))) <= {"committed"}
    return [ticket.id for ticket in tickets]


def test_tickets_wait_while_pool_and_open_tickets_are_at_the_limit(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        assert await store.room(PLENTY) == (PLENTY, "")
        await store.set_limits(5, 1 << 40)
        assert await store.room(PLENTY) == (5, "")
        assert await store.issue(["p"] * 8, PLENTY) == 5
        held = "the pool and the open tickets are at store.max_groups"
        assert await store.room(PLENTY) == (0, held)
        ids = await commit_all(store)
        assert await store.room(PLENTY) == (0, held), "a ticket that became a group takes the same place"
        assert await store.issue(["p"], PLENTY) == 0
        assert all((await store.fetch(ids)).values()), "nothing was dropped to make room"
        await store.retire(ids[:2], "used")
        assert await store.issue(["p"] * 8, PLENTY) == 2
        for ticket in await store.take("a", 1):
            await store.refuse("a", ticket, "no")
        assert await store.room(PLENTY) == (1, "")
        assert await store.room(6) == (0, ""), "the admission limit, which is not the pool's"

    play(server, body)


def test_bytes_are_bounded_by_what_the_open_tickets_will_bring(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 2, 2)
        ids = await commit_all(store, tokens=1000)
        size = (await store.counters())["live_bytes"] // 2
        assert size == len(encode_group((await store.fetch(ids))[ids[0]]))  # type: ignore[arg-type]
        await store.set_limits(PLENTY, 10 * size)
        assert await store.room(PLENTY) == (8, "")
        assert await store.issue(["p"] * 20, PLENTY) == 8
        held = "the pool and what the open tickets will bring are at store.max_payload_mib"
        assert await store.room(PLENTY) == (0, held)
        ids += await commit_all(store, tokens=1000)
        assert (await store.counters())["live_bytes"] <= 10 * size
        assert await store.room(PLENTY) == (0, held)
        await store.retire(ids, "used")
        assert await store.room(PLENTY) == (10, ""), "the size of a group is known from those that have left"

    play(server, body)


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_holds_whatever_happens_in_which_order(server: EmbeddedServer, seed: int) -> None:
    async def body(store: Store, opened: Opened) -> None:
        chance = random.Random(seed)
        await store.add_problems(problems("p"))
        most = 7
        await store.set_limits(most, 1 << 40)
        other = await opened.connect()
        for _ in range(60):
            await asyncio.gather(*(one.issue(["p"] * chance.randint(1, 5), PLENTY) for one in (store, other)))
            for ticket in await store.take("a", chance.randint(0, 4)):
                await (store.refuse("a", ticket, "") if chance.random() < 0.2 else
                       store.commit("a", group(ticket, [1, 0])))  # fmt: skip
            live = [entry.id for entry, _, _ in await store.live_groups()]
            assert len(live) + (await store.open_tickets())[0] <= most
            await store.retire(chance.sample(live, chance.randint(0, min(3, len(live)))), "used")
        assert (await store.counters())["committed"] > 20, "and the run moves on"

    play(server, body)


@pytest.mark.parametrize("server", ["redis", "valkey"], indirect=True)
def test_groups_in_and_out_leave_memory_flat_but_for_their_line_in_the_log(server: EmbeddedServer) -> None:
    """VERGE_GROUPS=100000 for the whole of it."""
    rounds, batch = 10, int(os.environ.get("VERGE_GROUPS", "3000")) // 10

    async def body(store: Store, _: Opened) -> None:
        redis, keys = store.link.redis, store.keys
        ids = [f"p{i}" for i in range(50)]
        await store.add_problems(problems(*ids))
        logs, kept, whole = [], [], []
        for step in range(1, rounds + 1):
            for start in range(0, batch, 1000):
                await store.issue([ids[i % 50] for i in range(start, min(batch, start + 1000))], PLENTY)
            while tickets := await store.take("a", 1000):
                await asyncio.gather(*(store.commit("a", group(ticket, [1, 0], tokens=64)) for ticket in tickets))
                await store.use([ticket.id for ticket in tickets], step)
                await store.retire([ticket.id for ticket in tickets], "used")
            names = [name for name in await redis.keys(f"*{keys.run}*") if name != keys.groups.encode()]
            logs.append(await redis.memory_usage(keys.groups, samples=0))
            kept.append(sum([await redis.memory_usage(name, samples=0) for name in names]))
            whole.append(await _settled(redis))
        assert kept[-1] - kept[2] <= 64 * rounds, "only the count of groups used up per step, and longer numbers"
        assert (logs[-1] - logs[2]) / ((rounds - 3) * batch) < 100, "bytes a group, in the log (measured: 45 to 51)"
        assert whole[-1] - whole[2] - (logs[-1] - logs[2]) < 0.2 * batch * 700, "a fifth of one round's payloads"

    play(server, body)


async def _settled(redis: Any) -> int:
    """used_memory once what was unlinked is free."""
    while (await redis.info("memory"))["lazyfree_pending_objects"]:
        await asyncio.sleep(0.01)
    return int((await redis.info("memory"))["used_memory"])
