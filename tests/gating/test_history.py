"""Advantages that read history or log-probabilities."""

import numpy as np
import pytest

from gating.advantages import bind, make, per_completion
from gating.history import DifficultyAnchor


def test_ha_dw_praises_less_and_blames_more_on_groups_easier_than_history():
    """λ·exp(−sgn(A)·sgn(d)·|d|), d = r̄ − C (arXiv 2601.08521, eq. 16)."""
    advantage, plain = make("ha_dw", anchor=0.25, scale=1.3), make("grpo")
    assert float(advantage.success(4, 8) / plain.success(4, 8)) == pytest.approx(1.3 * np.exp(-0.25), rel=1e-12)
    assert float(advantage.failure(4, 8) / plain.failure(4, 8)) == pytest.approx(1.3 * np.exp(0.25), rel=1e-12)
    assert float(advantage.success(1, 8) / plain.success(1, 8)) == pytest.approx(1.3 * np.exp(0.125), rel=1e-12)
    assert bind("ha_dw", {}, anchor=0.9, alpha=2.0).anchor == 0.9


def test_the_difficulty_anchor_moves_with_the_spread_of_its_own_past():
    anchor = DifficultyAnchor(rate=0.5, window=3)
    assert anchor.update(0.4) == 0.4  # the first batch
    assert anchor.update(0.8) == pytest.approx(0.4 + 0.5 * 1.0 * 0.4)  # σ = 1 until two beliefs are known
    expected = 0.6 + 0.5 * np.std([0.4, 0.6]) * (0.1 - 0.6)
    assert anchor.update(0.1) == pytest.approx(expected)
    other = DifficultyAnchor(rate=0.5, window=3)
    other.load_state_dict(anchor.state_dict())
    assert other.update(0.7) == anchor.update(0.7)
    with pytest.raises(ValueError, match="must have exactly"):
        other.load_state_dict({})


def test_unlikely_pays_the_rarest_success_most():
    rewards = np.array([[1.0, 1.0, 0.0, 1.0]])
    logprobs = np.array([[-1.0, -3.0, -2.0, -4.0]])  # ranks 0, 2, 1, 3 from the likeliest
    shaped = np.array([1 - 0.25, 1 - 0.25 * 2 / 4, 0.0, 1 - 0.25 / 4])
    got = make("unlikely", beta=0.25).completions(rewards, logprobs)[0]
    np.testing.assert_allclose(got, (shaped - shaped.mean()) / shaped.std(ddof=1), rtol=1e-12)


def test_unlikely_does_not_depend_on_the_order_of_equally_likely_completions():
    rewards, logprobs = np.array([[1.0, 1.0, 0.0]]), np.full((1, 3), -2.0)
    got = make("unlikely").completions(rewards, logprobs)[0]
    assert got[0] == got[1]


def test_mc_grpo_is_centred_on_the_median_and_refuses_binary_rewards():
    got = make("mc_grpo").completions([[0.1, 0.5, 0.9, 0.4, 0.6]])
    np.testing.assert_allclose(got, [[-4.0, 0.0, 4.0, -1.0, 1.0]], rtol=1e-12)
    with pytest.raises(ValueError, match="use drgrpo or rloo"):
        make("mc_grpo").completions([[0.0, 1.0, 1.0]])


def test_an_advantage_that_reads_logprobs_says_so_when_it_gets_none():
    with pytest.raises(ValueError, match="'ds_grpo' reads logprobs"):
        per_completion(make("ds_grpo"), [[0.0, 1.0]])
    with pytest.raises(ValueError, match="logprobs has shape"):
        per_completion(make("ds_grpo"), [[0.0, 1.0]], [0.0])
    with pytest.raises(ValueError, match=r"holds 0\.5"):
        per_completion(make("grpo"), [[0.0, 0.5]])
