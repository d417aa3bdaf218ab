"""Boundary utility, gates and posterior pass@k (BBG; DESIGN §5)."""

import time

import mpmath
import numpy as np
import pytest

from gating import bbg

C = np.arange(9)


def test_utility_of_a_group_of_eight_matches_the_paper():
    u = bbg.utility(C + 1, 9 - C, 16)
    np.testing.assert_allclose(u[:6], [6, 2.0870, 0.6640, 0.1897, 0.0474, 0.00999], atol=5e-5)  # DESIGN §5
    np.testing.assert_allclose(bbg.utility([1, 2, 3], [9, 8, 7], 256), [8.727, 0.2655, 0.00709], rtol=6e-4)


def test_the_paper_gate_closes_at_four_successes_of_eight():
    is_open = bbg.gate_open(C + 1, 9 - C, 16, tau=0.01, group_size=8)
    assert is_open.tolist() == [True] * 4 + [False] * 5


@pytest.mark.parametrize("k", [2, 16, 256])
def test_utility_falls_by_the_paper_ratio_with_each_success(k):
    u = bbg.utility(C + 1, 9 - C, k)
    np.testing.assert_allclose(u[1:] / u[:-1], (8 - C[:-1]) / (8 - C[:-1] + k - 1), rtol=1e-12)  # (G−c)/(G−c+k−1)


@pytest.mark.parametrize(
    ("A", "B", "k"),
    [
        (1, 1, 8),
        (0.5, 0.01, 3),
        (1, 1e7, 10**6),
        (1e7, 1e7, 2),
        (1e3, 1e7, 10**6),
        (10, 1e5, 10**6),
        (2.5, 9.999, 16),
        (1e7, 1, 4),
        (3, 1e7, 1),
    ],
)
def test_utility_and_pass_at_k_agree_with_fifty_digits(A, B, k):
    with mpmath.workdps(50):

        def moment(m):
            return mpmath.exp(
                mpmath.loggamma(A + mpmath.mpf(B))
                + mpmath.loggamma(mpmath.mpf(B) + m)
                - mpmath.loggamma(B)
                - mpmath.loggamma(mpmath.mpf(A) + B + m)
            )

        u, miss = float(k * moment(k - 1)), float(1 - moment(k))
    assert float(bbg.utility(A, B, k)) == pytest.approx(u, rel=2e-9)
    assert float(bbg.posterior_pass_at_k(A, B, k)) == pytest.approx(miss, rel=2e-9)


def test_pooled_gate_is_a_share_of_its_maximum_and_closes_below_tau():
    gates = bbg.gate([0, 0, 50], [0, 1000, 50], k=8, tau=0.01)
    np.testing.assert_allclose(gates, [1 / 8, 1001 / 1008, 0.0], rtol=1e-12)  # E[q^7] = (B…)/(A+B…): 1/8 and B/(B+7)


def test_open_gates_are_normalised_to_mean_one_and_closed_ones_stay_closed():
    np.testing.assert_allclose(bbg.normalise_over_active([0.0, 0.2, 0.6]), [0.0, 0.5, 1.5])
    np.testing.assert_allclose(bbg.normalise_over_active([0.0, 0.0]), [0.0, 0.0])


def test_a_million_problems_are_gated_in_under_a_second():
    rng = np.random.default_rng(0)
    a, b = rng.exponential(20, 10**6), rng.exponential(20, 10**6)
    start = time.process_time()
    gates = bbg.gate(a, b, k=16)
    assert time.process_time() - start < 1.0
    assert gates.min() >= 0.0
    assert gates.max() <= 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bbg.utility(0, 1, 8), r"A is 0 but must be a finite number in \(0, inf\)"),
        (lambda: bbg.utility(1, 1, 0.5), "k is 0.5"),
        (lambda: bbg.gate([], [], 8), "a is empty"),
        (lambda: bbg.gate(np.nan, 1.0), "a is nan"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_hopeless_problem_fades_after_its_patience_but_never_to_zero():
    np.testing.assert_allclose(bbg.patience_factor([0, 100, 200, 10_000], patience=200), [1, 1, 1, 0.02], rtol=1e-12)


def test_the_retest_floor_reaches_solved_and_hopeless_problems():
    np.testing.assert_allclose(bbg.with_retest_floor([0.0, 0.004, 0.5], 0.02), [0.02, 0.02, 0.5])
