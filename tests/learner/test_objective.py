"""Corrections and losses on three-token examples worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from learner.config import CorrectionConfig, ObjectiveConfig
from learner.groups import by_verdict, training_group, why_unfit
from learner.objective import Denominator, StepStats, Tokens, correct, policy_loss
from learner.selection import DROPPED, HELD, TRAINED
from store.wire import Completion, RolloutGroup, Span, Verdict

LOG2 = math.log(2.0)
# Ratios of completion 0 (positive): 2, 4, 1/2. Of completion 1 (negative): 2, 1/2, 1. Sequence ratios: 4 and 1.
LOGPROBS = torch.tensor([-1.0, -1.0, -1.0, -2.0, -2.0, -2.0], dtype=torch.float64)
BEHAVIOUR = LOGPROBS - LOG2 * torch.tensor([1.0, 2.0, -1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
SAMPLE = torch.tensor([0, 0, 0, 1, 1, 1])
ADVANTAGE = torch.tensor([1.0, -0.5], dtype=torch.float64)


def tokens(
    behaviour: torch.Tensor = BEHAVIOUR,
    proximal: torch.Tensor | None = None,
    weight: tuple[float, float] = (1.0, 1.0),
    mark: tuple[int, ...] = (TRAINED,) * 6,
) -> Tokens:
    itself = torch.full_like(behaviour, math.nan)
    weights = torch.tensor(weight, dtype=torch.float64)
    return Tokens(behaviour, itself if proximal is None else proximal, torch.tensor(mark), SAMPLE, ADVANTAGE, weights)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1]),
        ("tis", [2, 2, 0.5, 1, 0.5, 1]),
        ("mis", [2, 0, 0.5, 0, 0.5, 1]),
        ("topr", [1, 1, 1, 1, 1, 1]),
        ("seq_tis", [2, 2, 2, 1, 1, 1]),
        ("seq_mis", [0, 0, 0, 1, 1, 1]),
        ("gspo", [4 ** (1 / 3)] * 3 + [1, 1, 1]),
        ("m2po", [2, 4, 0.5, 2, 0.5, 1]),
        ("decoupled", [2, 2, 0.5, 1, 0.5, 1]),  # without a proximal policy of its own it is tis
    ],
)
def test_each_correction_gives_the_weights_worked_out_by_hand(kind: Any, expected: list[float]) -> None:
    found = correct(LOGPROBS, tokens(), CorrectionConfig(kind=kind, trust=False))
    assert found.weight.tolist() == pytest.approx(expected)
    assert found.ratio.tolist() == pytest.approx([2, 4, 0.5, 2, 0.5, 1])


def test_decoupled_truncates_the_ratio_to_the_proximal_policy_and_judges_the_ratio_from_it() -> None:
    # π/μ is 2, 4, 1/2 and 2, 1/2, 1. With π/ρ = 1, 2, 1/2 and 1, 1/2, 4 the ratios ρ/μ are 2, 2, 1 and 2, 1, 1/4,
    # truncated at 2 and at 1.
    moved = torch.tensor([1, 2, 0.5, 1, 0.5, 4], dtype=torch.float64)
    given = tokens(proximal=LOGPROBS - moved.log())
    found = correct(LOGPROBS, given, CorrectionConfig(kind="decoupled", trust=False))
    assert found.weight.tolist() == pytest.approx([2, 4, 0.5, 1, 0.5, 1])
    assert found.ratio.tolist() == pytest.approx([2, 4, 0.5, 2, 0.5, 1])
    # The second token has gone up by 2 > 1.28, the fifth down by .5 < .9; π/μ = 2 of the first is no matter.
    found = correct(LOGPROBS, given, CorrectionConfig(kind="decoupled"))
    assert found.weight.tolist() == pytest.approx([2, 0, 0.5, 1, 0, 1])
    assert found.clipped.tolist() == [False, True, False, False, True, False]
    found = correct(LOGPROBS, given, CorrectionConfig(kind="decoupled", dual_clip=3))
    assert found.weight.tolist() == pytest.approx([2, 0, 0.5, 1, 0, 0])


def test_a_dropped_token_has_no_weight_and_counts_as_clipped_and_a_held_one_is_pulled_back() -> None:
    marked = tokens(mark=(DROPPED, HELD, TRAINED, TRAINED, HELD, TRAINED))
    found = correct(LOGPROBS, marked, CorrectionConfig(kind="m2po", trust=False), held_kl=0.5)
    assert found.weight.tolist() == pytest.approx([0, 4, 0.5, 2, 0.5, 1])
    assert found.clipped.tolist() == [True, False, False, False, False, False]
    # −.5·(ratio − 1): down from a ratio of 4, up from one of 1/2.
    assert found.pull.tolist() == pytest.approx([0, -1.5, 0, 0, 0.25, 0])
    held = correct(LOGPROBS, marked, CorrectionConfig(kind="m2po"), held_kl=0.5)
    assert held.weight.tolist() == pytest.approx([0, 0, 0.5, 2, 0, 1]), "outside of the trust region"
    assert held.pull.tolist() == found.pull.tolist()


def test_gspo_judges_a_completion_as_a_whole() -> None:
    # Geometric means: 4^(1/3) = 1.59 is above 1.28; of the negative one, with its first token missing, 2^(−1/2) = .71.
    behaviour = BEHAVIOUR.clone()
    behaviour[3] = math.nan
    found = correct(LOGPROBS, tokens(behaviour), CorrectionConfig(kind="gspo"))
    assert found.weight.tolist() == [0, 0, 0, 0, 0, 0]
    assert found.clipped.tolist() == [True, True, True, False, True, True]
    loose = CorrectionConfig(kind="gspo", clip_low=0.3, clip_high=0.6)
    found = correct(LOGPROBS, tokens(behaviour), loose)
    assert found.weight.tolist() == pytest.approx([4 ** (1 / 3)] * 3 + [0] + [2**-0.5] * 2)


@pytest.mark.parametrize("dual", [1.5, 3.0])
@pytest.mark.parametrize("kind", ["mis", "decoupled"])
def test_ppo_with_dual_clip_is_mis_in_the_trust_region_and_decoupled_on_fresh_rollouts(kind: Any, dual: float) -> None:
    rng = np.random.default_rng(0)
    logprobs = torch.tensor(-rng.exponential(size=200), requires_grad=True)
    behaviour = logprobs.detach() - torch.tensor(rng.normal(0, 0.8, 200))
    advantage, sample = torch.tensor([1.0, -0.5], dtype=torch.float64), torch.arange(200) % 2
    a, ratio = advantage[sample], (logprobs - behaviour).exp()
    clipped = torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)
    ppo = -torch.where(a < 0, torch.maximum(clipped, dual * a), clipped).sum() / 2
    chosen = {"cap_negative": dual} if kind == "mis" else {"dual_clip": dual}
    settings = CorrectionConfig(kind=kind, clip_low=0.2, clip_high=0.28, **chosen)
    marks, ones = torch.zeros(200, dtype=torch.int64), torch.ones(2, dtype=torch.float64)
    fresh = Tokens(behaviour, behaviour, marks, sample, advantage, ones)  # ρ is μ
    ours = policy_loss(
        logprobs, torch.zeros_like(logprobs), fresh, Denominator(2, 200), ObjectiveConfig(), settings,
        StepStats(torch.device("cpu")),
    )  # fmt: skip
    expected, found = (torch.autograd.grad(loss, logprobs)[0] for loss in (ppo, ours))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_topr_truncates_the_ratio_of_a_negative_completion_at_one() -> None:
    lower = BEHAVIOUR + torch.tensor([0, 0, 0, 0, LOG2, 0], dtype=torch.float64)
    found = correct(LOGPROBS, tokens(lower), CorrectionConfig(kind="topr", trust=False))
    assert found.weight.tolist() == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5])


def test_the_trust_region_masks_tokens_that_have_gone_far_in_the_direction_of_their_advantage() -> None:
    ratio = torch.tensor([1.27, 1.29, 0.5, 0.91, 0.89, 3.0], dtype=torch.float64)
    found = correct(LOGPROBS, tokens(LOGPROBS - ratio.log()), CorrectionConfig(kind="none"))
    assert found.weight.tolist() == [1, 0, 1, 1, 0, 1]
    assert found.clipped.tolist() == [False, True, False, False, True, False]


def test_a_missing_behaviour_log_prob_masks_its_token_and_a_huge_ratio_stays_finite() -> None:
    behaviour = BEHAVIOUR.clone()
    behaviour[0], behaviour[3], behaviour[5] = math.nan, -math.inf, -1e4
    found = correct(LOGPROBS, tokens(behaviour), CorrectionConfig(kind="none", trust=False))
    assert found.present.tolist() == [False, True, True, False, True, True]
    assert found.weight.tolist() == [0, 1, 1, 0, 1, 1]
    assert found.ratio.tolist()[5] == pytest.approx(math.exp(20))


@pytest.mark.parametrize(
    ("normalisation", "constant_tokens", "loss"),
    # tis: Σ over tokens of weight·log π = −4.5 and −5; times draw weight · advantage = 2·1 and 1·(−.5): −9 and 2.5.
    [
        ("constant", None, 6.5 / 8),
        ("constant", 4.0, 6.5 / 32),
        ("token_mean", None, 6.5 / 24),
        ("sequence_mean", None, 6.5 / 3 / 8),
    ],
)
def test_each_normalisation_gives_the_loss_worked_out_by_hand(
    normalisation: Any, constant_tokens: float | None, loss: float
) -> None:
    stats = StepStats(torch.device("cpu"))
    chosen = {} if constant_tokens is None else {"constant_tokens": constant_tokens}
    found = policy_loss(
        LOGPROBS, torch.full((6,), 0.7, dtype=torch.float64), tokens(weight=(2.0, 1.0)),
        Denominator(completions=8, tokens=24),
        ObjectiveConfig(normalisation=normalisation, **chosen), CorrectionConfig(trust=False), stats,
    )  # fmt: skip
    assert float(found) == pytest.approx(loss)
    assert stats.metrics()["loss"] == pytest.approx(loss)


def test_the_entropy_bonus_is_a_reward_for_each_token_that_is_not_missing() -> None:
    behaviour = BEHAVIOUR.clone()
    behaviour[5] = math.nan
    entropy = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.float64)
    losses = []
    for bonus in (0.0, 0.1):
        chosen = ObjectiveConfig(normalisation="sequence_mean", entropy_bonus=bonus)
        given = tokens(behaviour, weight=(2.0, 1.0)), Denominator(8, 24)
        losses.append(
            policy_loss(LOGPROBS, entropy, *given, chosen, CorrectionConfig(), StepStats(torch.device("cpu")))
        )
    # .1·(2·(1 + 2 + 3)/3 + 1·(4 + 5)/2)/8
    assert float(losses[0] - losses[1]) == pytest.approx(0.1 * 8.5 / 8)


def test_the_reported_metrics_are_those_worked_out_by_hand() -> None:
    stats = StepStats(torch.device("cpu"))
    behaviour = BEHAVIOUR.clone()
    behaviour[5] = math.nan
    given = tokens(behaviour, mark=(HELD, *(TRAINED,) * 5))
    entropy = torch.arange(6, dtype=torch.float64)
    policy_loss(LOGPROBS, entropy, given, Denominator(2, 5), ObjectiveConfig(), CorrectionConfig(), stats)
    found = stats.metrics()
    ratios = np.array([2, 4, 0.5, 2, 0.5])
    assert found["ratio_mean"] == pytest.approx(1.8)
    assert found["ratio_max"] == pytest.approx(4)
    assert found["ess"] == pytest.approx(9**2 / (5 * (ratios**2).sum()))
    assert found["kl"] == pytest.approx((ratios - 1 - np.log(ratios)).mean())
    assert found["entropy"] == pytest.approx((0 + 1 + 2 + 3 + 4) / 5)
    assert found["clip_share_positive"] == pytest.approx(2 / 3)  # 2 and 4 are above 1.28
    assert found["clip_share_negative"] == pytest.approx(1 / 2)  # .5 is below .9
    assert found["missing_share"] == pytest.approx(1 / 6)
    assert found["second_moment"] == pytest.approx(LOG2**2)  # of ratios 1/2 and 2: those that are not clipped
    assert found["held_share"] == pytest.approx(1 / 5)


def completion(verdict: Verdict, ids: list[int], logprobs: list[float]) -> Completion:
    return Completion(np.array(ids, np.int32), np.array(logprobs, np.float32), (Span(0, 0, len(ids)),), 0.0, verdict)


def test_errors_are_not_trained_on_and_a_masked_truncated_completion_leaves_the_denominator() -> None:
    group = RolloutGroup(
        "1-0",
        "p",
        np.array([1, 2], np.int32),
        (
            completion(Verdict.CORRECT, [3, 4], [-1, math.nan]),
            completion(Verdict.WRONG, [3], [-1]),
            completion(Verdict.TRUNCATED, [3, 3, 3], [-1, -1, math.inf]),
            completion(Verdict.ERROR, [5, 5], [-1, -1]),
        ),
    )
    kept = training_group(group, by_verdict(group, 1.0, -0.5), 2.0, mask_truncated=False)
    assert [c.advantage for c in kept.completions] == [1.0, -0.5, -0.5]
    assert (kept.eligible, kept.eligible_tokens) == (3, 1 + 1 + 2)
    assert np.isnan(kept.completions[2].behaviour[2])
    masked = training_group(group, by_verdict(group, 1.0, 0.0), 2.0, mask_truncated=True)
    assert [c.advantage for c in masked.completions] == [1.0]
    assert (masked.eligible, masked.eligible_tokens) == (2, 2)


def test_a_group_of_another_vocabulary_or_beyond_the_context_is_unfit() -> None:
    group = RolloutGroup("1-0", "p", np.array([1, 2], np.int32), (completion(Verdict.WRONG, [3, 9], [-1, -1]),))
    assert why_unfit(group, vocabulary=10, context=4) == ""
    assert why_unfit(group, vocabulary=9, context=4) == "it has token id 9, the model's vocabulary has 9"
    assert why_unfit(group, vocabulary=10, context=3) == "it has 4 tokens, the model's context has 3"
