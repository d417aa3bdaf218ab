"""Lazy discount and the Beta posterior (DESIGN §4)."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gating import posterior

GROUPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 30)).map(
        lambda t: (min(t[:2]), max(*t[:2], 1), t[2])
    ),
    min_size=1,
    max_size=8,
)


def replay(groups: list[tuple[int, int, int]], gamma: float) -> tuple[float, float, float]:
    a, b, v = (np.asarray(0.0),) * 3
    for c, G, w in groups:
        a, b, v = posterior.discount(a, b, v, c, G, w, gamma)
    return float(a), float(b), float(v)


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(0.5, 1.0), st.randoms(use_true_random=False))
def test_any_order_of_the_same_groups_gives_the_same_evidence(groups, gamma, random):
    shuffled = list(groups)
    random.shuffle(shuffled)
    first, second = replay(groups, gamma), replay(shuffled, gamma)
    assert first[2] == second[2]
    np.testing.assert_allclose(first[:2], second[:2], rtol=1e-12, atol=1e-300)
    assert min(first[:2]) >= 0.0


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(0.5, 1.0))
def test_evidence_is_the_sum_of_each_group_discounted_to_the_latest_version(groups, gamma):
    a, b, v = replay(groups, gamma)
    latest = max([0, *(w for _, _, w in groups)])
    assert v == latest
    assert a == pytest.approx(sum(gamma ** (latest - w) * c for c, _, w in groups), rel=1e-12)
    assert b == pytest.approx(sum(gamma ** (latest - w) * (G - c) for c, G, w in groups), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(0.5, 1.0), st.integers(30, 40))
def test_taking_a_group_out_leaves_what_the_others_said(groups, gamma, now):
    c, G, w = groups[-1]
    a, b = posterior.evidence_at(*replay(groups, gamma), now, gamma)
    left = posterior.without_group(a, b, c, G, w, now, gamma)
    others = posterior.evidence_at(*replay(groups[:-1], gamma), now, gamma) if groups[:-1] else (0.0, 0.0)
    np.testing.assert_allclose(left, others, rtol=1e-9, atol=1e-9)


def test_a_late_group_counts_with_discount():
    a, b, v = posterior.discount(4.0, 2.0, v=10, c=3, G=8, w=8, gamma=0.5)
    assert (float(a), float(b), float(v)) == (4.0 + 0.25 * 3, 2.0 + 0.25 * 5, 10.0)


def test_a_new_group_ages_the_old_evidence():
    a, b, v = posterior.discount(4.0, 2.0, v=8, c=3, G=8, w=10, gamma=0.5)
    assert (float(a), float(b), float(v)) == (1.0 + 3.0, 0.5 + 5.0, 10.0)


def test_taking_out_a_group_that_was_never_counted_stops_at_zero():
    a, b = posterior.without_group(1.0, 0.0, c=4, G=8, w=3, now=3, gamma=0.9)
    assert (float(a), float(b)) == (0.0, 0.0)


def test_posterior_mean_and_pass_at_k_of_no_evidence_are_those_of_the_uniform_prior():
    assert float(posterior.mean(0, 0)) == 0.5
    # E[1 − q^k] = 1 − 1/(k+1) under Beta(1,1)
    np.testing.assert_allclose(posterior.pass_at_k(0, 0, [1, 4, 16]), [1 / 2, 4 / 5, 16 / 17], rtol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posterior.discount(0, 0, 0, 9, 8, 0, 0.9), r"c is 9 but must be in \[0, 8\]"),
        (lambda: posterior.discount(0, 0, 0, 1, 8, 0, 0.0), r"gamma is 0 but must be a finite number in \(0, 1\]"),
        (lambda: posterior.discount(-1, 0, 0, 1, 8, 0, 0.9), r"a is -1 but must be a finite number in \[0, inf\)"),
        (lambda: posterior.mean([], []), "a is empty"),
        (lambda: posterior.mean(np.nan, 0), "a is nan"),
        (lambda: posterior.discount(0, 0, 0, 1.5, 8, 0, 0.9), "c is 1.5 but must be a whole number"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("A", "B"), [(1, 1), (0.5, 0.5), (3, 900), (50, 50), (1.5, 2e4)])
def test_the_credible_interval_holds_its_level_by_fifty_digits(A, B):
    low, high = posterior.credible_interval(0, 0, level=0.9, prior=(A, B))
    for x, tail in ((low, 0.05), (high, 0.95)):
        assert float(mpmath.betainc(A, B, 0, float(x), regularized=True)) == pytest.approx(tail, rel=1e-10)


def test_the_credible_interval_of_ten_million_samples_is_the_normal_one():
    low, high = posterior.credible_interval(3e6, 7e6)
    half = 1.959963984540054 * np.sqrt(0.3 * 0.7 / 1e7)
    np.testing.assert_allclose([low, high], [0.3 - half, 0.3 + half], atol=1e-3 * half)


def test_no_evidence_gives_the_interval_of_the_uniform_prior():
    low, high = posterior.credible_interval([0, 0], [0, 7], level=0.95)
    np.testing.assert_allclose(low, [0.025, 1 - 0.975 ** (1 / 8)], rtol=1e-12)  # Beta(1, 8): 1 − (1−x)^8
    np.testing.assert_allclose(high, [0.975, 1 - 0.025 ** (1 / 8)], rtol=1e-12)


def test_pass_at_k_interval_is_that_of_p_carried_over():
    low, high = posterior.pass_at_k_interval(2, 20, k=8)
    p = posterior.credible_interval(2, 20)
    np.testing.assert_allclose([low, high], [1 - (1 - q) ** 8 for q in p], rtol=1e-12)
    assert float(low) < float(posterior.pass_at_k(2, 20, 8)) < float(high)


def test_evidence_is_forgotten_when_it_weighs_no_more_than_the_prior():
    versions = posterior.versions_until_forgotten(30, 34, gamma=0.5)
    assert float(versions) == 5.0  # 64 · 2^−5 = 2 = the prior's weight
    assert float(posterior.versions_until_forgotten(0.5, 0.5, gamma=0.9)) == 0.0
    assert np.isinf(posterior.versions_until_forgotten(30, 34, gamma=1.0))
    assert posterior.mean_memory(0.97) == pytest.approx(1 / 0.03)
