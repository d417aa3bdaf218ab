"""`verge bench soak`: what it takes for growth, and that it watches real processes to their end."""

from pathlib import Path

import numpy as np
import pytest

from ops.bench_soak import Look, figures, growth, run, slope
from store.audit import Audit

RIGHT = Audit(0, 0, (), (), (), ())


def test_the_slope_is_that_of_the_line_under_jumps_and_noise() -> None:
    steps = np.arange(200)
    rss = 100_000 + 6.0 * steps + np.random.default_rng(0).normal(0, 20, 200)
    assert slope(steps, rss) == pytest.approx(6.0, abs=0.2)
    rss[::5] += 50_000  # a checkpoint is being written
    assert slope(steps, rss) == pytest.approx(6.0, abs=0.5)


def test_one_jump_of_the_allocator_is_no_slope_and_a_staircase_is() -> None:
    steps = np.arange(100)
    assert slope(steps, np.where(steps < 20, 50_000, 60_000)) == 0.0
    assert slope(steps, 1000 * (steps // 10)) == pytest.approx(100.0, rel=0.05)
    assert slope([5, 5, 5], [1, 2, 3]) == 0.0  # no step was taken between the samples


def test_growth_is_what_was_opened_since_the_second_quarter_and_not_closed() -> None:
    assert growth([3, 9, 7, 7, 7, 7, 7, 7]) == 0.0
    assert growth([7, 7, 7, 7, 8, 8, 9, 9]) == 2.0
    assert growth([7]) == 0.0


def looks(kib_per_step: int, files_per_step: int) -> list[Look]:
    return [
        Look(
            step,
            {"learner": 1000 + kib_per_step * step, "server": 500},
            {"learner": 9 + files_per_step * step, "server": 4},
            3,
        )
        for step in range(1, 41)
    ] + [Look(40, {"learner": 0, "server": 500}, {"learner": 0, "server": 4}, 3)]  # it is ending


def test_a_leak_is_found_and_none_where_there_is_none() -> None:
    records = [{"lag_max": 2.0, "groups": 8.0, "lag_groups_0": 8.0}] * 40
    flat = {row["name"]: row for row in figures(looks(0, 0), records, {}, RIGHT, 40)["checks"]}
    assert all(row["ok"] for row in flat.values())
    found = {row["name"]: row for row in figures(looks(6, 1), records, {}, RIGHT, 40)["checks"]}
    assert {name for name, row in found.items() if not row["ok"]} == {
        "rss_slope_kb_per_step_learner",
        "open_files_growth",
    }
    assert found["rss_slope_kb_per_step_learner"]["value"] == 6.0
    assert found["rss_slope_kb_per_step_learner"]["target"] == 4.0
    assert found["open_files_growth"]["value"] == 20.0  # from the median of steps 11–20 to that of 31–40
    wrong = Audit(0, 0, ("g",), (), ("committed = log: 1 ≠ 2",), ())
    late = [*records[:38], {"lag_max": 3.0, "groups": 5.0}]
    counted = {row["name"]: row["value"] for row in figures(looks(0, 0), late, {}, wrong, 40)["checks"]}
    assert counted["lag_excess"] == 1
    assert counted["miscounted"] == 2 + 2  # two that the audit found, a step that is missing and one that was short


def test_a_soak_takes_its_steps_and_counts_are_exact(tiny_model: Path) -> None:
    found = run(tiny_model, 30)
    value = {row["name"]: row["value"] for row in found["checks"]}
    assert found["steps"] == 30
    assert sum(found["lag_histogram"].values()) == 30 * 8
    assert value["miscounted"] == value["lag_excess"] == 0
    assert found["wrong"] == []
    assert set(found["rss_mib"]) == {"learner", "actor", "server"}
    assert found["rss_mib"]["learner"] > found["rss_mib"]["actor"] > found["rss_mib"]["server"] > 1
