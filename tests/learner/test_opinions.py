"""Gate, mass and draw as the learner uses them: leave-one-out evidence, and advantages scaled over the batch."""

from typing import Any

import numpy as np
import pytest

from gating import bbg
from learner.config import DrawConfig, GatingConfig, ObjectiveConfig
from learner.opinions import Gates, Opinions
from store.wire import GroupEntry


def entry(number: int, c: int, version: int = 0, G: int = 8) -> GroupEntry:
    return GroupEntry(f"{number}-0", f"{number}-0", f"p{number}", G, c, version, version, 10 * G, 0.0)


def gates(a: list[float], b: list[float], version: int = 0) -> Gates:
    gate = bbg.gate(a, b)
    return Gates(version, np.array(a), np.array(b), gate, bbg.scale_over_active(gate))


def opinions(**objective: Any) -> Opinions:
    return Opinions(ObjectiveConfig(**objective), GatingConfig(), DrawConfig())


def test_a_group_is_judged_without_its_own_evidence() -> None:
    # Problem 0 has only this group's 2 of 8: without it, the prior alone. A success is judged by its 7 group-mates,
    # 1 right and 6 wrong: Beta(2, 7), baseline 2/9, gate E[(1−p)^7] = 7·8·9·10·11·12·13/(9·…·15) = 7·8/(14·15) = 4/15.
    drawn = opinions().draw([entry(0, 2)], np.array([0]), np.ones(1), gates([2.0], [6.0]), 1, np.random.default_rng(0))
    scale = 1 / bbg.gate([2.0], [6.0])[0]
    alpha = 1.5  # at the initial p̂ = .5
    assert drawn.success[0] == pytest.approx(scale * (4 / 15) * (7 / 9) ** alpha)
    # A failure by 2 right and 5 wrong: Beta(3, 6), baseline 1/3, gate 6·7·8/(13·14·15) = 8/65.
    assert drawn.failure[0] == pytest.approx(-scale * (8 / 65) * (2 / 3) ** (alpha - 1) / 3)
    assert (drawn.alpha, drawn.delta) == (1.5, 1.0)


def test_the_evidence_taken_out_of_a_stale_group_is_discounted_like_the_rest() -> None:
    worth = 0.97**3
    fresh = opinions().masses([entry(0, 2)], np.array([0]), gates([2.0], [6.0]))
    stale = opinions().masses([entry(0, 2)], np.array([0]), gates([2 * worth], [6 * worth], version=3))
    ratio = bbg.gate([2.0], [6.0])[0] / bbg.gate([2 * worth], [6 * worth])[0]  # only the scale over problems differs
    assert stale[0] == pytest.approx(fresh[0] * ratio)


def test_groups_that_teach_nothing_have_no_mass() -> None:
    entries, rows, facts = [entry(0, 0), entry(1, 8), entry(2, 3)], np.arange(3), gates([0, 8, 3], [8, 0, 5])
    assert (opinions(advantage="drgrpo").masses(entries, rows, facts) > 0).tolist() == [False, False, True]
    # fade_bbg learns from an unsolved problem (its baseline is above 0), and not from one that is solved.
    assert (opinions().masses(entries, rows, facts) > 0).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("advantage", "params", "reads"),
    [("kl_control", {"beta": 0.1}, False), ("kl_control", {"mu": 0.9}, True), ("filtered", {"z": "posterior"}, True)],
)
def test_what_reads_log_probs_is_drawn_uniformly_from_all_groups_that_can_teach(
    advantage: str, params: dict[str, Any], reads: bool
) -> None:
    judge = opinions(advantage=advantage, params=params)
    entries, rows, facts = [entry(0, 0), entry(1, 8), entry(2, 3)], np.arange(3), gates([0, 8, 3], [8, 0, 5])
    mass = judge.masses(entries, rows, facts)
    assert mass.tolist() == [float(advantage == "kl_control"), 1, 1]
    drawn = judge.draw(entries[1:], rows[1:], mass[1:], facts, 2, np.random.default_rng(0))
    assert (drawn.success.tolist(), drawn.failure.tolist(), drawn.weight.tolist()) == ([0, 0], [0, 0], [1, 1])
    assert judge.reads_base_evidence == reads


def test_drawing_prefers_mass_and_draw_weights_undo_the_preference_on_average() -> None:
    # In random order: where masses repeat every N/B groups, systematic sampling always meets the same one.
    correct = np.random.default_rng(1).permutation(np.repeat(np.arange(1, 6), 6))
    entries = [entry(i, int(c)) for i, c in enumerate(correct)]
    facts = gates([float(e.c) for e in entries], [float(8 - e.c) for e in entries])
    # Half uniform, so that no inclusion probability is so small that 400 draws are too few to see its mean.
    judge, rows = Opinions(ObjectiveConfig(), GatingConfig(), DrawConfig(epsilon=0.5)), np.arange(30)
    mass = judge.masses(entries, rows, facts)
    rng, total, count = np.random.default_rng(0), np.zeros(30), np.zeros(30)
    for _ in range(400):
        drawn = judge.draw(entries, rows, mass, facts, 6, rng)
        index = [int(e.problem_id[1:]) for e in drawn.entries]
        total[index] += drawn.weight
        count[index] += 1
    assert count[np.argmax(mass)] > 1.5 * count[np.argmin(mass)]
    # E[Σ weight · x] / B = mean of x: the expected weight of each group is B/N, so of the six with the same c 6·B/N.
    assert [total[correct == c].sum() / 400 for c in range(1, 6)] == pytest.approx([6 * 6 / 30] * 5, rel=0.1)


def test_delta_comes_from_entropy_and_its_floor_rises_with_the_lag_of_the_batch() -> None:
    judge = Opinions(ObjectiveConfig(), GatingConfig(target_entropy=1.0), DrawConfig())
    judge.fade.update(0.2, 0.1)  # δ = 1 + .1 − 1 = .1, under every floor
    rng, rows = np.random.default_rng(0), np.array([0])
    for lag, floor in ((0, 0.3), (2, 0.65), (4, 1.0)):
        facts = gates([2.0], [6.0], version=lag)
        assert judge.draw([entry(0, 2)], rows, np.ones(1), facts, 1, rng).delta == pytest.approx(floor)


def test_ha_dw_compares_a_group_with_the_belief_that_training_has_come_to() -> None:
    judge = opinions(advantage="ha_dw", params={"scale": 1.0})
    judge.anchor.update(0.75)
    plain = opinions(advantage="grpo")
    rng, facts = np.random.default_rng(0), gates([2.0], [6.0])
    one, two = (o.draw([entry(0, 2)], np.array([0]), np.ones(1), facts, 1, rng) for o in (judge, plain))
    # 2 of 8 is .5 below the belief: successes count e^.5 times more, failures e^.5 times less.
    assert one.success[0] == pytest.approx(two.success[0] * np.exp(0.5))
    assert one.failure[0] == pytest.approx(two.failure[0] * np.exp(-0.5))


def test_a_parameter_of_the_advantage_overrides_the_gating_section() -> None:
    sharp = opinions(params={"k": 2, "delta": 0.5})
    mild = opinions(params={"k": 2})
    facts = gates([2.0], [6.0])
    one, two = (
        o.draw([entry(0, 2)], np.array([0]), np.ones(1), facts, 1, np.random.default_rng(0)) for o in (sharp, mild)
    )
    assert one.failure[0] == pytest.approx(2 * two.failure[0])
    assert one.success[0] == pytest.approx(two.success[0])
