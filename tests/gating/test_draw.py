"""Systematic PPS sampling and its corrections (DESIGN §5, Drawing)."""

import numpy as np
import pytest

from gating import draw


def test_every_group_is_drawn_exactly_as_often_as_its_inclusion_says():
    weights = np.array([0.0, 1, 2, 3, 5, 8, 40, 0.5, 0.0])  # 40 of 59.5 is certain at B = 3
    inclusion = draw.inclusion_probabilities(weights, 3)
    assert inclusion[6] == 1.0
    np.testing.assert_allclose(inclusion[1:6], 2 * weights[1:6] / 19.5, rtol=1e-12)
    draws = 100_000
    hits = np.zeros(9)
    for u in np.random.default_rng(5).random(draws):
        hits[draw.select(inclusion, u)] += 1
    deviation = np.abs(hits / draws - inclusion)
    assert (deviation <= 4.5 * np.sqrt(inclusion * (1 - inclusion) / draws) + 1e-12).all()
    assert hits[6] == draws
    assert hits[0] == hits[8] == 0


def test_inclusion_sums_to_the_batch_through_several_certainty_rounds():
    weights = np.array([1e6, 1e3, 10.0, 1, 1, 1, 1, 1])
    inclusion = draw.inclusion_probabilities(weights, 5)
    np.testing.assert_allclose(inclusion, [1, 1, 1, 0.4, 0.4, 0.4, 0.4, 0.4], rtol=1e-12)


def test_fewer_groups_than_asked_for_all_come_back_with_certainty():
    indices, inclusion = draw.systematic_pps(np.array([0.0, 2.0, 0.0, 1.0]), 4, np.random.default_rng(0))
    assert indices.tolist() == [1, 3]
    assert inclusion.tolist() == [1.0, 1.0]
    assert draw.systematic_pps(np.zeros(3), 2, np.random.default_rng(0))[0].size == 0


def test_the_corrected_batch_mean_is_unbiased():
    rng = np.random.default_rng(1)
    N, B = 12, 4
    weights, value = rng.exponential(size=N) ** 2, rng.normal(size=N)
    total = []
    for _ in range(4_000):
        indices, inclusion = draw.systematic_pps(weights, B, rng)
        total.append(np.mean(draw.draw_weights(inclusion, N, B) * value[indices]))
    assert np.mean(total) == pytest.approx(value.mean(), abs=4.5 * np.std(total) / np.sqrt(len(total)))


def test_a_batch_never_repeats_a_group():
    rng = np.random.default_rng(2)
    for _ in range(300):
        indices, _ = draw.systematic_pps(rng.exponential(size=50) ** 3, 20, rng)
        assert np.unique(indices).size == 20


def test_priorities_mix_freshness_and_a_uniform_share_over_groups_with_mass():
    p = draw.weights(mass=[0.0, 1.0, 1.0], lag=[0, 0, 1], freshness=0.5, epsilon=0.1)
    np.testing.assert_allclose(p, [0.0, 0.9 * 2 / 3 + 0.05, 0.9 / 3 + 0.05], rtol=1e-12)
    assert draw.weights([0.0, 0.0], [0, 0]).tolist() == [0.0, 0.0]


def test_beta_zero_leaves_the_batch_as_it_was_drawn():
    assert draw.draw_weights([0.2, 1.0], N=10, B=2, beta=0.0).tolist() == [1.0, 1.0]


def test_bad_input_is_refused_by_name():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="weights is nan"):
        draw.systematic_pps(np.array([1.0, np.nan]), 1, rng)
    with pytest.raises(ValueError, match=r"B is 0 but must be"):
        draw.systematic_pps(np.array([1.0]), 0, rng)
    with pytest.raises(ValueError, match=r"freshness is 0 but must be"):
        draw.weights([1.0], [0], freshness=0.0)
    with pytest.raises(ValueError, match=r"inclusion is 0 but must be"):
        draw.draw_weights([0.0], 1, 1)
