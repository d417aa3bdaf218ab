"""Actors, learner and server killed −9 at random; afterwards every count equals the log's."""

from ops.bench_chaos import run
from store.audit import audit
from store.client import Store
from store.server import EmbeddedServer
from tests.store.scripted import Opened, group, play, problems


def test_a_hundred_kills_lose_duplicate_and_miscount_nothing() -> None:
    figures = run(kills=100, fsync="always", seed=1)
    assert all(row["ok"] for row in figures["checks"]), figures["wrong"]
    assert min(figures["killed"].values()) > 0
    assert figures["groups"] > 200


def test_an_audit_finds_each_kind_of_damage(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p", "q"))
        await store.issue(["p", "q", "p"], limit=3)
        for ticket in await store.take("a", 3):
            await store.commit("a", group(ticket, [1, 0, 0], version=2))
        right = await audit(store)
        assert (right.groups, right.pool) == (3, 3)
        assert right.duplicated + right.miscounted + right.unbalanced + right.unreadable == ()
        redis, keys = store.link.redis, store.keys
        await redis.hset(keys.problem("q"), "a", "1.0000001")
        await redis.hincrby(keys.counters, "refunded", 1)
        log = await redis.xrange(keys.groups)
        await redis.xadd(keys.groups, dict(zip(log[0][1][::2], log[0][1][1::2], strict=True)))
        name = await redis.hget(keys.group(log[1][1][1].decode()), "payload")
        await redis.delete(keys.payload(name.decode()))
        wrong = await audit(store)
        assert wrong.duplicated == (log[0][1][1].decode(),)
        assert wrong.miscounted == ("p", "q")
        assert [line.partition(":")[0] for line in wrong.unbalanced] == [
            "committed = log",
            "refunded = refused + poisoned + expired + zero_mass + lost_payload + rolled_back",
        ]
        assert wrong.unreadable == (log[1][1][1].decode(),)

    play(server, body)
