"""KL-controlled reward and the filtered model as advantages: worked out by hand, and what they refuse."""

import numpy as np
import pytest

from gating.advantages import make, per_completion

REWARDS = np.array([[1.0, 1.0, 0.0]])
LOGPROBS = np.log([[0.4, 0.1, 0.5]])
REFERENCE = np.log([[0.2, 0.1, 0.5]])


def test_kl_control_is_reward_less_the_kl_minus_the_mean_of_the_others():
    got = make("kl_control", beta=0.5).completions(REWARDS, LOGPROBS, REFERENCE)[0]
    # v − β·log(π/a) = 1 − .5·log 2, 1, 0.
    first = 1 - 0.5 * np.log(2)
    np.testing.assert_allclose(got, [first - 0.5, 1 - first / 2, -(first + 1) / 2], rtol=1e-12)


def test_a_target_solve_rate_gives_each_problem_the_beta_that_reaches_it():
    # The posterior mean of 4 right and 4 wrong under Beta(1, 1) is 1/2, so β(.5 → .8) = 1/log 4 = .7213 (DESIGN §5).
    aimed = make("kl_control", mu=0.8, base_a=4.0, base_b=4.0)
    fixed = make("kl_control", beta=0.7213475204444817)
    for advantage in (aimed, fixed):
        assert advantage.min_group == 2
    np.testing.assert_allclose(
        aimed.completions(REWARDS, LOGPROBS, REFERENCE), fixed.completions(REWARDS, LOGPROBS, REFERENCE), atol=1e-12
    )
    assert (aimed.reads_base_evidence, fixed.reads_base_evidence) == (True, False)


def test_filtered_pays_a_right_answer_that_is_too_rare_and_charges_one_that_is_too_likely():
    got = make("filtered", z="posterior", base_a=2.0, base_b=4.0).completions(REWARDS, LOGPROBS, REFERENCE)[0]
    # Z = 3/8, so t = π·Z/a = 3/4, 3/8, and infinite for the wrong answer; pseudo-reward t^(−3/4) − 1.
    paid = np.array([(3 / 4) ** -0.75 - 1, (3 / 8) ** -0.75 - 1, -1.0])
    np.testing.assert_allclose(got, [paid[i] - (paid.sum() - paid[i]) / 2 for i in range(3)], rtol=1e-12)


def test_filtered_estimates_z_from_the_others_of_the_group_and_caps_what_it_cannot_know():
    got = make("filtered", cap=5.0).completions(REWARDS, LOGPROBS, REFERENCE)[0]
    # The others' mean of v·a/π: for the first (1 + 0)/2, for the second (1/2 + 0)/2: t = 2·1/2 = 1 and 1/4.
    paid = np.array([0.0, min(4**0.75 - 1, 5.0), -1.0])
    np.testing.assert_allclose(got, [paid[i] - (paid.sum() - paid[i]) / 2 for i in range(3)], rtol=1e-12)
    alone = make("filtered", cap=5.0).completions([[1.0, 0.0]], LOGPROBS[:, :2], REFERENCE[:, :2])[0]
    np.testing.assert_allclose(alone, [6.0, -6.0], rtol=1e-12)  # the cap of 5 against −1


def test_an_advantage_says_which_groups_teach_nothing_whatever_their_log_probs():
    c, G = [0, 2, 4, 1], [4, 4, 4, 1]
    assert make("filtered").teaches(c, G).tolist() == [False, True, True, False]
    assert make("kl_control", beta=1.0).teaches(c, G).tolist() == [True, True, True, False]
    assert make("unlikely").teaches(c, G).tolist() == [False, True, True, False]
    assert make("ds_grpo").teaches(c, G).tolist() == [True, True, True, True]
    rng = np.random.default_rng(0)
    logprobs, reference = -rng.exponential(size=(2, 1, 4))
    assert not make("unlikely").completions(np.zeros((1, 4)), logprobs).any()
    assert not make("filtered").completions(np.zeros((1, 4)), logprobs, reference).any()
    assert make("kl_control", beta=1.0).completions(np.zeros((1, 4)), logprobs, reference).all()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "needs either beta, one for all, or mu, a solve rate to reach; it got neither"),
        ({"beta": 0.1, "mu": 0.9}, "it got beta = 0.1 and mu = 0.9"),
        ({"mu": 1.0}, r"mu is 1 but must be a finite number in \(0, 1\)"),
        ({"beta": 0.1, "beta_max": 0.01}, "beta_max is 0.01 but must be"),
    ],
)
def test_kl_control_refuses_what_contradicts_itself(params, message):
    with pytest.raises(ValueError, match=message):
        make("kl_control", **params)


def test_without_a_reference_both_say_so():
    for advantage in (make("kl_control", beta=1.0), make("filtered")):
        with pytest.raises(ValueError, match=r"reads reference, \[groups, completions\], but got none"):
            per_completion(advantage, REWARDS, LOGPROBS)
    with pytest.raises(ValueError, match="z is 'mean'"):
        make("filtered", z="mean")
