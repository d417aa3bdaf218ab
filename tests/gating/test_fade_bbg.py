"""Verge's default advantage: what multiplies (r − b) never sees r (DESIGN §5, LAB.md claim 6)."""

import numpy as np
import pytest

from gating import bbg
from gating.advantages import bind, group_mass, make


def by_hand(rewards, i, *, k=8, tau=0.01, prior=(1.0, 1.0), alpha=1.0, delta=1.0, ea=0.0, eb=0.0, scale=1.0):
    """The definition, one completion at a time, from rewards and not from counts."""
    others = np.delete(rewards, i)
    A, B = prior[0] + ea + others.sum(), prior[1] + eb + (1 - others).sum()
    b = (prior[0] + ea + (rewards.sum() - rewards[i])) / (sum(prior) + ea + eb + len(rewards) - 1)
    share = float(bbg.utility(A, B, k)) / k
    factor = (share if share >= tau else 0.0) * scale * (1 - b) ** (alpha - 1)
    return factor * (rewards[i] - b) / (delta if rewards[i] < b else 1.0)


@pytest.mark.parametrize("c", range(6))
def test_it_is_the_definition_for_every_count(c):
    settings = {"alpha": 2.25, "delta": 0.6, "k": 8}
    advantage = make("fade_bbg", evidence_a=2.5, evidence_b=7.0, gate_scale=1.7, prior_a=0.5, prior_b=2.0, **settings)
    rewards = np.array([1.0] * c + [0.0] * (5 - c))
    context = {"ea": 2.5, "eb": 7.0, "scale": 1.7, "prior": (0.5, 2.0)}
    if c > 0:
        assert float(advantage.success(c, 5)) == pytest.approx(by_hand(rewards, 0, **settings, **context), rel=1e-12)
    if c < 5:
        assert float(advantage.failure(c, 5)) == pytest.approx(by_hand(rewards, -1, **settings, **context), rel=1e-12)


@pytest.mark.parametrize("others", range(8))
def test_nothing_that_multiplies_the_reward_depends_on_it(others):
    """Same group-mates, other reward: A(1)/(1−b) = A(0)/(0−b), for every number of right answers among the mates."""
    advantage = make("fade_bbg", alpha=2.0, evidence_a=[0.0, 3.0], evidence_b=[0.0, 40.0])
    right = advantage.success([others + 1] * 2, 8)
    wrong = advantage.failure([others] * 2, 8)
    b = (1.0 + np.array([0.0, 3.0]) + others) / (2.0 + np.array([0.0, 43.0]) + 7)
    np.testing.assert_allclose(right / (1 - b), wrong / -b, rtol=1e-12)
    assert (right - wrong >= 0).all()
    np.testing.assert_allclose(b * right + (1 - b) * wrong, 0.0, atol=1e-15)  # E[A] = 0 where p = b


def test_an_all_wrong_group_still_teaches_and_nothing_is_nan():
    advantage = make("fade_bbg", alpha=3.0, delta=0.5)
    c = np.arange(9)
    for value in (advantage.success(c, 8), advantage.failure(c, 8), group_mass(advantage, c, 8)):
        assert np.isfinite(value).all()
    assert float(advantage.failure(0, 8)) == pytest.approx(-(8 / 15) * (8 / 9) ** 2 * (1 / 9) / 0.5, rel=1e-12)
    assert group_mass(advantage, 0, 8) > 0


def test_evidence_is_read_group_by_group():
    advantage = make("fade_bbg", evidence_a=np.array([0.0, 90.0]), evidence_b=np.array([100.0, 60.0]))
    mass = group_mass(advantage, np.array([1, 1]), 8)
    assert mass[0] > 0
    assert mass[1] == 0.0  # solved three times of five: E[(1−p)^7] is below τ


def test_training_supplies_what_the_user_left_open():
    context = {"alpha": 2.0, "delta": 0.5, "evidence_a": np.ones(2), "evidence_b": np.zeros(2), "gate_scale": 3.0}
    bound = bind("fade_bbg", {"delta": 1.0, "k": 4}, **context)
    assert (bound.alpha, bound.delta, bound.k, bound.gate_scale) == (2.0, 1.0, 4, 3.0)
    assert (bind("fade", {}, **context).alpha, bind("fade", {}, **context).delta) == (2.0, 0.5)
    assert bind("drgrpo", {}, **context).success(1, 4) == 0.75
