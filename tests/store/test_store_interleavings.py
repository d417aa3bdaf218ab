"""Random interleavings: actors that die anywhere, redeliveries, a learner that resumes; every count stays exact."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from gating import posterior
from store.client import Store
from store.server import EmbeddedServer
from store.wire import Ticket, Verdict, encode_group
from tests.store.scripted import META, Opened, group, play, problems

ROUNDS = 12
STEPS_PER_ROUND = 60
IDS = [f"p{i}" for i in range(6)]
EVENTS = {"take": 4, "commit": 5, "die": 2, "refuse": 1, "late": 1, "give": 1, "renew": 1, "draw": 1, "resume": 1}


@dataclass
class Actor:
    """A consumer with the tickets it believes it holds; a kill makes it forget them."""

    name: str
    held: list[Ticket] = field(default_factory=list)


async def act(chance: random.Random, store: Store, actors: list[Actor], state: dict[str, int]) -> None:
    """One random event."""
    actor = chance.choice(actors)
    held = actor.held
    match chance.choice(
        ["take"] * 4 + ["commit"] * 5 + ["die"] * 2 + ["refuse", "late", "give", "renew", "draw", "resume"]
    ):
        case "take":
            held.extend(await store.take(actor.name, chance.randint(1, 3)))
        case "commit" if held:
            ticket = held.pop(chance.randrange(len(held)))
            scripted = [chance.choice([0, 1, Verdict.ERROR]) for _ in range(4)]
            await store.commit(actor.name, group(ticket, scripted, version=chance.randint(0, 9)))
        case "die" if held:
            if chance.random() < 0.5:  # between the payload and the script
                orphan = store.keys.payload(f"{held[0].id}:{chance.getrandbits(32):x}")
                await store.link.redis.set(orphan, encode_group(group(held[0], [1, 1, 1, 1])), ex=60)
            held.clear()
        case "refuse" if held:
            await store.refuse(actor.name, held.pop(), "scripted", errors=chance.randint(0, 4))
        case "late" if held:  # commits and, not knowing it, commits again
            ticket = held[0]
            for _ in range(2):
                await store.commit(
                    actor.name, group(ticket, [1, 0, chance.randint(0, 1), 0], version=chance.randint(0, 9))
                )
        case "give" if held:
            await store.give_back(actor.name, [held.pop()])
        case "renew":
            await store.renew(actor.name, held)
        case "draw":
            pool = [entry.id for entry, _, _ in await store.live_groups()]
            drawn = chance.sample(pool, min(len(pool), chance.randint(0, 4)))
            state["step"] += 1
            await store.use(drawn, state["step"])
            found = await store.fetch(drawn)
            assert all(found.values()), "every group of the pool has its payload"
            await store.retire(drawn, chance.choice(["used", "used", "expired", "zero_mass", "lost_payload"]))
            await store.issue(chance.choices(IDS, k=6), limit=8 * (state["step"] + 3))
        case "resume":
            state["step"] = max(0, state["step"] - chance.randint(0, 3))
            await store.rollback(state["step"])


async def check(store: Store) -> None:
    """Every fact equals what the log says, and nothing is counted twice or has vanished."""
    log, counters = await store.entries(), await store.counters()
    pool = await store.live_groups()
    open_tickets, _ = await store.open_tickets()
    assert len({entry.id for entry in log}) == len(log) == counters["committed"]
    assert counters["issued"] == counters["committed"] + counters["refused"] + counters["poisoned"] + open_tickets
    ends = ("used", "expired", "zero_mass", "lost_payload")
    assert counters["committed"] == len(pool) + sum(counters[name] for name in ends)
    refunding = ("refused", "poisoned", "expired", "zero_mass", "lost_payload", "rolled_back")
    assert counters["refunded"] == sum(counters[name] for name in refunding)
    for problem_id, fact in zip(IDS, await store.problem_facts(IDS), strict=True):
        a = b = v = np.zeros(())
        mine = [entry for entry in log if entry.problem_id == problem_id]
        for entry in reversed(mine):
            a, b, v = posterior.discount(a, b, v, entry.c, entry.G, entry.version_min, float(META["gamma"]))
        assert (fact.attempts, fact.successes) == (sum(entry.G for entry in mine), sum(entry.c for entry in mine))
        assert (fact.groups, fact.version) == (len(mine), v)
        assert (fact.evidence_a, fact.evidence_b) == pytest.approx((float(a), float(b)), rel=1e-12)
    payloads = await store.fetch([entry.id for entry, _, _ in pool])
    assert all(payloads.values())
    assert counters["live_bytes"] == sum(len(encode_group(found)) for found in payloads.values() if found)


def test_counts_are_exact_in_any_interleaving(server: EmbeddedServer) -> None:
    for seed in range(ROUNDS):
        chance = random.Random(seed)

        async def body(store: Store, _: Opened, chance: random.Random = chance) -> None:
            actors = [Actor(f"actor-{i}") for i in range(4)]
            state = {"step": 0}
            await store.add_problems(problems(*IDS))
            await store.issue(chance.choices(IDS, k=16), limit=24)
            for _ in range(STEPS_PER_ROUND):
                await act(chance, store, actors, state)
            await check(store)

        play(server, body, lease_s=0.01, max_deliveries=chance.randint(2, 6))
