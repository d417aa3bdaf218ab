"""The filtered model: β ↔ μ, divergences, and the coefficients that fit it (DESIGN §5)."""

import itertools

import numpy as np
import pytest

from gating import filtered

rng = np.random.default_rng(3)
BASE = np.array([0.05, 0.02, 0.4, 0.28, 0.25])
RIGHT = np.array([1.0, 1.0, 0.0, 0.0, 1.0])
LOGITS = np.array([0.3, -0.4, -1.1, 0.8, 0.1])


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max())
    return e / e.sum()


def numeric_gradient(value, logits, step=1e-5):
    return np.array([(value(logits + step * e) - value(logits - step * e)) / (2 * step) for e in np.eye(len(logits))])


def test_beta_matches_the_paper():
    got = filtered.beta_of([0.1, 0.01, 0.5, 0.001], [0.9, 0.5, 0.8, 0.99])
    np.testing.assert_allclose(got, [0.2276, 0.2176, 0.7213, 0.0869], atol=5e-5)  # DESIGN §5


def test_beta_and_mu_are_inverse_down_to_tiny_solve_rates():
    p, mu = np.array([1e-12, 1e-3, 0.2, 0.9]), np.array([0.999, 1e-2, 0.21, 0.99])
    np.testing.assert_allclose(filtered.mu_of(p, filtered.beta_of(p, mu)), mu, rtol=1e-10)


def test_the_tilted_model_has_the_stated_kl_tv_and_free_energy():
    beta = 0.4
    tilted = BASE * np.exp(RIGHT / beta)
    tilted /= tilted.sum()
    p, mu = BASE @ RIGHT, tilted @ RIGHT
    target = BASE * RIGHT / p
    assert float(filtered.mu_of(p, beta)) == pytest.approx(mu, rel=1e-12)
    assert float(filtered.kappa(mu, p)) == pytest.approx(np.sum(tilted * np.log(tilted / BASE)), rel=1e-12)
    right = RIGHT == 1
    kl = np.sum(target[right] * np.log(target[right] / tilted[right]))
    assert float(filtered.kl_filtered_tilted(mu)) == pytest.approx(kl, rel=1e-12)
    assert float(filtered.tv(mu)) == pytest.approx(0.5 * np.abs(target - tilted).sum(), rel=1e-12)
    value = mu - beta * np.sum(tilted * np.log(tilted / BASE))
    assert float(filtered.free_energy(p, beta)) == pytest.approx(value, rel=1e-12)


def test_kappa_is_finite_at_both_ends():
    np.testing.assert_allclose(filtered.kappa([0.0, 1.0, 0.3], [0.1, 0.1, 0.3]), [-np.log(0.9), -np.log(0.1), 0.0])


def test_free_energy_of_a_tiny_beta_does_not_overflow():
    assert float(filtered.free_energy(0.1, 1e-4)) == pytest.approx(1.0 + 1e-4 * np.log(0.1), rel=1e-12)


def test_a_problem_whose_target_is_out_of_reach_says_so():
    got = filtered.problem_beta([0.0, 30.0, 3.0], [1e7, 2.0, 27.0], mu=0.9, beta_min=0.1, beta_max=5.0)
    assert got.clipped.tolist() == [True, True, False]
    assert got.beta[:2].tolist() == [0.1, 5.0]  # hopeless: as little KL weight as allowed; solved: stay near the base
    p = 4 / 32
    assert got.beta[2] == pytest.approx(float(filtered.beta_of(p, 0.9)))
    assert got.mu[2] == pytest.approx(0.9)
    assert got.mu[0] < 0.01


def divergence_value(name, pi, target, alpha=0.25):
    """D_f(π‖target) with the value at target = 0 in closed form: f'(∞)·π."""
    on, off = target > 0, target <= 0
    t = pi[on] / target[on]
    if name == "forward_kl":
        return np.sum(target[on] * -np.log(t))
    if name == "js":
        f = 0.5 * (t * np.log(t) - (t + 1) * np.log((t + 1) / 2))
        return np.sum(target[on] * f) + 0.5 * np.log(2) * pi[off].sum()
    if name == "tv":
        return 0.5 * np.sum(target[on] * np.abs(t - 1)) + 0.5 * pi[off].sum()
    if name == "reverse_kl":
        return np.sum(target[on] * t * np.log(t))
    if name == "chi2":
        return np.sum(target[on] * (t - 1) ** 2)
    # α: (1−α)·f with f = (t^α − 1 − α(t−1)) / (α(α−1)), f'(∞) = 1/(1−α)
    f = (t**alpha - 1 - alpha * (t - 1)) / (alpha * (alpha - 1))
    return (1 - alpha) * np.sum(target[on] * f) + pi[off].sum()


@pytest.mark.parametrize("name", filtered.DIVERGENCES)
def test_the_pseudo_reward_is_the_descent_direction_of_its_divergence(name):
    """Reverse KL and χ² are infinite once the target excludes an answer, so they are checked on a full target."""
    full = name in ("reverse_kl", "chi2")
    target = BASE if full else BASE * RIGHT / (BASE @ RIGHT)
    pi = softmax(LOGITS)
    with np.errstate(divide="ignore"):
        log_t = np.log(pi) - np.log(target)
    reward = filtered.pseudo_reward(log_t, name, cap=1e6)
    ascent = pi * (reward - pi @ reward)  # E_π[reward·∇log π] for logits
    descent = -numeric_gradient(lambda z: divergence_value(name, softmax(z), target), LOGITS)
    np.testing.assert_allclose(ascent, descent, atol=2e-9)


def test_alpha_to_zero_is_the_forward_kl_and_alpha_to_one_the_reverse():
    log_t = np.array([-2.0, -0.3, 0.0, 0.7, 1.5])
    low = filtered.pseudo_reward(log_t, "alpha", alpha=0.0, cap=100.0)
    np.testing.assert_allclose(low, filtered.pseudo_reward(log_t, "forward_kl", cap=100.0), rtol=1e-15)
    np.testing.assert_allclose(low, np.exp(-log_t) - 1, rtol=1e-14, atol=1e-15)
    high = filtered.pseudo_reward(log_t, "alpha", alpha=1 - 1e-7) / 1e-7
    np.testing.assert_allclose(high, filtered.pseudo_reward(log_t, "reverse_kl"), atol=1e-5)


def test_a_wrong_answer_gets_minus_one_and_the_cap_bounds_a_rare_right_one():
    got = filtered.pseudo_reward([np.inf, -50.0], "alpha", alpha=0.25, cap=10.0)
    assert got.tolist() == [-1.0, 10.0]
    assert filtered.pseudo_reward(np.inf, "reverse_kl") == -10.0


def enumerate_groups(coefficients) -> np.ndarray:
    pi = softmax(LOGITS)
    groups = np.array(list(itertools.product(range(5), repeat=3)))
    chance = pi[groups].prod(axis=1)
    score = np.eye(5) - pi
    return np.einsum("n,ni,nij->j", chance, coefficients(groups, pi), score[groups]) / 3


def test_kl_control_climbs_its_objective_exactly():
    beta = 0.3

    def coefficients(groups, pi):
        return filtered.kl_control(RIGHT[groups], np.log(pi)[groups], np.log(BASE)[groups], beta)

    def objective(z):
        pi = softmax(z)
        return pi @ RIGHT - beta * np.sum(pi * np.log(pi / BASE))

    np.testing.assert_allclose(enumerate_groups(coefficients), numeric_gradient(objective, LOGITS), atol=1e-9)


def test_alpha_dpg_descends_the_alpha_divergence_exactly_when_z_is_known():
    target = BASE * RIGHT / (BASE @ RIGHT)

    def coefficients(groups, pi):
        log_z = np.log(BASE @ RIGHT)
        return filtered.filtered(RIGHT[groups], np.log(pi)[groups], np.log(BASE)[groups], log_z, cap=1e6)

    descent = -numeric_gradient(lambda z: divergence_value("alpha", softmax(z), target), LOGITS)
    np.testing.assert_allclose(enumerate_groups(coefficients), descent, atol=1e-9)


def test_z_from_the_group_is_unbiased_and_blind_to_the_completion_it_serves():
    pi = softmax(LOGITS)
    groups = np.array(list(itertools.product(range(5), repeat=3)))
    log_z = filtered.log_z_from_group(RIGHT[groups], np.log(pi)[groups], np.log(BASE)[groups])
    assert pi[groups].prod(axis=1) @ np.exp(log_z[:, 0]) == pytest.approx(BASE @ RIGHT, rel=1e-12)
    for rest in range(25):  # the first completion varies, the other two do not
        assert np.ptp(np.exp(log_z[rest::25, 0])) < 1e-15


def test_a_group_without_any_right_answer_yields_finite_coefficients():
    logp = np.full((1, 4), -3.0)
    log_z = filtered.log_z_from_group(np.zeros((1, 4)), logp, logp)
    assert (log_z == -np.inf).all()
    np.testing.assert_allclose(filtered.filtered(np.zeros((1, 4)), logp, logp, log_z), 0.0)
    one = filtered.filtered([[1.0, 0, 0, 0]], logp, logp, -np.inf)
    np.testing.assert_allclose(one, [[11.0, -11 / 3, -11 / 3, -11 / 3]])


def test_z_from_the_posterior_is_its_mean_solve_rate():
    assert float(filtered.log_z_from_posterior(3, 27)) == pytest.approx(np.log(4 / 32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: filtered.beta_of(0.5, 0.4), r"mu is 0.4 but must be in \(0.5, 1\)"),
        (lambda: filtered.beta_of(0.0, 0.4), r"p is 0 but must be a finite number in \(0, 1\)"),
        (lambda: filtered.mu_of(0.1, 0.0), r"beta is 0 but must be"),
        (lambda: filtered.pseudo_reward(np.nan), "log_t is nan"),
        (lambda: filtered.pseudo_reward(0.0, "hellinger"), "divergence is 'hellinger' but must be one of alpha"),
        (lambda: filtered.kl_control([[1.0, 0.0]], [[0.0]], [[0.0, 0.0]], 1.0), "must all be the same"),
        (lambda: filtered.filtered([[1.0]], [[0.0]], [[0.0]], 0.0), "at least 2"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
