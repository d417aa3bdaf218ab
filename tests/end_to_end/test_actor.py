"""The rollout loop on a real engine and a real store: what is committed, and what SIGTERM and a dead engine leave."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.config import EvaluationConfig, ProblemsConfig
from actors.problems import load_problems
from actors.prompts import encode_prompts
from actors.verifiers.registry import BUILT_IN, BuiltIn
from store.audit import audit
from store.client import Store
from store.errors import VergeError
from store.queries import Gate, summary
from store.server import EmbeddedServer
from store.wire import Manifest, Problem, RolloutGroup, Verdict
from tests.end_to_end.acting import GROUP, LONGEST, META, Acting, acting
from tests.end_to_end.live import LiveEngine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


async def leased(store: Store) -> bool:
    return (await store.open_tickets())[1] > 0


async def taken_by_another(where: tuple[str, str, str | None]) -> int:
    """Tickets that an actor of its own connection is given at once."""
    store = await Store.connect(*where)
    try:
        return len(await store.take("another", 500, block_ms=0))
    finally:
        await store.close()


@asynccontextmanager
async def staged(
    live: LiveEngine, server: EmbeddedServer, run: str, problems: list[Problem], tickets: int, grace_s: float = 60.0
) -> AsyncIterator[Acting]:
    """A run with tickets, and an actor that rolls them out."""
    store = await Store.connect(server.url, run, server.password)
    await store.open_run(META)
    await store.add_problems(problems)
    await store.issue([problems[number % len(problems)].id for number in range(tickets)], tickets)
    how = {"grace_s": grace_s, "max_lag": 1, "lease_s": 60.0, "patience_s": 10.0, "within_s": 120.0}
    async with acting(live, server, run, store, **how, evaluation=EvaluationConfig()) as stage:
        yield stage


def countdown(count: int) -> list[Problem]:
    return list(load_problems(ProblemsConfig(train_count=count, held_out_count=0)).train)


def test_what_is_stored_is_what_was_sampled_and_judged_and_heartbeats_say_so(
    live: LiveEngine, server: EmbeddedServer
) -> None:
    short = replace(countdown(4)[3], id="short", max_completion_tokens=2)
    in_a_worker = replace(countdown(3)[2], id="in a worker", verifier="python:tests.actors.rough_checks:one")
    problems = [*countdown(2), short, in_a_worker]
    prompts = encode_prompts(problems, live.tokenizer, 32, LONGEST)
    rates: list[float] = []

    async def play() -> tuple[list[RolloutGroup], dict[str, Any]]:
        async with staged(live, server, "sampled", problems, 12) as stage:

            async def all_committed() -> bool:
                beat = (await stage.store.actors()).get("tested", {"tokens_per_s": 0.0})
                rates.append(float(str(beat["tokens_per_s"])))
                return beat.get("completions") == 12 * GROUP and (await stage.store.counters())["committed"] == 12

            await stage.until(all_committed, "all is committed")
            found = await summary(stage.store, Gate())
            await stage.store.set_phase("done", "tested")
            await stage.task  # the actor ends by itself
            groups = await stage.store.fetch([entry.id for entry in await stage.store.entries("0-0")])
            return [group for group in groups.values() if group is not None], found

    groups, found = live.run(play())
    assert len(groups) == 12
    verify = BUILT_IN["countdown"]
    assert isinstance(verify, BuiltIn)
    answers = {problem.id: problem.answer for problem in problems}
    ends = live.tokenizer.eos_token_id
    for group in groups:
        assert group.prompt_ids.tolist() == prompts[group.problem_id].tolist()
        for item in group.completions:
            ids, ended = item.token_ids.tolist(), item.finish_reason == "stop"
            assert ended == (ids[-1] == ends)
            assert ends not in ids[:-1]
            assert (item.verdict is Verdict.TRUNCATED) == (not ended)
            assert ended or len(ids) == (2 if group.problem_id == "short" else LONGEST)
            if ended:
                text = live.tokenizer.decode(ids, skip_special_tokens=True)
                right = group.problem_id == "in a worker" or verify.verify(answers[group.problem_id], text)
                assert item.verdict is (Verdict.CORRECT if right else Verdict.WRONG)
    beat = found["actors"]["tested"]
    assert beat["errors"] == 0
    assert max(rates) > 0
    assert beat["version"] == live.engine.version


@pytest.mark.parametrize("grace_s", [60.0, 0.001])
def test_sigterm_finishes_what_is_held_or_gives_it_back_at_once(
    live: LiveEngine, server: EmbeddedServer, grace_s: float
) -> None:
    async def play() -> tuple[int, int, int, int]:
        async with staged(live, server, f"drained-{grace_s}", countdown(8), 60, grace_s) as stage:
            await stage.until(lambda: leased(stage.store), "it takes tickets")
            os.kill(os.getpid(), signal.SIGTERM)
            await stage.task
            left, held = await stage.store.open_tickets()
            taken = await taken_by_another(stage.where)
            found = await audit(stage.store)
            assert (found.duplicated, found.miscounted, found.unbalanced, found.unreadable) == ((), (), (), ())
            return found.groups, left, held, taken

    committed, left, held, taken = live.run(play())
    assert committed + left == 60
    assert taken == left, "another actor gets all that is left, without waiting for a lease to end"
    if grace_s > 1:
        assert committed > 0
        assert held == 0, "all that the actor had taken is committed"


def test_a_dead_engine_ends_its_actor_within_seconds_and_loses_no_ticket(
    tiny_model: Path, server: EmbeddedServer
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with asyncio.Runner() as runner:
        live = LiveEngine(tiny_model, runner)
        engine = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]

        async def play() -> float:
            async with staged(live, server, "dead", countdown(4), 400, grace_s=1.0) as stage:
                await stage.until(lambda: leased(stage.store), "it takes tickets")
                for child in engine:
                    child.kill()
                began = asyncio.get_running_loop().time()
                with pytest.raises(VergeError, match="the vLLM engine died"):
                    await stage.task
                noticed_s = asyncio.get_running_loop().time() - began
                left, _ = await stage.store.open_tickets()
                assert await taken_by_another(stage.where) == left > 0
                return noticed_s

        noticed_s = live.run(play())
        live.run(live.engine.close())
    assert noticed_s < 30  # a heartbeat, and room for a machine that stands still


def test_an_actor_that_cannot_read_new_weights_serves_the_old_ones_until_they_are_too_old(
    live: LiveEngine, server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their folder is one that the actor does not see; `max_lag` is 1."""
    old = live.engine.version

    async def play() -> str:
        async with staged(live, server, "unseen", countdown(8), 8) as stage:

            async def announce(version: int) -> None:
                await stage.store.announce(Manifest(version, str(tmp_path / f"v{version}"), "0" * 64, 1, version, 1.0))

            async def wants_a_full_one() -> bool:
                return bool((await stage.store.actors()).get("tested", {}).get("wants_full"))

            async def all_committed() -> bool:
                return (await stage.store.counters())["committed"] == 16

            await announce(old + 1)
            await stage.until(wants_a_full_one, "it asks for a full one")
            await stage.store.issue([problem.id for problem in countdown(8)], 16)
            await stage.until(all_committed, "all is committed")
            assert {entry.version_max for entry in await stage.store.entries("0-0")} == {old}
            await announce(old + 2)
            with pytest.raises(VergeError) as stopped:
                await asyncio.wait_for(stage.task, 120)
            assert await stage.store.open_tickets() == (0, 0)
            return str(stopped.value)

    why = live.run(play())
    unread = f"snapshot {tmp_path}/v{{0}} of version {{0}} cannot be read here; the learner's weights folder must be"
    assert f"actor: goes on with version {old}: {unread.format(old + 1)}" in capsys.readouterr().err
    assert why.startswith(unread.format(old + 2))
    assert why.endswith(
        f"; version {old}, which is loaded, is 2 behind, more than admission.max_lag = 1: nothing that it generates"
        " would be trained on"
    )
    assert "\n" not in why
