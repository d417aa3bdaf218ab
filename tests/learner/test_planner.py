"""Rank 0's decisions against a real store, with groups that are committed by hand."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import (
    AdmissionConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.planner import Batch, NothingLeft, Planner
from learner.store_thread import LockLost, StoreThread
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import Completion, Manifest, RolloutGroup, Span, Verdict
from tests.learner.scripted import problems

G = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as running:
        yield running


class Bench:
    """A planner on a run of 6 problems, B = 4, with a clock that stands still until it is moved."""

    def __init__(self, server: EmbeddedServer, tmp_path: Path, **admission: Any) -> None:
        self.line = StoreThread(server.url, tmp_path.name, server.password)
        self.store = self.line.store
        self.line.call(self.store.open_run({"fingerprint": "t", "gamma": "0.97", "group_size": str(G)}))
        self.line.call(self.store.add_problems(problems(6)))
        self.time_s = 0.0
        advantage = admission.pop("advantage", "drgrpo")
        settings = LearnerSettings(
            LearnerConfig(groups_per_step=4, steps=100, stall_s=30), ObjectiveConfig(advantage=advantage),
            CorrectionConfig(), GatingConfig(), DrawConfig(), AdmissionConfig(**admission), tmp_path, tmp_path,
            server.url, server.password, tmp_path.name, 1.0, G,
        )  # fmt: skip
        self.planner = Planner(settings, self.line, 1, lambda: self.time_s)

    def look(self, announced_step: int = 0) -> Batch | None:
        return self.planner.wait_for_batch(lambda: announced_step, until=0.0)

    def commit(self, correct: list[int], version: int = 0) -> None:
        """One group for each number of correct completions, on tickets that the planner issued."""
        tickets = self.line.call(self.store.take("hand", len(correct), 0))
        assert len(tickets) == len(correct)
        for ticket, c in zip(tickets, correct, strict=True):
            completions = tuple(
                Completion(
                    np.array([1, 2], np.int32), np.array([-1, -1], np.float32), (Span(version, 0, 2),), float(i < c),
                    Verdict.CORRECT if i < c else Verdict.WRONG,
                )
                for i in range(G)
            )  # fmt: skip
            group = RolloutGroup(ticket.id, ticket.problem_id, np.array([1], np.int32), completions)
            assert self.line.call(self.store.commit("hand", group)) == "committed"

    def counters(self) -> dict[str, int]:
        return self.line.call(self.store.counters())


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _raises(call: Callable[[], object], error: type[BaseException]) -> bool:
    try:
        call()
    except error:
        return True
    return False


@pytest.fixture
def bench(server: EmbeddedServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(server, tmp_path, **getattr(request, "param", {}))
    yield made
    made.line.close()


@pytest.mark.parametrize("bench", [{"max_lag": 1}], indirect=True)
def test_tickets_are_issued_up_to_the_limit_of_the_announced_step(bench: Bench) -> None:
    assert bench.look() is None
    assert bench.counters()["issued"] == 8  # (0 + 1 + 1)·4
    bench.look()
    assert bench.counters()["issued"] == 8
    bench.look(announced_step=2)
    assert bench.counters()["issued"] == 16


def test_a_group_without_mass_gives_its_ticket_back_and_another_is_issued(bench: Bench) -> None:
    bench.look()
    bench.commit([0, G, 2])
    assert bench.look() is None
    counters = bench.counters()
    assert (counters["zero_mass"], counters["refunded"], counters["issued"]) == (2, 2, 22)


@pytest.mark.parametrize("bench", [{"max_lag": 1}], indirect=True)
def test_problems_that_are_added_to_a_live_run_are_issued_without_a_restart(bench: Bench) -> None:
    bench.look()  # 8 tickets: all 6 problems, and 2 of the second epoch
    bench.line.call(bench.store.add_problems(problems(10)))
    bench.look(announced_step=2)
    tickets = bench.line.call(bench.store.take("hand", 16, 0))
    assert sorted(ticket.problem_id for ticket in tickets[6:]) == [f"p{i}" for i in range(10)]


@pytest.mark.parametrize("bench", [{"max_lag": 1}], indirect=True)
def test_while_a_step_is_taken_what_teaches_nothing_is_replaced_and_new_weights_let_tickets_out(bench: Bench) -> None:
    bench.look()
    bench.commit([2, 2, 2, 2])
    batch = bench.look()
    assert batch is not None
    bench.planner.take(batch)
    announced = 0
    with bench.planner.tended(lambda: announced):  # the step
        bench.commit([0, G])
        wait_for(lambda: bench.counters()["issued"] == 10)
        announced = 1
        wait_for(lambda: bench.counters()["issued"] == 14)
    assert bench.counters()["zero_mass"] == 2


def test_a_lock_lost_while_a_step_is_taken_is_the_planner_s_failure_at_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.store_thread.LOCK_TTL_S", 0.1)
    bench.line.hold("one")
    bench.line.call(bench.store.release_learner("one"))
    assert bench.line.call(bench.store.acquire_learner("another", 60))

    with bench.planner.tended(lambda: 0):
        wait_for(lambda: _raises(bench.line.check, LockLost))
        wait_for(lambda: bench.planner.failure is not None)
    assert isinstance(bench.planner.failure, LockLost)


@pytest.mark.parametrize("bench", [{"max_lag": 2}], indirect=True)
def test_a_group_older_than_max_lag_expires_and_is_never_drawn(bench: Bench) -> None:
    bench.look()
    bench.commit([1, 2, 3, 1], version=0)
    bench.commit([1, 2, 3, 1, 2], version=1)
    bench.planner.version = 3
    batch = bench.look()
    assert batch is not None
    assert batch.drawn.lag.tolist() == [2, 2, 2, 2]
    assert bench.counters()["expired"] == 4


def test_a_used_group_stays_until_a_checkpoint_covers_it_and_is_not_drawn_again(bench: Bench) -> None:
    bench.look()
    bench.commit([1, 2, 3, 1])
    batch = bench.look()
    assert batch is not None
    assert bench.planner.take(batch) == [[0, 1, 2, 3]]
    bench.planner.step += 1
    assert bench.look() is None
    assert (bench.counters()["drawn"], bench.counters()["used"]) == (4, 0)
    bench.planner.covered()
    bench.look()
    assert bench.counters()["used"] == 4


@pytest.mark.parametrize("bench", [{"fruitless_limit": 2}], indirect=True)
def test_after_the_fruitless_limit_a_step_takes_what_there_is_and_says_so(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.look()
    bench.commit([0] * 7 + [2])
    batch = bench.look()
    assert batch is not None
    assert len(batch.drawn.entries) == 1
    assert batch.reward == pytest.approx(0.5 / 8)
    assert (
        "step 1 takes 1 of 4 groups: 8 arrived since the last step and the rest teach nothing" in capfd.readouterr().err
    )


@pytest.mark.parametrize("bench", [{"fruitless_limit": 2}], indirect=True)
def test_when_no_group_at_all_teaches_anything_the_run_stops(bench: Bench) -> None:
    bench.look()
    bench.commit([0] * 8)
    with pytest.raises(VergeError, match="8 groups arrived since step 0 and not one teaches anything"):
        bench.look()


@pytest.mark.parametrize("bench", [{"advantage": "fade_bbg", "max_lag": 6}], indirect=True)
def test_once_every_problem_is_solved_no_ticket_is_issued_and_the_run_ends(bench: Bench) -> None:
    bench.look()
    bench.commit([G] * 28)
    with pytest.raises(NothingLeft, match="every gate is closed, and 6 of 6 problems are solved"):
        bench.look()
    assert bench.counters()["issued"] == 28


def test_a_store_in_which_nothing_arrives_is_given_up_after_stall_s(bench: Bench) -> None:
    bench.look()
    bench.time_s = 29.0
    bench.look()
    bench.time_s = 31.0
    with pytest.raises(VergeError, match="no group arrived for 31 s"):
        bench.look()


def test_an_actor_that_evaluates_is_waited_for(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.line.call(bench.store.announce(Manifest(0, "/w", "00", 1, 0, 0.0)))
    bench.line.call(bench.store.beat("evaluating", {"engine": "vllm"}))
    claim = bench.line.call(bench.store.claim_round(0, 1))
    bench.look()
    bench.time_s = 31.0
    bench.look()
    assert "; 0 groups arrived since the last step, and an actor evaluates" in capfd.readouterr().err
    bench.line.call(bench.store.give_round_back(claim))
    bench.time_s = 60.0
    bench.look()
    bench.time_s = 62.0
    with pytest.raises(VergeError, match="no group arrived for 31 s"):
        bench.look()


def test_the_time_for_which_the_store_was_away_is_not_held_against_the_actors(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        bench = Bench(server, tmp_path)
        bench.look()
        os.kill(server.pid, signal.SIGKILL)
        waiting = bench.line.start(bench.store.counters())
        while server.alive:
            time.sleep(0.01)
        server.start()
        waiting.result(10)
        bench.time_s = 40.0
        bench.look()
        bench.time_s = 69.0
        bench.look()
        bench.time_s = 71.0
        with pytest.raises(VergeError, match="no group arrived for 31 s"):
            bench.look()
        bench.line.close()


def test_a_pool_that_is_full_holds_tickets_back_and_one_that_can_never_empty_ends_the_run(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.line.call(bench.store.set_limits(3, 1 << 30))
    bench.line.call(bench.store.beat("hand", {}))
    bench.look()
    assert bench.counters()["issued"] == 3, "not the 20 of the admission limit"
    bench.commit([1, 2])
    bench.time_s = 6.0
    bench.look()
    assert bench.counters()["issued"] == 3
    said = "have 2 of 4 groups for step 1, because the pool and the open tickets are at store.max_groups: 1 tickets"
    assert said in capsys.readouterr().err
    bench.commit([3])
    bench.look()
    bench.time_s = 12.0
    with pytest.raises(VergeError, match=r"step 1 has 3 of 4 groups and will never .*at store.max_groups.*; raise it"):
        bench.look()
    bench.line.call(bench.store.set_limits(4, 1 << 30))
    bench.look()
    bench.commit([1])
    assert bench.look() is not None


def test_the_planner_continues_from_its_state_with_the_same_draws(server: EmbeddedServer, tmp_path: Path) -> None:
    first = Bench(server, tmp_path)
    first.look()
    first.commit([1, 2, 3, 1, 2, 3, 1, 2])
    state = first.planner.state_dict()
    one = first.look()
    second = Bench(server, tmp_path)
    second.planner.load_state_dict(state)
    two = second.look()
    assert one is not None
    assert two is not None
    assert [e.id for e in one.drawn.entries] == [e.id for e in two.drawn.entries]
    with pytest.raises(ValueError, match="expected"):
        second.planner.load_state_dict({"step": 1})
    first.line.close()
    second.line.close()
