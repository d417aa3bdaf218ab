"""The simulated fleet: real tickets, commits and learner loop, and bounds that follow from the scene."""

import numpy as np
import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.sim import simulate
from ops.sim_fleet import spans_of
from ops.sim_scene import Scene
from store.errors import VergeError
from store.wire import Span

QUICK = {"actors": 16, "steps": 4, "step_s": 0.1, "groups_per_step": 8, "problems": 64, "token_s": 0.001}


@pytest.mark.parametrize("completions", [1, 8, 256])
def test_the_mean_longest_completion_is_that_of_drawn_lengths(completions: int) -> None:
    scene = Scene(median_tokens=30, sigma=0.7, longest_tokens=120, token_s=0.5)
    drawn = 30 * np.exp(0.7 * np.random.default_rng(0).standard_normal((20_000, completions)))
    longest = np.minimum(np.ceil(drawn), 120).max(axis=1)
    assert scene.mean_longest_s(completions) == pytest.approx(0.5 * longest.mean(), rel=0.01)


def test_the_bounds_are_the_slower_side_and_the_sum_of_both() -> None:
    scene = Scene(actors=10, steps=5, step_s=2.0, groups_per_step=20, token_s=0.01)
    batch_s = 20 * scene.mean_longest_s(8) / 10
    assert batch_s < 2.0
    assert scene.asynchronous_bound_s() == 10.0  # the learner is the slower side
    slow = scene.model_copy(update={"actors": 2})
    assert slow.asynchronous_bound_s() == pytest.approx(5 * 5 * batch_s)  # the fleet is
    assert slow.synchronous_bound_s() == pytest.approx(5 * (2.0 + 5 * batch_s))
    many = scene.model_copy(update={"actors": 1000})
    assert many.synchronous_bound_s() == pytest.approx(5 * (2.0 + many.mean_longest_s(160)))


def test_a_completion_names_every_version_that_wrote_it() -> None:
    starts = [(0, 1), (0, 2), (5, 3), (9, 4)]  # version 1 was replaced before the first token
    assert spans_of(starts, 7) == (Span(2, 0, 5), Span(3, 5, 7))
    assert spans_of(starts, 12) == (Span(2, 0, 5), Span(3, 5, 9), Span(4, 9, 12))
    assert spans_of([(0, 0)], 1) == (Span(0, 0, 1),)


def test_crashes_and_failures_lose_nothing_and_no_group_is_too_old() -> None:
    scene = Scene(**QUICK, crash_rate=0.2, error_rate=0.1, lease_s=0.5, seed=1)
    found = simulate(scene)
    assert found["ended"] == "done: all 4 steps are taken"
    assert found["counters"]["drawn"] == sum(found["lag_histogram"].values()) == 32
    assert found["crashes"] > 0
    assert found["lag_max"] <= scene.max_lag
    assert found["miscounted"] == 0
    assert found["seconds"] >= found["bound_s"] == pytest.approx(0.4)


def test_without_lag_every_group_is_of_the_newest_weights() -> None:
    found = simulate(Scene(**QUICK, max_lag=0))
    assert found["lag_histogram"] == {"0": 32}
    assert found["seconds"] >= 4 * 0.1
    assert found["idle_share"] > 0.02  # the learner waits for each batch: that is what asynchrony is for


def test_replay_uses_groups_again_and_generates_fewer() -> None:
    scene = Scene(**QUICK, max_uses=2, samples_per_insert=2.0)
    found = simulate(scene)
    counters = found["counters"]
    assert counters["drawn"] == 32
    assert counters["committed"] - counters["refunded"] < 32
    slow = scene.model_copy(update={"actors": 1, "step_s": 0.0})
    once = slow.model_copy(update={"max_uses": 1, "samples_per_insert": 1.0})
    assert slow.asynchronous_bound_s() == pytest.approx(once.asynchronous_bound_s() / 2)


def test_a_scene_that_cannot_be_is_refused_in_one_line() -> None:
    result = CliRunner().invoke(app, ["sim", "--set", "longest_tokens=10"])
    assert isinstance(result.exception, VergeError)
    assert "longest_tokens is 10 but must be ≥ 40 (= median_tokens)" in str(result.exception)
    result = CliRunner().invoke(app, ["sim", "--set", "samples_per_insert=3"])
    assert isinstance(result.exception, VergeError)
    assert "samples_per_insert is 3 but must be ≤ 1 (= max_uses)" in str(result.exception)
