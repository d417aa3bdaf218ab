"""Masses, slopes and the surrogate, for every advantage: golden numbers and exact enumeration (DESIGN §5)."""

import itertools
from math import comb
from typing import Any

import numpy as np
import pytest

from gating import framework
from gating.advantages import CountAdvantage, find, make, names, per_completion

P = np.array([0.05, 0.2, 0.5, 0.8])
GOLDEN: dict[str, tuple[dict[str, Any], list[float]]] = {  # F'(p)·p·q at G = 8, DESIGN §5
    "grpo": ({}, [0.110, 0.315, 0.434, 0.315]),
    "drgrpo": ({}, [0.0416, 0.140, 0.2188, 0.140]),
    "rloo": ({}, [0.0475, 0.16, 0.25, 0.16]),
    "maxrl": ({}, [0.2866, 0.6322, 0.4961, 0.2]),
    "passk": ({"k": 4}, [0.0422, 0.0983, 0.0574, 0.0039]),
    "power": ({"alpha": 2}, [0.0348, 0.1015, 0.1094, 0.0385]),
    "rs_grpo": ({"beta": 2}, [0.0674, 0.1755, 0.1774, 0.0812]),
}
SETTINGS: dict[str, list[dict[str, Any]]] = {  # beside the defaults
    "asymre": [{"offset": 0.2}],
    "opo": [{"length_ratio": 2.5}],
    "power": [{"alpha": 0.5}],
    "f_grpo": [{"gamma": 0.5, "inner": "maxrl"}],
    "fade": [{"alpha": 3.0, "delta": 0.3}, {"alpha": 1.0, "delta": 1.0}],
    "bbg": [{"k": 4, "evidence": "pooled", "evidence_a": 2.0, "evidence_b": 5.0}],
    "fade_bbg": [{"alpha": 2.0, "delta": 0.5, "evidence_a": 1.5, "evidence_b": 9.0, "gate_scale": 2.0}],
    "passk": [{"k": 1}, {"k": 2}],
    "pkpo": [{"k": 1}, {"k": 3}],
    "ha_dw": [{"anchor": 0.2}],
}
COUNTING = [name for name in names() if issubclass(find(name), CountAdvantage)]
CASES = [(name, params) for name in COUNTING for params in [{}, *SETTINGS.get(name, [])]]


@pytest.mark.parametrize("name", GOLDEN)
def test_slopes_match_the_golden_numbers(name):
    params, golden = GOLDEN[name]
    slopes = framework.slope(make(name, **params), P, 8) * P * (1 - P)
    np.testing.assert_allclose(slopes, golden, atol=6e-4 if name == "grpo" else 6e-5)


class Softmax:
    """Five answers of which two are right, four samples: small enough to enumerate all 625 groups."""

    G = 4
    right = np.array([1.0, 0.0, 1.0, 0.0, 0.0])

    def __init__(self) -> None:
        logits = np.array([0.3, -0.4, -1.1, 0.8, 0.1])
        self.pi = np.exp(logits) / np.exp(logits).sum()
        self.p = float(self.pi @ self.right)
        self.score = np.eye(5) - self.pi  # ∇ log π(a), one row per answer
        self.groups = np.array(list(itertools.product(range(5), repeat=self.G)))
        self.chance = self.pi[self.groups].prod(axis=1)
        self.grad_p = self.pi * (self.right - self.p)

    def expected_gradient(self, advantages: np.ndarray) -> np.ndarray:
        return np.einsum("n,ni,nij->j", self.chance, advantages, self.score[self.groups]) / self.G


@pytest.mark.parametrize(("name", "params"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_the_true_expected_gradient_is_the_slope_times_the_gradient_of_p(name, params):
    policy = Softmax()
    advantage = make(name, **params)
    gradient = policy.expected_gradient(
        np.where(
            policy.right[policy.groups] == 1.0,
            advantage.success(policy.right[policy.groups].sum(axis=1), 4)[:, None],
            advantage.failure(policy.right[policy.groups].sum(axis=1), 4)[:, None],
        )
    )
    np.testing.assert_allclose(gradient, framework.slope(advantage, policy.p, 4) * policy.grad_p, atol=1e-12)


@pytest.mark.parametrize(("name", "params"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_masses_and_slope_agree_and_every_value_is_finite(name, params):
    advantage = make(name, **params)
    up, down = framework.masses(advantage, P, 8)
    np.testing.assert_allclose(framework.slope(advantage, P, 8), up / P + down / (1 - P), rtol=1e-11, atol=1e-13)
    c = np.arange(9)
    assert np.isfinite([advantage.success(c, 8), advantage.failure(c, 8)]).all()
    assert np.isfinite([advantage.success([0, 1], 1), advantage.failure([0, 1], 1)]).all()


def test_smoothing_the_right_answers_adds_the_gradient_of_their_entropy():
    """DS-GRPO: F'∇p − γ_p Σ_right π log π ∇log π + γ_n Σ_wrong π log π ∇log π, exactly."""
    policy = Softmax()
    advantage = make("ds_grpo", gamma_p=0.03, gamma_n=0.02)
    gradient = policy.expected_gradient(
        per_completion(advantage, policy.right[policy.groups], np.log(policy.pi)[policy.groups])
    )
    tilt = np.where(policy.right == 1, -0.03, 0.02) * policy.pi * np.log(policy.pi)
    expected = framework.slope(make("grpo"), policy.p, 4) * policy.grad_p + tilt @ policy.score
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_rewarding_the_unlikely_moves_mass_between_right_answers_but_not_with_beta_zero():
    policy = Softmax()
    rewards, logp = policy.right[policy.groups], np.log(policy.pi)[policy.groups]
    plain = policy.expected_gradient(per_completion(make("grpo"), rewards))
    none = policy.expected_gradient(per_completion(make("unlikely", beta=0.0), rewards, logp))
    np.testing.assert_allclose(none, plain, atol=1e-12)
    rare = policy.expected_gradient(per_completion(make("unlikely", beta=0.25), rewards, logp))
    assert policy.pi[2] < policy.pi[0]  # both right, the third answer is the rarer
    assert rare[2] / plain[2] > rare[0] / plain[0]


def test_zero_success_only_is_one_gth_of_the_gradient_of_pass_at_g():
    for G in (2, 4, 8):
        pass_at_g_slope = G * (1 - P) ** (G - 1)
        np.testing.assert_allclose(framework.slope(make("zero_only"), P, G), pass_at_g_slope / G, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_pkpo_climbs_pass_at_k(k):
    advantage = make("pkpo", k=k)
    np.testing.assert_allclose(framework.slope(advantage, P, 8), k * (1 - P) ** (k - 1), rtol=1e-12)
    np.testing.assert_allclose(framework.surrogate(advantage, P, 8), 1 - (1 - P) ** k, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_passk_is_grpo_over_all_subsets(k):
    """Chen et al.: each completion gets the mean standardised reward of the k-subsets that hold it."""
    for c in range(9):
        rewards = np.array([1.0] * c + [0.0] * (8 - c))
        subsets = list(itertools.combinations(range(8), k))
        best = np.array([rewards[list(s)].max() for s in subsets])
        std = best.std()
        standard = (best - best.mean()) / std if std > 0 else np.zeros_like(best)
        mine = make("passk", k=k)
        for i in {0, 7}:
            expected = np.mean([x for x, s in zip(standard, subsets, strict=True) if i in s])
            got = mine.success(c, 8) if rewards[i] else mine.failure(c, 8)
            assert float(got) == pytest.approx(expected, abs=1e-12)


def test_rs_grpo_is_the_reweighted_mean_of_exponentials():
    for c in (1, 4, 7):
        e = np.exp(2.0 * np.array([1.0] * c + [0.0] * (8 - c)))
        expected = (e / e.mean() - 1) / 2.0
        assert float(make("rs_grpo").success(c, 8)) == pytest.approx(expected[0], rel=1e-12)
        assert float(make("rs_grpo").failure(c, 8)) == pytest.approx(expected[-1], rel=1e-12)


def test_fade_has_its_sign_ratio_in_every_group_and_its_large_group_limit():
    advantage = make("fade", alpha=2.25, delta=0.4)
    c = np.arange(1, 8)
    np.testing.assert_allclose(-advantage.failure(c, 8) * (8 - c) / (advantage.success(c, 8) * c), 1 / 0.4, rtol=1e-12)
    np.testing.assert_allclose(framework.sign_ratio(advantage, P, 8), 0.4, rtol=1e-12)
    assert float(advantage.success(8, 8)) == 0.0
    assert float(advantage.failure(0, 8)) == 0.0
    limit = (1 - P) ** 1.25 * ((1 - P) + P / 0.4)
    np.testing.assert_allclose(framework.slope(advantage, P, 20_000), limit, rtol=1e-3)


def test_fade_without_its_two_dials_is_drgrpo():
    c = np.arange(9)
    fade, plain = make("fade", alpha=1.0, delta=1.0), make("drgrpo")
    np.testing.assert_allclose(fade.success(c, 8), plain.success(c, 8), rtol=1e-15)
    np.testing.assert_allclose(fade.failure(c, 8), plain.failure(c, 8), rtol=1e-15)


def test_surrogates_that_have_a_closed_form_match_it():
    np.testing.assert_allclose(framework.surrogate(make("rloo"), P, 8), P, rtol=1e-12)
    harmonic = sum((1 - (1 - P) ** k) / k for k in range(1, 8))  # MaxRL at G: Σ_{k<G} pass@k / k, here k <= 7
    slope = framework.slope(make("maxrl"), P, 8)
    np.testing.assert_allclose(slope, sum((1 - P) ** (k - 1) for k in range(1, 8)), rtol=1e-12)
    np.testing.assert_allclose(framework.surrogate(make("maxrl"), P, 8), harmonic, rtol=1e-12)


def test_binomial_weights_are_exact_at_both_ends():
    np.testing.assert_allclose(framework.binomial(3, [0.0, 0.25, 1.0])[:, 1], [0, 3 * 0.25 * 0.75**2, 0], atol=1e-16)
    assert framework.binomial(3, 0.0)[0] == framework.binomial(3, 1.0)[3] == 1.0
    weights = [comb(8, c) * 0.2**c * 0.8 ** (8 - c) for c in range(9)]
    np.testing.assert_allclose(framework.binomial(8, 0.2), weights, rtol=1e-13)


def test_equalised_advantages_have_the_same_mean_mass_and_a_profile_of_area_one():
    nodes, weights = np.polynomial.legendre.leggauss(64)
    p = (nodes + 1) / 2
    for name in ("grpo", "maxrl", "nsr", "bbg"):
        advantage = make(name)
        assert framework.equalising_scale(advantage, 8) * framework.mean_mass(advantage, 8) == pytest.approx(1.0)
        assert framework.difficulty_profile(advantage, p, 8) @ weights / 2 == pytest.approx(1.0)


class Halved:
    """A user's own advantage, loaded by import path."""

    def __init__(self, by: float = 2.0) -> None:
        self.by = by

    def success(self, c: Any, G: Any) -> np.ndarray:
        return (1 - np.asarray(c) / G) / self.by

    def failure(self, c: Any, G: Any) -> np.ndarray:
        return -np.asarray(c) / G / self.by


def test_a_users_own_advantage_gets_masses_and_slope_for_free():
    mine = make(f"{__name__}:Halved", by=4.0)
    np.testing.assert_allclose(framework.slope(mine, P, 8) * P * (1 - P), np.array(GOLDEN["drgrpo"][1]) / 4, atol=2e-5)


def test_every_registered_advantage_names_its_source():
    assert set(names()) >= set(COUNTING)
    for name in names():
        assert find(name).source


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("nope"), "advantage is 'nope' but must be"),
        (lambda: make("no.such.module:Thing"), "cannot be imported"),
        (lambda: make("power", beta=1), "'power' has no parameter 'beta'; its parameters: alpha"),
        (lambda: make("power", alpha="x"), "alpha is 'x' but must be a number"),
        (lambda: make("f_grpo", _inner=1), "its parameters: gamma, inner"),
        (lambda: make("asym_grpo", delta=0), r"delta is 0 but must be a finite number in \(0, inf\)"),
        (lambda: framework.slope(make("passk", k=9), 0.5, 8), "G is 8 but must be >= 9"),
        (lambda: framework.slope(make("grpo"), 1.2, 8), r"p is 1.2 but must be a finite number in \[0, 1\]"),
        (lambda: make("grpo").success(9, 8), r"c is 9 but must be in \[0, 8\]"),
        (lambda: make("grpo").success([], 8), "c is empty"),
        (lambda: make("mc_grpo").success(1, 3), "median absolute deviation"),
        (lambda: framework.masses(make("unlikely"), 0.5, 8), "'unlikely' depends on each completion's log-probability"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
