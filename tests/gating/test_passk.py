"""The unbiased pass@k estimator."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from gating import passk


@pytest.mark.parametrize(("n", "c", "k"), [(256, 3, 1), (256, 3, 16), (256, 3, 64), (10, 4, 7), (10, 0, 3), (8, 8, 8)])
def test_it_is_the_chance_that_k_of_n_contain_a_success(n, c, k):
    assert float(passk.pass_at_k(n, c, k)) == pytest.approx(1 - comb(n - c, k) / comb(n, k), rel=1e-12, abs=1e-15)


def test_it_is_stable_for_a_hundred_thousand_samples():
    exact = 1 - comb(10**5 - 7, 5000) / comb(10**5, 5000)
    assert float(passk.pass_at_k(10**5, 7, 5000)) == pytest.approx(exact, rel=1e-9)


def test_paired_difference_has_the_error_of_the_differences():
    mean, error = passk.paired_difference([0.5, 0.7, 0.9], [0.4, 0.7, 0.5])
    assert mean == pytest.approx(1 / 6)
    assert error == pytest.approx(np.std([0.1, 0.0, 0.4], ddof=1) / np.sqrt(3))


def test_more_tries_than_samples_are_refused():
    with pytest.raises(ValueError, match=r"k is 9 but must be in \[1, 8\]"):
        passk.pass_at_k(8, 1, 9)


def test_the_curve_has_the_mean_and_error_over_problems():
    mean, error = passk.curve([8, 8, 16], [0, 2, 8], [1, 4])
    values = np.array([[passk.pass_at_k(n, c, k) for k in (1, 4)] for n, c in ((8, 0), (8, 2), (16, 8))])
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(error, values.std(axis=0, ddof=1) / np.sqrt(3), rtol=1e-12)


def test_the_bootstrap_error_is_that_of_the_mean():
    values = np.random.default_rng(0).uniform(size=400)
    error, low, high = passk.bootstrap(values, np.random.default_rng(1), level=0.95)
    assert error == pytest.approx(values.std() / 20, rel=0.06)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_max_at_k_is_the_mean_best_of_all_subsets_and_pass_at_k_for_binary_rewards():
    rewards = np.array([0.3, 0.1, 0.9, 0.4, 0.2, 0.3])
    expected = np.mean([max(s) for s in combinations(rewards, 3)])
    assert float(passk.max_at_k(rewards, 3)) == pytest.approx(expected, rel=1e-12)
    binary = [[1, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_allclose(passk.max_at_k(binary, 2), passk.pass_at_k(5, [2, 0], 2), atol=1e-15)


def test_successes_fall_into_the_second_half_by_chance_as_often_as_the_paper_says():
    assert float(passk.second_half_only(8, 3)) == pytest.approx(comb(8, 3) / comb(16, 3), rel=1e-12)
    assert passk.second_half_only(4, [0, 5]).tolist() == [1.0, 0.0]
