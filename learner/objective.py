"""From log-probs to the loss: the correction for age, the trust region, the normalisation, and what to report.

loss = −Σ_completions w Σ_tokens (A·c(ratio)·log π + bonus·entropy) / denominator, where w is the draw weight times the
scale of the step, ratio = π/μ, and c carries no gradient. Denominators are those of a whole optimiser step, so that the
sum over its micro-batches and ranks is the loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.batches import TrainGroup
from learner.config import CorrectionConfig, ObjectiveConfig
from learner.selection import DROPPED, HELD, LOG_RATIO_LIMIT

SUMS = (
    "loss", "tokens", "missing", "entropy", "ratio", "ratio_squared", "kl",
    "positive_tokens", "positive_clipped", "negative_tokens", "negative_clipped", "squared_log_ratio", "held",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is known of N tokens of S completions before the model runs.

    behaviour: log μ, float[N], not finite = missing. proximal: log-probs of the policy at the step's start, float[N],
    NaN = those of the policy itself. mark: int64[N] of `learner.selection`. sample: int64[N], the completion of each
    token. advantage, weight: float[S].
    """

    behaviour: Tensor
    proximal: Tensor
    mark: Tensor
    sample: Tensor
    advantage: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class Denominator:
    """What an optimiser step trains on, over its micro-batches and ranks: completions and completion tokens."""

    completions: int
    tokens: int

    @classmethod
    def of(cls, groups: list[TrainGroup]) -> "Denominator":
        return cls(sum(g.eligible for g in groups), sum(g.eligible_tokens for g in groups))


class StepStats:
    """Sums and maxima over a step's tokens, on the training device, reduced over ranks at its end."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.ratio_max = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, values: dict[str, Tensor], ratio_max: Tensor) -> None:
        self.sums += torch.stack([values[name].double() for name in SUMS])
        self.ratio_max = torch.maximum(self.ratio_max, ratio_max.double())

    def metrics(self) -> dict[str, float]:
        """Means over the trained tokens. entropy, kl in nats; ess and all shares in [0, 1].

        second_moment: mean (log ratio)², nats², over the tokens that are not clipped. held_share: tokens under KL-Cov.
        """
        s = dict(zip(SUMS, self.sums.tolist(), strict=True))
        tokens = max(s["tokens"], 1.0)
        return {
            "loss": s["loss"],
            "entropy": s["entropy"] / tokens,
            "ess": s["ratio"] ** 2 / (tokens * s["ratio_squared"]) if s["ratio_squared"] else 1.0,
            "clip_share_positive": s["positive_clipped"] / max(s["positive_tokens"], 1.0),
            "clip_share_negative": s["negative_clipped"] / max(s["negative_tokens"], 1.0),
            "ratio_mean": s["ratio"] / tokens,
            "ratio_max": float(self.ratio_max),
            "kl": s["kl"] / tokens,
            "second_moment": s["squared_log_ratio"]
            / max(s["tokens"] - s["positive_clipped"] - s["negative_clipped"], 1.0),
            "held_share": s["held"] / tokens,
            "missing_share": s["missing"] / max(s["tokens"] + s["missing"], 1.0),
            "trained_tokens": s["tokens"],
        }


@dataclass(frozen=True, slots=True)
class Corrected:
    """Per token [N], without gradient: weight on A·log π (0 where masked), pull on log π of a KL penalty (0 where there
    is none), clamped ratio, present, clipped.
    """

    weight: Tensor
    pull: Tensor
    ratio: Tensor
    present: Tensor
    clipped: Tensor


def correct(logprobs: Tensor, tokens: Tokens, config: CorrectionConfig, held_kl: float = 0.0) -> Corrected:
    """Correction weights (DESIGN §6) of log π, float[N]; a missing behaviour log-prob masks its token.

    held_kl: coefficient of the KL penalty on held tokens, KL(old‖π) ≈ ratio − 1 − log ratio, whose gradient is
    (ratio − 1)∇log π; old is what the trust region's ratio is taken from.
    """
    present = torch.isfinite(tokens.behaviour)
    logprobs = logprobs.detach()
    log_ratio = torch.where(present, logprobs - tokens.behaviour.to(logprobs.dtype), 0.0)
    ratio = _exp(log_ratio)
    positive = (tokens.advantage >= 0)[tokens.sample]
    if config.kind == "decoupled":
        moved = torch.where(torch.isnan(tokens.proximal), 0.0, logprobs - tokens.proximal.to(logprobs.dtype))
        judged = _exp(moved)
        weight = torch.minimum(_exp(log_ratio - moved), _cap(positive, config).to(ratio.dtype)) * judged
        clipped = torch.zeros_like(positive)
    else:
        weight, clipped = _weight(ratio, log_ratio, present, positive, tokens, config)
        judged = weight if config.kind == "gspo" else ratio  # gspo judges a completion as a whole
    if config.trust:
        clipped = clipped | torch.where(positive, judged > 1 + config.clip_high, judged < 1 - config.clip_low)
        if config.dual_clip is not None:
            clipped = clipped | (~positive & (judged > config.dual_clip))
    clipped = (clipped | (tokens.mark == DROPPED)) & present
    pull = torch.where((tokens.mark == HELD) & present, -held_kl * (judged - 1), 0.0)
    return Corrected(torch.where(present & ~clipped, weight, 0.0), pull, ratio, present, clipped)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _cap(positive: Tensor, config: CorrectionConfig) -> Tensor:
    return torch.where(positive, config.cap_positive, config.cap_negative)


def _sum_by_sample(values: Tensor, sample: Tensor, samples: int) -> Tensor:
    """Sum over the tokens of each completion, float[samples]."""
    return torch.zeros(samples, dtype=values.dtype, device=values.device).index_add_(0, sample, values)


def _weight(
    ratio: Tensor, log_ratio: Tensor, present: Tensor, positive: Tensor, tokens: Tokens, config: CorrectionConfig
) -> tuple[Tensor, Tensor]:
    """Weight of each token before the trust region, and which ones the correction itself drops."""
    nothing = torch.zeros_like(positive)
    if config.kind == "none":
        return torch.ones_like(ratio), nothing
    if config.kind in ("topr", "seq_tis", "seq_mis", "gspo"):
        sample, samples = tokens.sample, len(tokens.advantage)
        sequence = _sum_by_sample(log_ratio, sample, samples)
        if config.kind == "gspo":
            sequence = sequence / _sum_by_sample(present.to(ratio.dtype), sample, samples).clamp(min=1.0)
        ratio = _exp(sequence)[sample]
    if config.kind in ("gspo", "m2po"):
        return ratio, nothing
    if config.kind == "topr":
        return torch.where(positive, 1.0, ratio.clamp(max=1.0)), nothing
    cap = _cap(positive, config).to(ratio.dtype)
    if config.kind in ("tis", "seq_tis"):
        return torch.minimum(ratio, cap), nothing
    return ratio, ratio > cap


def policy_loss(
    logprobs: Tensor,
    entropy: Tensor,
    tokens: Tokens,
    denominator: Denominator,
    objective: ObjectiveConfig,
    correction: CorrectionConfig,
    stats: StepStats,
) -> Tensor:
    """One micro-batch's share of an optimiser step's loss, a scalar; what it saw is added to `stats`.

    logprobs, entropy: float[N].
    """
    advantage, sample = tokens.advantage, tokens.sample
    corrected = correct(logprobs, tokens, correction, objective.cov_kl)
    share = (tokens.weight / _divisor(corrected.present, tokens, denominator, objective))[sample].to(logprobs.dtype)
    coefficient = share * (advantage.to(logprobs.dtype)[sample] * corrected.weight + corrected.pull)
    # A masked token's log π may be −inf, and 0·inf is NaN: it leaves the sum before the product.
    loss = -(coefficient * torch.where(coefficient == 0, 0.0, logprobs)).sum()
    if objective.entropy_bonus:
        loss = loss - objective.entropy_bonus * (share * torch.where(corrected.present, entropy, 0.0)).sum()
    _report(loss, entropy.detach(), advantage[sample] >= 0, tokens.mark == HELD, corrected, stats)
    return loss


def _divisor(present: Tensor, tokens: Tokens, denominator: Denominator, objective: ObjectiveConfig) -> Tensor | float:
    """What a token's term is divided by, a number or one for each completion, float64[S]."""
    if objective.normalisation == "token_mean":
        return float(denominator.tokens)
    if objective.normalisation == "constant":
        return objective.constant_tokens * denominator.completions
    length = _sum_by_sample(present.double(), tokens.sample, len(tokens.advantage)).clamp(min=1.0)
    return length * denominator.completions


def _report(
    loss: Tensor, entropy: Tensor, positive: Tensor, held: Tensor, corrected: Corrected, stats: StepStats
) -> None:
    present, ratio = corrected.present, torch.where(corrected.present, corrected.ratio, 0.0)
    # k3 = ratio − 1 − log ratio is a non-negative, unbiased estimate of KL(μ‖π) under samples of μ.
    k3 = torch.where(present, corrected.ratio - 1 - corrected.ratio.log(), 0.0)
    stats.add(
        {
            "loss": loss.detach(),
            "tokens": present.sum(),
            "missing": (~present).sum(),
            "entropy": torch.where(present, entropy, 0.0).sum(),
            "ratio": ratio.sum(),
            "ratio_squared": (ratio * ratio).sum(),
            "kl": k3.sum(),
            "positive_tokens": (present & positive).sum(),
            "positive_clipped": (corrected.clipped & positive).sum(),
            "negative_tokens": (present & ~positive).sum(),
            "negative_clipped": (corrected.clipped & ~positive).sum(),
            "squared_log_ratio": torch.where(present & ~corrected.clipped, corrected.ratio.log() ** 2, 0.0).sum(),
            "held": (present & held).sum(),
        },
        ratio.max(),
    )
