"""The mirror equals the store, whatever happened between two syncs."""

import numpy as np
import pytest

from gating import posterior
from store.client import Store
from store.errors import VergeError
from store.mirror import Mirror
from store.server import EmbeddedServer
from tests.store.scripted import Opened, group, play, problems, stored_keys

NAMES = ("attempts", "successes", "evidence_a", "evidence_b", "version", "groups")


async def roll_out(store: Store, rng: np.random.Generator, ids: list[str], count: int) -> None:
    """Commit `count` groups of random problems, sizes, outcomes and versions."""
    chosen = [ids[i] for i in rng.integers(0, len(ids), count)]
    await store.issue(chosen, limit=10**9)
    for ticket in await store.take("actor", count):
        outcomes = rng.integers(0, 2, rng.integers(1, 6)).tolist()
        await store.commit("actor", group(ticket, outcomes, int(rng.integers(0, 20))))


async def check(mirror: Mirror, store: Store) -> None:
    assert mirror.ids == await store.problem_ids()
    assert [mirror.index[name] for name in mirror.ids] == list(range(len(mirror.ids)))
    facts = await store.problem_facts(mirror.ids)
    for name in NAMES:
        want = np.array([getattr(fact, name) for fact in facts])
        np.testing.assert_allclose(getattr(mirror, name), want, rtol=1e-12, atol=0, err_msg=name)
    pool = [(entry, uses, step) for entry, uses, step in await store.live_groups()]
    assert [(group.entry, group.uses, group.last_step) for group in mirror.pool.values()] == pool


def test_a_mirror_follows_commits_new_problems_and_a_cold_start(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        rng = np.random.default_rng(11)
        ids = [f"p{i}" for i in range(30)]
        await store.add_problems(problems(*ids[:20]))
        early = Mirror(store)
        assert await early.sync() == []
        for known in (20, 20, 25, 30):
            await store.add_problems(problems(*ids[:known]))
            await roll_out(store, rng, ids[:known], 40)
            fresh = await early.sync()
            assert len(fresh) == 40
            assert await early.sync() == []
            await check(early, store)
        late = Mirror(store)
        assert await late.sync() == []
        await check(late, store)
        a, b = late.evidence_at(25)
        want = posterior.evidence_at(early.evidence_a, early.evidence_b, early.version, 25, 0.9)
        np.testing.assert_allclose((a, b), want, rtol=1e-12)

    play(server, body)


def test_groups_committed_while_a_mirror_loads_count_once(server: EmbeddedServer) -> None:
    """The cursor is taken first, then problems and pool are read: play a commit into each gap."""

    async def body(store: Store, opened: Opened) -> None:
        rng = np.random.default_rng(5)
        ids = ["p", "q"]
        await store.add_problems(problems(*ids))
        await roll_out(store, rng, ids, 10)
        other = await opened.connect()
        mirror = Mirror(store)
        last_entry, live_groups, facts = store.last_entry, store.live_groups, store.problem_table

        def then_commit(read):  # type: ignore[no-untyped-def]
            first = iter((True,))

            async def reading(*arguments):  # type: ignore[no-untyped-def]
                result = await read(*arguments)
                if next(first, False):
                    await roll_out(other, rng, ids, 5)
                return result

            return reading

        store.last_entry, store.live_groups, store.problem_table = map(then_commit, (last_entry, live_groups, facts))
        fresh = await mirror.sync()
        store.last_entry, store.live_groups, store.problem_table = last_entry, live_groups, facts
        assert len(fresh) == 5, "ten were in the pool that was loaded"
        assert len(mirror.pool) == 25
        await check(mirror, store)

    play(server, body)


def test_a_mirror_keeps_uses_and_removals_as_the_store_does(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        mirror = Mirror(store)
        await roll_out(store, np.random.default_rng(1), ["p"], 6)
        await mirror.sync()
        ids = list(mirror.pool)
        for step in (3, 3, 4):
            await store.use(ids[:2], step)
            mirror.used(ids[:2], step)
        await store.retire(ids[1:3], "used")
        mirror.remove(ids[1:3])
        await check(mirror, store)
        assert (mirror.pool[ids[0]].uses, mirror.pool[ids[0]].last_step) == (2, 4)
        await mirror.sync()
        assert ids[1] not in mirror.pool

    play(server, body)


def test_a_mirror_without_a_pool_answers_about_problems(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await roll_out(store, np.random.default_rng(1), ["p"], 6)
        mirror = Mirror(store, pool=False)
        await mirror.sync()
        await roll_out(store, np.random.default_rng(2), ["p"], 6)
        assert len(await mirror.sync()) == 6
        assert mirror.pool == {}
        assert mirror.groups.tolist() == [12]
        nowhere = await Store.connect(server.url, "nowhere", server.password)
        with pytest.raises(VergeError, match="does not exist"):
            await Mirror(nowhere).sync()
        await nowhere.close()

    play(server, body)


def test_a_mirror_loads_anew_when_the_store_lost_what_it_had_seen(server: EmbeddedServer) -> None:
    """As after a power cut under `everysec`: the log ends before the mirror's cursor."""

    async def body(store: Store, _: Opened) -> None:
        rng = np.random.default_rng(3)
        await store.add_problems(problems("p", "q"))
        await roll_out(store, rng, ["p", "q"], 5)
        mirror = Mirror(store)
        await mirror.sync()
        dump = {key: await store.link.redis.dump(key) for key in await stored_keys(store, f"*{store.keys.run}*")}
        await roll_out(store, rng, ["p", "q"], 5)
        await mirror.sync()
        assert len(mirror.pool) == 10
        await store.link.redis.delete(*await stored_keys(store, f"*{store.keys.run}*"))
        for key, value in dump.items():
            await store.link.redis.restore(key, 0, value)
        await roll_out(store, rng, ["p", "q"], 2)
        await mirror.sync()
        assert len(mirror.pool) == 7
        await check(mirror, store)

    play(server, body)
