"""Evaluation while the run trains, by a real actor on a real engine: one version a round, right, shared, given back."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.config import EvaluationConfig, ProblemsConfig
from actors.problems import ProblemSet, load_problems
from learner.config import (
    AdmissionConfig,
    AlarmsConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.loop import run_learner
from learner.publish import manifest_of
from ops.exact import exact_solve_rates
from store.audit import audit
from store.client import Store
from store.server import EmbeddedServer
from store.wire import Manifest
from tests.end_to_end.acting import GROUP, META, Acting, acting
from tests.end_to_end.live import LiveEngine

MAX_LAG = 4
LEASE_S = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def base(live: LiveEngine) -> Iterator[LiveEngine]:
    """The session's engine with the base model as version 0, as an actor of a new run has it; and afterwards again."""
    live.run(live.engine.update(0, live.model))
    yield live
    live.run(live.engine.update(live.engine.version + 1, live.model))


def countdown(train: int, held_out: int) -> ProblemSet:
    return load_problems(ProblemsConfig(train_count=train, held_out_count=held_out))


async def beat(store: Store) -> dict[str, Any]:
    return (await store.actors()).get("tested", {})


async def beats(stage: Acting, count: int) -> None:
    """Wait for so many further heartbeats."""
    for _ in range(count):
        last = (await beat(stage.store)).get("up_s")

        async def another(last: float | None = last) -> bool:
            return (await beat(stage.store)).get("up_s") != last

        await stage.until(another, "it goes on")


@asynccontextmanager
async def staged(
    live: LiveEngine, server: EmbeddedServer, run: str, problems: ProblemSet, evaluation: EvaluationConfig
) -> AsyncIterator[Acting]:
    """A run with a base model and problems, and an actor that evaluates."""
    store = await Store.connect(server.url, run, server.password, lease_s=LEASE_S)
    await store.open_run(META)
    await store.add_problems(problems.train)
    await store.add_held_out(problems.held_out)
    await store.announce(manifest_of(0, live.model, 0))
    how = {"grace_s": 60.0, "max_lag": MAX_LAG, "lease_s": LEASE_S, "patience_s": 20.0, "within_s": 240.0}
    async with acting(live, server, run, store, **how, evaluation=evaluation) as stage:
        yield stage


def learner_settings(live: LiveEngine, server: EmbeddedServer, run: str, folder: Path) -> LearnerSettings:
    """A learner whose steps are so small that every version has the base model's solve rates."""
    return LearnerSettings(
        learner=LearnerConfig(steps=16, groups_per_step=8, lr=1e-9, threads=1, stall_s=120),
        objective=ObjectiveConfig(), correction=CorrectionConfig(), gating=GatingConfig(), draw=DrawConfig(),
        admission=AdmissionConfig(max_lag=MAX_LAG), alarms=AlarmsConfig(), model=live.model, run_dir=folder,
        store_url=server.url, store_password=server.password, run=run, temperature=1.0, group_size=GROUP,
    )  # fmt: skip


def test_rounds_are_each_of_one_version_agree_with_the_exact_rates_and_training_goes_on(
    base: LiveEngine, server: EmbeddedServer, tmp_path: Path
) -> None:
    problems, samples = countdown(64, 48), 20  # of which the last chunk has 4
    exact = exact_solve_rates(base.model, list(problems.held_out))
    how = EvaluationConfig(every=3, samples_per_problem=samples, k=(1, 8))

    async def play() -> tuple[list[object], list[Manifest], list[float], list[dict[str, float]]]:
        async with staged(base, server, "trained", problems, how) as stage:
            settings = learner_settings(base, server, "trained", tmp_path)
            await asyncio.to_thread(run_learner, settings)
            await stage.task  # the run is done: the actor ends by itself
            found = await audit(stage.store)
            assert (found.duplicated, found.miscounted, found.unbalanced, found.unreadable) == ((), (), (), ())
            assert not await stage.store.round_under_way()
            rounds = await stage.store.rounds()
            history = await stage.store.dynamics_history(100)
            return [*rounds], await stage.store.manifests(), await stage.store.dynamics_times(100), history

    rounds, manifests, steps_s, history = base.run(play())
    assert rounds[0].version == 0
    assert len(rounds) > 1
    gaps = [later.version - earlier.version for earlier, later in pairwise(rounds)]
    assert min(gaps) >= 3
    assert len(history) == 16
    assert max(row["lag_max"] for row in history) <= MAX_LAG
    for one in rounds:
        assert [tally.id for tally in one.tallies] == [problem.id for problem in problems.held_out]
        assert {(tally.n, tally.errors) for tally in one.tallies} == {(samples, 0)}
        correct = sum(tally.correct for tally in one.tallies)
        spread = np.sqrt((samples * exact * (1 - exact)).sum())
        assert abs(correct - samples * exact.sum()) < 4 * spread
        assert all(min(tally.correct, 1) <= tally.distinct <= tally.correct for tally in one.tallies)
        assert 0.2 < sum(t.surprisal for t in one.tallies) / sum(t.tokens for t in one.tallies) < 1.5
    # Every completion's spans were checked as it was counted: what is kept is of one version. While the actor stayed
    # with it, newer ones were announced, and the learner took steps.
    later = [one for one in rounds[1:] if any(m.version > one.version and m.time_s < one.time_s for m in manifests)]
    assert later
    assert any(one.began_s < at < one.time_s for one in later for at in steps_s)


def test_a_round_is_renewed_while_it_lasts_and_given_back_at_sigterm(base: LiveEngine, server: EmbeddedServer) -> None:
    how = EvaluationConfig(every=1, samples_per_problem=2000, k=(1,))

    async def play() -> None:
        async with staged(base, server, "stopped", countdown(8, 64), how) as stage:
            left: list[int] = [10**9]

            async def renewed() -> bool:
                left.append(await stage.store.link.redis.pttl(stage.store.keys.evaluating))
                return left[-1] > left[-2] > 0

            await stage.until(renewed, "its lease is made longer again")
            assert await stage.store.claim_round(0, 1) is None
            assert (await beat(stage.store))["evaluating"] == 0
            # Training has its half of the engine meanwhile.
            await stage.store.issue([problem.id for problem in countdown(8, 0).train] * 8, 64)

            async def committed() -> bool:
                return (await stage.store.counters())["committed"] == 64

            await stage.until(committed, "all tickets are rolled out beside the round")
            assert await stage.store.round_under_way()
            os.kill(os.getpid(), signal.SIGTERM)
            await stage.task
            assert await stage.store.rounds() == []
            assert not await stage.store.round_under_way()
            assert await stage.store.claim_round(0, 1) is not None, "another has it, without waiting for a lease"

    base.run(play())


def test_a_round_that_has_begun_is_finished_when_the_run_is_done(base: LiveEngine, server: EmbeddedServer) -> None:
    how = EvaluationConfig(every=1, samples_per_problem=60, k=(1,))

    async def play() -> None:
        async with staged(base, server, "done", countdown(8, 32), how) as stage:
            await stage.until(stage.store.round_under_way, "it has a round")
            await stage.store.set_phase("done")
            await stage.task
            (one,) = await stage.store.rounds()
            assert {tally.n for tally in one.tallies} == {60}

    base.run(play())


def test_an_actor_that_lost_its_round_drops_it_and_catches_up_with_the_weights(
    base: LiveEngine, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    how = EvaluationConfig(every=1000, samples_per_problem=2000, k=(1,))

    async def play() -> None:
        async with staged(base, server, "lost", countdown(8, 64), how) as stage:

            async def evaluating() -> bool:
                return (await beat(stage.store)).get("evaluating") == 0

            async def caught_up() -> bool:
                return (await beat(stage.store)).get("version") == 2

            await stage.until(evaluating, "it has a round")
            for version in (1, 2):
                await stage.store.announce(manifest_of(version, base.model, version))
            await beats(stage, 2)
            await stage.store.issue([problem.id for problem in countdown(8, 0).train], 8)
            await beats(stage, 2)
            assert await stage.store.open_tickets() == (8, 0), "with newer weights announced, it takes none"
            assert (await beat(stage.store))["version"] == 0
            await stage.store.link.redis.set(stage.store.keys.evaluating, "another's")
            await stage.until(caught_up, "it loads what it has missed")

            async def committed() -> bool:
                return (await stage.store.counters())["committed"] == 8

            await stage.until(committed, "it takes tickets again")
            assert {entry.version_min for entry in await stage.store.entries()} == {2}
            assert "evaluating" not in await beat(stage.store)
            assert await stage.store.rounds() == []

    base.run(play())
    said = capsys.readouterr().err
    assert "actor: evaluates version 0: 2000 completions of 64 problems" in said
    assert "actor: the evaluation of version 0 is dropped: its lease ran out" in said
