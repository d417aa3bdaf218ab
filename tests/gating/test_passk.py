"""The unbiased pass@k estimator."""

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
