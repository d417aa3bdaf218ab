"""Groups: evidence by lazy discount, draws, refunds, rollback, and payloads that are not what they should be."""

import itertools

import numpy as np
import pytest

from gating import posterior
from store.client import Store
from store.server import EmbeddedServer
from store.wire import RolloutGroup, encode_group
from tests.store.scripted import META, Opened, group, play, problems, stored_keys

GAMMA = float(META["gamma"])


async def commit(store: Store, problem_id: str, outcomes: list[int], version: int = 0) -> RolloutGroup:
    counters = await store.counters()
    assert await store.issue([problem_id], limit=counters["issued"] - counters["refunded"] + 1) == 1
    (ticket,) = await store.take("actor", 1)
    made = group(ticket, outcomes, version)
    assert await store.commit("actor", made) == "committed"
    return made


def test_lazy_discount_in_lua_is_that_of_gating_in_any_order(server: EmbeddedServer) -> None:
    rng = np.random.default_rng(7)
    facts = [(int(rng.integers(0, 60)), int(rng.integers(0, 5))) for _ in range(5)]

    async def body(store: Store, _: Opened) -> None:
        orders = list(itertools.permutations(facts))[::5]
        await store.add_problems(problems(*(f"order {i}" for i in range(len(orders)))))
        for number, order in enumerate(orders):
            for version, correct in order:
                await commit(store, f"order {number}", [1] * correct + [0] * (4 - correct), version)
        found = await store.problem_facts([f"order {i}" for i in range(len(orders))])
        for order, fact in zip(orders, found, strict=True):
            a, b, v = np.float64(0), np.float64(0), np.float64(0)
            for version, correct in order:
                a, b, v = posterior.discount(a, b, v, correct, 4, version, GAMMA)
            assert fact.version == v
            assert fact.evidence_a == pytest.approx(a, rel=1e-12, abs=0)
            assert fact.evidence_b == pytest.approx(b, rel=1e-12, abs=0)
            assert (fact.attempts, fact.groups) == (20, 5)

    play(server, body)


def test_a_late_group_counts_with_discount(server: EmbeddedServer) -> None:
    """By hand, γ = .9: 2 of 4 at version 5, then 3 of 4 at version 3 → a = 2 + .81·3, b = 2 + .81·1."""

    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await commit(store, "p", [1, 1, 0, 0], version=5)
        await commit(store, "p", [1, 1, 1, 0], version=3)
        found = await store.problem("p")
        assert found is not None
        assert found[1].evidence_a == pytest.approx(4.43, rel=1e-14)
        assert found[1].evidence_b == pytest.approx(2.81, rel=1e-14)
        assert found[1].version == 5

    play(server, body)


def test_first_and_last_success_name_their_groups(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        for outcomes in ([0, 0], [1, 0], [0, 0], [1, 1], [0, 0]):
            await commit(store, "p", outcomes)
        log = [entry.stream_id for entry in await store.entries()]
        found = await store.problem("p")
        assert found is not None
        assert (found[1].first_success, found[1].last_success, found[1].last_seen) == (log[1], log[3], log[4])

    play(server, body)


def test_each_end_of_a_group_refunds_unless_it_was_used(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        made = [await commit(store, "p", [1, 0]) for _ in range(8)]
        ids = [one.id for one in made]
        assert await store.use(ids[:2], step=1) == 2
        assert await store.retire(ids[:2], "used") == 2
        assert await store.retire(ids[2:5], "expired") == 3
        assert await store.retire(ids[5:6], "zero_mass") == 1
        assert await store.retire(ids[6:7], "lost_payload") == 1
        assert await store.retire(ids[:7], "expired") == 0, "a group leaves once"
        with pytest.raises(ValueError, match="reason is 'bored'"):
            await store.retire(ids, "bored")  # type: ignore[arg-type]
        counters = await store.counters()
        assert {name: counters[name] for name in ("used", "expired", "zero_mass", "lost_payload", "refunded")} == {
            "used": 2, "expired": 3, "zero_mass": 1, "lost_payload": 1, "refunded": 5,
        }  # fmt: skip
        assert [entry.id for entry, _, _ in await store.live_groups()] == ids[7:]
        assert len(await stored_keys(store, store.keys.payload("*"))) == 1
        assert counters["live_bytes"] == len(encode_group(made[7]))
        assert len(await store.entries()) == 8, "the log keeps every group"

    play(server, body)


def test_payloads_that_a_dead_retirer_left_are_deleted_by_the_next(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        first, second = [await commit(store, "p", [1, 0]) for _ in range(2)]
        keys = store.keys
        # Killed after the script: the index is gone, the payload is not.
        await store.link.run(
            "retire", [keys.live, keys.counters, keys.used_at, keys.garbage, keys.group(first.id)], ["used", first.id]
        )
        assert len(await stored_keys(store, keys.payload("*"))) == 2
        await store.retire([second.id], "used")
        assert await stored_keys(store, keys.payload("*")) == []
        assert await store.link.redis.exists(keys.garbage) == 0

    play(server, body)


def test_a_draw_is_recorded_once_per_step(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        ids = [(await commit(store, "p", [1, 0])).id for _ in range(3)]
        assert await store.use(ids, step=4) == 3
        assert await store.use(ids, step=4) == 0, "a retry of the same step"
        assert await store.use([*ids[:1], "1-1"], step=5) == 1
        uses = [(entry.id, uses, step) for entry, uses, step in await store.live_groups()]
        assert uses == [(ids[0], 2, 5), (ids[1], 1, 4), (ids[2], 1, 4)]
        assert (await store.counters())["drawn"] == 4

    play(server, body)


def test_rollback_forgets_the_draws_after_the_checkpoint_and_refunds_what_they_used_up(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        ids = [(await commit(store, "p", [1, 0])).id for _ in range(5)]
        await store.use(ids[:3], step=9)
        await store.retire(ids[2:3], "used")
        await store.use(ids[1:2], step=11)
        await store.use(ids[1:2], step=12)
        await store.use(ids[3:], step=13)
        await store.retire(ids[4:], "used")
        assert await store.rollback(10) == 2
        assert [(entry.id, uses, step) for entry, uses, step in await store.live_groups()] == [
            (ids[0], 1, 9),
            (ids[1], 1, 9),
            (ids[3], 0, -1),
        ]
        assert await store.last_steps([ids[0], ids[3], ids[4], "77-0"]) == [9, -1, None, None]
        counters = await store.counters()
        assert (counters["rolled_back"], counters["refunded"]) == (1, 1)
        assert await store.rollback(10) == 0
        assert (await store.counters())["refunded"] == 1
        assert await store.use(ids[3:4], step=11) == 1

    play(server, body)


def test_a_payload_that_is_gone_corrupt_foreign_or_anothers_is_none_and_counted(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p", "q"))
        made = [await commit(store, "p", [1, 0]) for _ in range(5)]
        ids = [one.id for one in made]
        redis, keys = store.link.redis, store.keys
        at = [keys.payload((await redis.hget(keys.group(name), "payload")).decode()) for name in ids]
        await redis.delete(at[0])
        damaged = bytearray(await redis.get(at[1]))
        damaged[len(damaged) // 2] ^= 0x10
        await redis.set(at[1], bytes(damaged))
        await redis.set(at[2], b'{"schema": 3}')
        await redis.set(at[3], await redis.get(at[4]))
        assert (await store.fetch(ids, count=False))[ids[1]] is None
        assert (await store.counters())["undecodable"] == 0
        fetched = await store.fetch([*ids, "77-0"])
        assert [name for name, found in fetched.items() if found is not None] == [ids[4]]
        assert (await store.counters())["undecodable"] == 3
        assert await store.retire(ids[:4], "lost_payload") == 4
        counters = await store.counters()
        assert (counters["lost_payload"], counters["refunded"]) == (4, 4)

    play(server, body)


def test_entries_are_read_incrementally(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        assert await store.entries() == []
        assert await store.last_entry() == "0-0"
        await store.add_problems(problems("p: {ü} 🜁"))
        made = [await commit(store, "p: {ü} 🜁", [1, 0, 0], version=i) for i in range(5)]
        first = await store.entries(count=2)
        rest = await store.entries(first[-1].stream_id)
        assert [entry.id for entry in (*first, *rest)] == [one.id for one in made]
        assert rest[-1].stream_id == await store.last_entry()
        entry = first[1]
        assert (entry.problem_id, entry.G, entry.c, entry.version_min, entry.version_max, entry.tokens) == (
            "p: {ü} 🜁", 3, 1, 1, 1, 9,
        )  # fmt: skip
        assert entry.time_s == pytest.approx(float(entry.stream_id.partition("-")[0]) / 1000)

    play(server, body)
