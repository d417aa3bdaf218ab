"""Tickets: each ends once, whoever tries and however often."""

import asyncio
import random
import time

import pytest

from store.client import Store
from store.errors import CodecError, VergeError
from store.server import EmbeddedServer
from store.wire import Ticket, Verdict, encode_group
from tests.store.cluster import Cluster
from tests.store.lossy import LossyProxy
from tests.store.scripted import Opened, group, let_pass, play, problems, stored_keys

ERROR = Verdict.ERROR


def test_a_ticket_committed_twice_counts_once(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        assert await store.issue(["p"], limit=1) == 1
        (ticket,) = await store.take("a", 5)
        assert ticket.problem_id == "p"
        assert await store.commit("a", group(ticket, [1, 0, 0, 1], version=2)) == "committed"
        assert await store.commit("a", group(ticket, [1, 1, 1, 1], version=3)) == "duplicate"
        found = await store.problem("p")
        assert found is not None
        assert (found[1].attempts, found[1].successes, found[1].groups, found[1].version) == (4, 2, 1, 2)
        fetched = (await store.fetch([ticket.id]))[ticket.id]
        assert fetched is not None
        assert fetched.correct == 2, "the payload of the losing attempt must not replace the winner's"
        counters = await store.counters()
        assert (counters["issued"], counters["committed"], counters["duplicate"]) == (1, 1, 1)
        assert await store.open_tickets() == (0, 0)

    play(server, body)


def test_two_actors_with_the_same_ticket_commit_one_group(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect(lease_s=0.05)
        await store.add_problems(problems(*map(str, range(8))))
        await store.issue([str(i) for i in range(8)], limit=8)
        first = await store.take("a", 8)
        await asyncio.sleep(0.1)
        second = await other.take("b", 8)
        assert {ticket.id for ticket in first} == {ticket.id for ticket in second}
        assert all(ticket.deliveries == 2 for ticket in second)
        results = await asyncio.gather(
            *(store.commit("a", group(ticket, [1, 0, 0, 0])) for ticket in first),
            *(other.commit("b", group(ticket, [1, 1, 1, 0])) for ticket in second),
        )
        assert sorted(results) == ["committed"] * 8 + ["duplicate"] * 8
        facts = await store.problem_facts([str(i) for i in range(8)])
        assert [fact.attempts for fact in facts] == [4] * 8
        fetched = await store.fetch([ticket.id for ticket in first])
        successes = {got.problem_id: got.correct for got in fetched.values() if got is not None}
        assert [successes[str(i)] for i in range(8)] == [fact.successes for fact in facts]

    play(server, body)


def test_a_kill_between_payload_and_script_counts_nothing_and_the_ticket_comes_back(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect(lease_s=0.05)
        await store.add_problems(problems("p"))
        await store.issue(["p"], limit=1)
        (ticket,) = await store.take("a", 1)
        # What a commit that is killed here leaves behind: its payload, which expires.
        orphan = store.keys.payload(f"{ticket.id}:dead")
        await store.link.redis.set(orphan, encode_group(group(ticket, [1, 1, 1, 1])), ex=1)
        assert (await store.counters())["committed"] == 0
        await asyncio.sleep(0.1)
        (again,) = await other.take("b", 1)
        assert (again.id, again.deliveries) == (ticket.id, 2)
        assert await other.commit("b", group(again, [0, 0, 1, 0])) == "committed"
        fetched = (await store.fetch([ticket.id]))[ticket.id]
        assert fetched is not None
        assert fetched.correct == 1
        await asyncio.sleep(1.1)
        assert await store.link.redis.exists(orphan) == 0

    play(server, body)


def test_an_operation_whose_answer_was_lost_is_done_once(server: EmbeddedServer) -> None:
    if isinstance(server, Cluster):
        pytest.skip("a cluster's client goes past the proxy, to the nodes themselves")

    async def body(store: Store, opened: Opened) -> None:
        await store.add_problems(problems("p", "q"))
        outcomes: list[str] = []
        async with LossyProxy(server.info.port, seed=3, loss=0.06).running() as proxy:
            actor = await Store.connect(f"redis://127.0.0.1:{proxy.port}", opened.run, server.password, lease_s=0.2)
            for number in range(40):
                assert await actor.issue(["p", "q"], limit=2 * number + 2) == 2
            while await actor.open_tickets() != (0, 0):
                for ticket in await actor.take("a", 7):
                    if ticket.problem_id == "p":
                        outcomes.append(await actor.commit("a", group(ticket, [1, 0, 1, 1])))
                    else:
                        await actor.refuse("a", ticket, "no", errors=2)
            ids = [entry.id for entry, _, _ in await actor.live_groups()]
            await actor.use(ids, step=1)
            await actor.retire(ids[:20], "used")
            await actor.retire(ids[20:], "expired")
            await actor.rollback(0)
            await actor.close()
        assert proxy.cut > 5
        assert set(outcomes) == {"committed"}
        assert len(outcomes) == 40
        counters = await store.counters()
        expected = {"issued": 80, "committed": 40, "duplicate": 0, "refused": 40, "errors": 80, "drawn": 40}
        expected |= {"used": 20, "expired": 20, "rolled_back": 20, "refunded": 80, "live_bytes": 0}
        assert {name: counters[name] for name in expected} == expected
        found = await store.problem("p")
        assert found is not None
        assert (found[1].attempts, found[1].successes) == (160, 120)

    play(server, body)


def test_a_committed_payload_no_longer_expires_and_a_losing_one_is_gone(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"], limit=1)
        actor = await opened.connect()
        (ticket,) = await actor.take("a", 1)
        await actor.commit("a", group(ticket, [1, 0, 0, 0]))
        await actor.commit("a", group(ticket, [1, 0, 0, 0]))
        await actor.close()
        payloads = await stored_keys(store, store.keys.payload("*"))
        assert len(payloads) == 1
        assert await store.link.redis.ttl(payloads[0]) == -1

    play(server, body)


def test_commits_made_together_are_each_answered_for_themselves(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 100, limit=100)
        actor = await opened.connect()
        await store.link.redis.script_flush()
        tickets = await actor.take("a", 100)
        made = [group(ticket, [1, 0]) for ticket in tickets]
        waiting = [asyncio.create_task(actor.commit("a", one)) for one in [*made, *made[:30]]]
        await asyncio.sleep(0)
        for task in waiting[50:60]:
            task.cancel()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert outcomes[:50] + outcomes[60:100] == ["committed"] * 90
        assert outcomes[100:] == ["duplicate"] * 30
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[50:60])
        await actor.close()
        assert (await store.counters())["committed"] == 100, "who stops waiting for a commit does not undo it"
        assert len(await stored_keys(store, store.keys.payload("*"))) == 100

    play(server, body)


def test_one_groups_fault_is_not_that_of_those_committed_with_it(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 3, limit=3)
        tickets = await store.take("a", 3)
        impossible = Ticket("99999999999999999999-1", "p")
        never = Ticket("1-1", "p")
        made = [group(ticket, [1, 0]) for ticket in (tickets[0], impossible, tickets[1], never, tickets[2], tickets[2])]
        outcomes = await asyncio.gather(*(store.commit("a", one) for one in made))
        assert outcomes == ["committed", "duplicate", "committed", "duplicate", "committed", "duplicate"]
        counters = await store.counters()
        assert (counters["committed"], counters["duplicate"]) == (3, 3)
        found = await store.problem("p")
        assert found is not None
        assert (found[1].attempts, found[1].successes, found[1].groups) == (6, 3, 3)

    play(server, body)


def test_a_group_for_another_problem_than_its_tickets_is_not_counted(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p", "q"))
        await store.issue(["p"], limit=1)
        (ticket,) = await store.take("a", 1)
        assert await store.commit("a", group(Ticket(ticket.id, "q"), [1, 0])) == "duplicate"
        assert await store.open_tickets() == (1, 1)
        assert [fact.attempts for fact in await store.problem_facts(["p", "q"])] == [0, 0]

    play(server, body)


def test_issue_never_goes_beyond_the_limit(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        assert await store.issue([], limit=5) == 0
        assert await store.issue(["p"] * 3, limit=5) == 3
        assert await store.issue(["p"] * 3, limit=5) == 2
        assert await store.issue(["p"] * 3, limit=5) == 0
        assert await store.issue(["p"] * 3, limit=2) == 0, "a limit that fell takes nothing back"
        assert sum(await asyncio.gather(*(store.issue(["p"] * 2, limit=12) for _ in range(9)))) == 7
        (ticket,) = await store.take("a", 1)
        await store.refuse("a", ticket, "no good", errors=4)
        assert await store.issue(["p"] * 3, limit=12) == 1, "a refund gives its place back"
        with pytest.raises(VergeError, match="problem nobody"):
            await store.issue(["p", "nobody"], limit=100)
        assert (await store.counters())["issued"] == 13

    play(server, body)


def test_a_consumer_does_not_get_its_own_tickets_back_while_it_works_on_them(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 3, limit=3)
        mine = await store.take("a", 3)
        assert len(mine) == 3
        await let_pass(store, 100)
        assert await store.take("a", 3) == []
        restarted = await opened.connect(lease_s=100)
        assert await restarted.take("a", 3) == [], "the take above renewed them"
        await let_pass(store, 100)
        assert len(await restarted.take("a", 3)) == 3, (
            "an actor restarted under the same name gets them after the lease"
        )

    play(server, body, lease_s=100)


def test_renewal_keeps_a_lease_and_does_not_steal_one(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect(lease_s=100)
        await store.add_problems(problems("p"))
        await store.issue(["p"], limit=1)
        mine = await store.take("a", 1)
        for _ in range(4):
            await let_pass(store, 60)
            assert await store.renew("a", mine) == 1
            assert await other.take("b", 1) == []
        await let_pass(store, 100)
        assert len(await other.take("b", 1)) == 1
        assert await store.renew("a", mine) == 0
        assert await store.give_back("a", mine) == 0
        assert await other.renew("b", mine) == 1

    play(server, body, lease_s=100)


def test_tickets_given_back_go_to_another_at_once_and_keep_their_delivery_count(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect()
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 2, limit=2)
        mine = await store.take("a", 2)
        assert await other.take("b", 2) == []
        assert await store.give_back("a", mine) == 2
        theirs = await other.take("b", 2)
        assert theirs == mine
        assert await store.give_back("a", []) == 0

    play(server, body)


def test_take_waits_for_a_ticket_and_a_cancelled_wait_takes_none(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect()
        await store.add_problems(problems("p"))
        began = time.monotonic()
        assert await store.take("a", 1, block_ms=60) == []
        assert time.monotonic() - began >= 0.06
        assert await store.take("a", 0, block_ms=60) == []
        monkeypatch.setattr("store.tickets._LOOK_AGAIN_MS", 600_000)
        waiting = asyncio.create_task(store.take("a", 1, block_ms=600_000))
        await asyncio.sleep(0.05)
        await other.issue(["p"], limit=1)
        assert len(await asyncio.wait_for(waiting, 60)) == 1, "it is woken, it does not poll"
        waiting = asyncio.create_task(store.take("a", 1, block_ms=5000))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await other.issue(["p"], limit=2)
        assert len(await other.take("b", 1, block_ms=0)) == 1

    play(server, body)


def test_a_group_of_errors_only_is_refused_refunded_and_not_evidence(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 2, limit=2)
        first, second = await store.take("a", 2)
        assert await store.commit("a", group(first, [ERROR] * 4)) == "refused"
        assert await store.commit("a", group(second, [ERROR, 1, 0, ERROR])) == "committed"
        found = await store.problem("p")
        assert found is not None
        assert (found[1].attempts, found[1].successes, found[1].evidence_b) == (2, 1, 1.0)
        counters = await store.counters()
        assert (counters["errors"], counters["refused"], counters["refunded"], counters["committed"]) == (6, 1, 1, 1)
        (refusal,) = await store.refusals()
        assert (refusal["ticket"], refusal["problem"], refusal["errors"]) == (first.id, "p", "4")
        assert "error" in refusal["reason"]
        assert not await store.refuse("a", first, "again"), "a ticket ends once"

    play(server, body)


def test_a_group_without_a_token_is_refused_in_words(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"], limit=1)
        (ticket,) = await store.take("a", 1)
        with pytest.raises(CodecError, match="no token"):
            await store.commit("a", group(ticket, [0, 0], tokens=0))

    play(server, body)


def test_a_poison_ticket_is_set_aside_with_its_reason_and_refunded(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"], limit=1)
        for delivery in range(1, 4):
            actor = await opened.connect(lease_s=0.02, max_deliveries=3)
            (ticket,) = await actor.take(f"actor-{delivery}", 1)
            assert ticket.deliveries == delivery
            await asyncio.sleep(0.04)
        actor = await opened.connect(lease_s=0.02, max_deliveries=3)
        assert await actor.take("actor-4", 1) == []
        counters = await store.counters()
        assert (counters["poisoned"], counters["refunded"]) == (1, 1)
        assert await store.open_tickets() == (0, 0)
        assert (await store.refusals())[0]["reason"] == "poison: no actor ended it in 3 deliveries"
        assert await store.issue(["p"], limit=1) == 1

    play(server, body)


def test_a_cancelled_operation_ends(server: EmbeddedServer) -> None:
    """A draining actor cancels its tasks at any moment; none may go on as if nothing had been said."""

    async def asking(store: Store) -> None:
        while True:
            await store.counters()

    async def body(store: Store, _: Opened) -> None:
        chance = random.Random(1)
        for _attempt in range(150):
            task = asyncio.create_task(asking(store))
            await asyncio.sleep(chance.uniform(0, 0.004))
            task.cancel()
            done, _pending = await asyncio.wait([task], timeout=2)
            assert done
            assert task.cancelled()

    play(server, body)
