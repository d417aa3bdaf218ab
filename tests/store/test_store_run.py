"""The run, its problems, its learner, its weights, and its dynamics."""

import asyncio
import math
import time
from dataclasses import replace

import pytest

from store.client import Store
from store.errors import VergeError
from store.problems import in_batches
from store.server import EmbeddedServer
from store.wire import Manifest, Problem, ProblemFacts
from tests.store.scripted import META, Opened, group, play, problems

WEIRD = ["plain", "a:b:{c}", "{", "}{", "with space\nand line", "日本語 🜁", "*?[x]", "\x00zero", "problem:", "é" * 4096]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("fingerprint", "beef", "fingerprint = 'f00'.*'beef'"),
        ("gamma", "0.5", "gamma = '0.9'.*'0.5'"),
        ("group_size", "8", "group_size = '4'.*'8'"),
        ("config:learner.lr", "2e-5", "opened with learner.lr = ''.*'2e-5'"),
    ],
)
def test_a_process_with_another_config_is_refused_by_the_fields_name(
    server: EmbeddedServer, field: str, value: str, named: str
) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.open_run(META | {"started": "later"})
        with pytest.raises(VergeError, match=named):
            await store.open_run(
                META | {field: value, "fingerprint": "other" if "config:" in field else "f00"} | {field: value}
            )
        assert {name: (await store.meta())[name] for name in META} == META

    play(server, body)


def test_a_foreign_schema_is_refused(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.link.redis.hset(store.keys.meta, "schema", "2")
        with pytest.raises(VergeError, match=r"schema = '2'.*'1'"):
            await store.open_run(META)

    play(server, body)


def test_a_run_that_does_not_exist_says_so(server: EmbeddedServer) -> None:
    async def body(_: Store, opened: Opened) -> None:
        nowhere = await Store.connect(server.url, "nowhere", server.password)
        assert await nowhere.meta() == {}
        assert await nowhere.phase() == ("running", "")
        with pytest.raises(VergeError, match="no such run"):
            await nowhere.take("a", 1)
        with pytest.raises(VergeError, match="without fingerprint"):
            await nowhere.open_run({"gamma": "1", "group_size": "2"})
        with pytest.raises(VergeError, match=r"gamma is 1.5 but must be in \(0, 1\]"):
            await nowhere.open_run(META | {"gamma": "1.5"})
        await nowhere.close()
        with pytest.raises(VergeError, match="run name"):
            await Store.connect(server.url, "a}b", server.password)

    play(server, body)


def test_the_end_of_a_run_is_said_with_its_reason(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        assert await store.phase() == ("running", "")
        await store.set_phase("failed", "loss is NaN")
        assert await store.phase() == ("failed", "loss is NaN")
        with pytest.raises(ValueError, match="phase is 'tired'"):
            await store.set_phase("tired")  # type: ignore[arg-type]

    play(server, body)


def test_problem_ids_may_hold_anything(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        assert await store.add_problems(problems(*WEIRD)) == len(WEIRD)
        assert await store.problem_ids() == WEIRD
        assert await store.problem_ids(3) == WEIRD[3:]
        await store.issue(WEIRD, limit=len(WEIRD))
        for ticket in await store.take("a", len(WEIRD)):
            assert await store.commit("a", group(ticket, [1, 0])) == "committed"
        assert [entry.problem_id for entry in await store.entries()] == WEIRD
        assert [fact.attempts for fact in await store.problem_facts(WEIRD)] == [2] * len(WEIRD)
        found = await store.fetch([entry.id for entry in await store.entries()])
        assert [made.problem_id for made in found.values() if made] == WEIRD

    play(server, body)


def test_large_problems_are_sent_a_few_at_a_time() -> None:
    small, large, huge = ("s", "x"), ("l", "x" * (3 << 20)), ("h", "x" * (20 << 20))
    sent = list(in_batches([*[small] * 1200, *[large] * 5, huge, small]))
    assert [len(batch) for batch in sent] == [500, 500, 202, 2, 1, 1, 1]
    assert sum(map(len, sent)) == 1207


def test_problems_are_added_once_and_never_changed(server: EmbeddedServer) -> None:
    chat = Problem(
        "chat", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "ü?"}), "python:m:f",
        {"numbers": [1, 2.5, None], "deep": {"x": True}}, ("a", "b"), 40, 2.5,
    )  # fmt: skip

    async def body(store: Store, _: Opened) -> None:
        assert await store.add_problems([chat, *problems("p")]) == 2
        assert await store.add_problems([*problems("q", "p"), chat]) == 1
        assert await store.add_problems(iter(problems(*map(str, range(1203))))) == 1203
        assert (await store.problem_ids())[:3] == ["chat", "p", "q"]
        assert await store.problem("chat") == (chat, ProblemFacts())
        assert await store.problem("nobody") is None
        with pytest.raises(VergeError, match="'chat' is in the run with another limits"):
            await store.add_problems([replace(chat, time_limit_s=None)])
        await store.link.redis.hdel(store.keys.problem("p"), "limits")  # added before there were limits
        assert await store.problem("p") == (*problems("p"), ProblemFacts())
        assert await store.add_problems(problems("p")) == 0
        with pytest.raises(VergeError, match="'p' is in the run with another answer"):
            await store.add_problems([*problems("new"), Problem("p", "what is p?", "exact", "43", ("test",))])
        assert await store.problem("new") is None, "nothing of a refused call is added"
        for wrong, why in (("", "1 to 4096"), ("x" * 4097, "1 to 4096"), ("\ud800", "surrogates")):
            with pytest.raises(VergeError, match=why):
                await store.add_problems(problems(wrong))
        for answer in (float("nan"), object()):
            with pytest.raises(VergeError, match="'n' cannot be stored as JSON"):
                await store.add_problems([Problem("n", "?", "exact", answer)])

    play(server, body)


def test_two_learners_at_once_are_refused(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect()
        assert await store.acquire_learner("one", 100)
        assert not await other.acquire_learner("two", 100)
        assert await store.acquire_learner("one", 200), "the holder may ask again"
        assert await store.link.redis.pttl(store.keys.learner) > 100_000, "asking again renews"
        assert await store.renew_learner("one", 300)
        assert await store.link.redis.pttl(store.keys.learner) > 200_000
        assert not await other.acquire_learner("two", 100)
        await other.release_learner("two")
        assert not await other.acquire_learner("two", 100)
        await store.release_learner("one")
        assert await other.acquire_learner("two", 0.05)
        await asyncio.sleep(0.1)
        assert await store.acquire_learner("one", 100), "a learner that died is succeeded"
        assert not await other.renew_learner("two", 100)

    play(server, body)


def manifest(version: int, sha256: str = "ab" * 32) -> Manifest:
    return Manifest(version, f"/snapshots/{version}", sha256, 12345, 10 * version, 1700000000.123456)


def test_versions_only_rise_and_announcing_again_is_harmless(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        assert await store.manifest() is None
        for version in (0, 1, 2):
            await store.announce(manifest(version))
        await store.announce(manifest(1))
        with pytest.raises(VergeError, match=r"version 1 .*the run has version 2 .*publish as version 3"):
            await store.announce(manifest(1, "cd" * 32))
        assert await store.manifest() == manifest(2)
        assert await store.manifest(1) == manifest(1)
        assert await store.manifest(7) is None
        assert await store.manifests() == [manifest(0), manifest(1), manifest(2)]

    play(server, body)


def test_a_delta_names_its_base_and_a_manifest_from_before_there_were_deltas_is_full(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        fields = {"version": 0, "path": "/old", "sha256": "ab", "bytes": 7, "step": 0, "time_s": 1.5}
        await store.link.redis.xadd(store.keys.weights_log, fields, id="0-1")
        delta = Manifest(1, "/new", "cd", 5, 10, 2.5, "delta", 0)
        await store.announce(delta)
        assert await store.manifests() == [Manifest(0, "/old", "ab", 7, 0, 1.5, "full", -1), delta]

    play(server, body)


def test_waiting_for_weights_returns_the_newest_as_soon_as_there_is_one(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        other = await opened.connect()
        assert await store.wait_manifest(-1, block_ms=30) is None
        waiting = asyncio.create_task(store.wait_manifest(-1, block_ms=600_000))
        await asyncio.sleep(0.05)
        await other.announce(manifest(0))
        assert await asyncio.wait_for(waiting, 60) == manifest(0), "it is woken, it does not wait its time out"
        await other.announce(manifest(4))
        assert await store.wait_manifest(0, block_ms=0) == manifest(4)
        assert await store.wait_manifest(4, block_ms=30) is None

    play(server, body)


def test_dynamics_keep_their_history_and_their_nan(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        assert await store.dynamics() == {}
        for step in range(4):
            await store.record_dynamics({"step": step, "entropy": 1 / 3 + step})
        await store.record_dynamics({"step": 4, "grad_norm": math.nan})
        last = await store.dynamics()
        assert last.keys() == {"step", "grad_norm"}, "what the last step does not have is not left over from before"
        assert last["step"] == 4
        assert math.isnan(last["grad_norm"])
        history = await store.dynamics_history(3)
        assert [record["step"] for record in history] == [2, 3, 4]
        assert history[0]["entropy"] == 1 / 3 + 2

    play(server, body)


def test_dynamics_have_the_time_at_which_they_were_recorded(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        between = [time.time()]
        for step in range(3):
            await asyncio.sleep(0.002)  # the store's clock counts milliseconds
            await store.record_dynamics({"step": step})
            await asyncio.sleep(0.002)
            between.append(time.time())
        times = await store.dynamics_times(2)
        assert len(times) == 2
        assert between[1] < times[0] < between[2] < times[1] < between[3]

    play(server, body)


def test_heartbeats_are_the_last_of_each_actor(server: EmbeddedServer) -> None:
    async def body(store: Store, _: Opened) -> None:
        assert await store.actors() == {}
        for version in (1, 2):
            await store.beat("actor-0", {"engine": "vllm", "version": version})
        await store.beat("actor-1", {"engine": "vllm", "version": 1})
        found = await store.actors()
        assert found["actor-0"]["version"] == 2
        assert abs(float(str(found["actor-1"]["time_s"])) - time.time()) < 5

    play(server, body)
