"""Evaluation rounds: who gets one, what is kept of it, and that nothing of two rounds ever mixes."""

import math
import random
from dataclasses import replace

import pytest

from store import evaluations
from store.client import Store
from store.errors import VergeError
from store.evaluations import Claim, Round, Tally
from store.server import EmbeddedServer
from store.wire import Manifest, Problem
from tests.store.scripted import Opened, play, problems

HELD_OUT = ["h1", "a:b:{c}", "\x00 日本語\n"]


def found(claim: Claim, actor: str = "actor", correct: int = 1) -> Round:
    """What a round has found: for every problem another number of tokens."""
    tallies = tuple(Tally(name, 7, correct, 1, 2, 1, 30 + i, 2.5) for i, name in enumerate(HELD_OUT))
    return Round(claim.version, claim.step, actor, 10.25, 11.5, 8, tallies)


async def announce(store: Store, *versions: int) -> None:
    for version in versions:
        await store.announce(Manifest(version, f"/w/{version}", "ab", 9, 10 * version, 1.5))


async def claimed(store: Store, version: int, every: int = 4) -> Claim:
    claim = await store.claim_round(version, every)
    assert claim is not None
    return claim


async def end_lease(store: Store) -> None:
    """As the server would at its time, which must be set."""
    assert 0 < await store.link.redis.pttl(store.keys.evaluating) <= 60_000
    await store.link.redis.delete(store.keys.evaluating)


def test_the_first_round_is_due_at_once_and_the_next_every_so_many_versions(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await store.add_held_out(problems(*HELD_OUT))
        assert await store.claim_round(0, 4) is None, "nothing was announced yet"
        await announce(store, 0, 3, 4, 9)
        first = await claimed(store, 0)
        assert (first.version, first.step) == (0, 0)
        assert await store.finish_round(first, found(first))
        assert await store.claim_round(3, 4) is None
        second = await claimed(store, 4)
        assert second.step == 40
        assert await store.finish_round(second, found(second))
        resumed = await opened.connect()  # the run was stopped, and goes on
        assert await resumed.claim_round(4, 4) is None
        assert await resumed.claim_round(9, 6) is None
        third = await claimed(resumed, 9, every=5)  # which may be another by then
        assert await resumed.finish_round(third, found(third, "another"))
        assert [one.version for one in await store.rounds()] == [0, 4, 9]
        assert [one.version for one in await store.rounds(after_version=0)] == [4, 9]
        assert (await store.rounds(4)) == [found(third, "another")]

    play(server, body)


def test_one_actor_at_a_time_has_a_round_until_it_gives_it_back_or_dies(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect()
        await announce(store, 0, 1, 2)
        claim = await claimed(store, 0)
        assert await store.round_under_way()
        assert await other.claim_round(1, 4) is None, "it is under way"
        await store.give_round_back(claim)
        assert not await store.round_under_way()
        dying = await claimed(other, 1)
        await store.give_round_back(claim)  # once more: it is not this actor's
        assert await other.renew_round(dying)
        await end_lease(store)
        assert (await claimed(store, 2)).version == 2, "at its own version"

    play(server, body)


def test_what_an_actor_counted_is_dropped_when_another_has_begun_since(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        late = await opened.connect()
        await store.add_held_out(problems(*HELD_OUT))
        await announce(store, 0, 1)
        stalled = await claimed(late, 0)
        await end_lease(store)
        newer = await claimed(store, 1)
        assert not await late.renew_round(stalled)
        assert not await late.finish_round(stalled, found(stalled, correct=7))
        await late.give_round_back(stalled)
        assert await store.renew_round(newer), "whatever the other tried, the lease is the newer round's"
        assert await store.finish_round(newer, found(newer))
        assert not await late.finish_round(stalled, found(stalled, correct=7))
        assert await store.rounds() == [found(newer)]

    play(server, body)


def test_a_round_whose_lease_ran_out_and_that_nobody_else_began_is_renewed_and_kept_once(
    server: EmbeddedServer,
) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_held_out(problems(*HELD_OUT))
        await announce(store, 0)
        claim = await claimed(store, 0)
        await end_lease(store)
        assert await store.renew_round(claim)
        await end_lease(store)
        assert await store.finish_round(claim, found(claim))
        assert await store.finish_round(claim, found(claim)), "a retry whose first answer was lost"
        assert await store.rounds() == [found(claim)]
        assert not await store.renew_round(claim)
        assert not await store.round_under_way()

    play(server, body)


def test_no_ticket_can_name_a_problem_that_is_held_out(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        (limited,) = problems("limited")
        limited = replace(limited, max_completion_tokens=3, time_limit_s=0.5)
        chat = Problem("chat", ({"role": "user", "content": "?"},), "exact", {"a": [1]}, ("tag",))
        await store.add_problems(problems("p"))
        assert await store.add_held_out([limited, chat]) == 2
        assert await store.add_held_out([limited, chat]) == 0
        assert await store.held_out_ids() == ["limited", "chat"]
        assert [await store.held_out_problem(name) for name in ("limited", "chat", "p")] == [limited, chat, None]
        assert await store.problem_ids() == ["p"]
        assert await store.problem("chat") is None
        with pytest.raises(VergeError, match="a ticket was asked for problem chat, which the store does not have"):
            await store.issue(["chat"], limit=9)
        with pytest.raises(VergeError, match="problem 'chat' is in the run with another answer"):
            await store.add_held_out([replace(chat, answer=1)])

    play(server, body)


def test_counts_stay_those_of_their_problem_and_the_oldest_rounds_are_forgotten(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "ROUNDS_LOG", 2)

    async def body(store: Store, _: Opened) -> None:
        await store.add_held_out(problems(*HELD_OUT))
        await announce(store, *range(3))
        for version in range(3):
            claim = await claimed(store, version, every=1)
            last = found(claim, correct=version)
            # A log-prob that the engine did not give makes a sum that is no number.
            last = replace(last, tallies=(replace(last.tallies[0], surprisal=math.nan), *last.tallies[1:]))
            assert await store.finish_round(claim, last)
        await store.add_held_out(problems("one more"))
        kept = await store.rounds()
        assert [one.version for one in kept] == [1, 2]
        assert [tally.id for tally in kept[1].tallies] == HELD_OUT
        assert math.isnan(kept[1].tallies[0].surprisal)
        assert kept[1].tallies[1:] == last.tallies[1:]

    play(server, body)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_actors_do_rounds_never_overlap_or_mix(server: EmbeddedServer, seed: int) -> None:
    """Three actors that claim, stall, die and come back while versions rise: the log has only what was granted."""
    chance, every = random.Random(seed), 2

    async def body(store: Store, opened: Opened) -> None:
        actors = [store, await opened.connect(), await opened.connect()]
        believed: dict[int, Claim] = {}
        await store.add_held_out(problems(*HELD_OUT))
        newest, holder, kept, granted = 0, None, [], 0
        await announce(store, 0)
        for _ in range(800):
            who = chance.randrange(3)
            last = kept[-1].version if kept else -every
            match chance.choice(["announce", "claim", "claim", "renew", "finish", "give", "stall"]):
                case "announce":
                    newest += 1
                    await announce(store, newest)
                case "claim":
                    version = max(0, newest - chance.randrange(3))
                    claim = await actors[who].claim_round(version, every)
                    assert (claim is not None) == (holder is None and version >= last + every)
                    if claim is not None:
                        holder = believed[who] = claim
                        granted += 1
                case "renew" if who in believed:
                    mine = believed[who]
                    still = holder == mine or (holder is None and mine.version >= last + every)
                    assert await actors[who].renew_round(mine) == still
                    holder = mine if still else holder
                case "finish" if who in believed:
                    mine = believed.pop(who)
                    told = found(mine, f"actor {who}", correct=chance.randrange(8))
                    accepted = holder == mine or (holder is None and mine.version >= last + every)
                    assert await actors[who].finish_round(mine, told) == accepted
                    if accepted:
                        kept.append(told)
                        holder = None
                case "give" if who in believed:
                    mine = believed.pop(who)
                    await actors[who].give_round_back(mine)
                    holder = None if holder == mine else holder
                case "stall" if holder is not None:
                    await end_lease(store)
                    holder = None
        assert await store.rounds() == kept
        assert granted > len(kept) > 5

    play(server, body)
