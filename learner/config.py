"""The learner's sections of the config, and the settings of one learner process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gating import advantages
from store.section import Section

Dtype = Literal["fp32", "bf16"]


class LearnerConfig(Section):
    """How a step is taken, and what is kept of it."""

    steps: int = Field(1000, ge=1)
    """Learner steps of the whole run, those before a resume included."""
    groups_per_step: int = Field(64, ge=1)
    """B, rollout groups drawn for one step, over all ranks."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW after warm-up; constant."""
    warmup_steps: int = Field(10, ge=0)
    """Steps over which the learning rate rises linearly from lr / (warmup_steps + 1)."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's decay rates of the first and second moment, in [0, 1)."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global gradient norm; a longer gradient is scaled down to it."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO: 0 shards nothing, 1 the optimiser, 2 gradients too, 3 parameters too. bf16 needs ≥ 1."""
    dtype: Dtype = "fp32"
    """Dtype of the weights in forward and backward; with bf16 the optimiser keeps fp32 master weights."""
    publish_dtype: Dtype | None = None
    """Dtype of published snapshots; by default the training dtype. Actors load their own `dtype` from it."""
    micro_batch_tokens: int = Field(4096, ge=16)
    """Padded tokens of one forward pass on one rank; only speed and memory depend on it."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of a rank; by default what PyTorch chooses."""
    checkpoint_every: int = Field(25, ge=1)
    """Steps between checkpoints; groups trained on since the last one stay in the store, so that none is lost."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints kept on disk."""
    keep_snapshots: int = Field(3, ge=1)
    """Newest published snapshots kept on disk, besides those that a live actor still uses."""
    snapshot_format: Literal["full", "delta"] = "full"
    """`delta` publishes only the bits that changed since the version before. It pays for bf16 snapshots at small
    learning rates, where most weights keep every bit; the learner then keeps one more copy of the weights in memory,
    and each actor one on its local disk (TMPDIR)."""
    full_snapshot_every: int = Field(20, ge=2)
    """With `delta`, every so many versions one is full. An actor that starts, or missed some, reads the last full one
    and all since; so much stays on disk beside `keep_snapshots`."""
    stall_s: float = Field(600.0, gt=0)
    """Seconds without one new group, while waiting for groups, after which the learner gives up. 0 new groups for so
    long means that no actor lives or that none can reach the store."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, beta in zip(("first", "second"), self.betas, strict=True):
            if not 0 <= beta < 1:
                raise ValueError(f"betas: the {name} is {beta} but must be in [0, 1)")
        if self.snapshot_format == "delta" and (self.publish_dtype or self.dtype) == "fp32":
            raise ValueError(
                "snapshot_format is delta, but snapshots are fp32, of which a step changes every weight: no delta would"
                " be smaller; set publish_dtype = bf16, or snapshot_format = full"
            )
        if self.dtype == "bf16" and self.zero_stage == 0:
            raise ValueError(
                "dtype is bf16 with zero_stage 0, which would sum gradients over micro-batches in bf16 and lose their"
                " low bits; set zero_stage = 1 (on one rank it costs nothing)"
            )
        return self


class ObjectiveConfig(Section):
    """What a step maximises."""

    advantage: str = "fade_bbg"
    """Name in the registry of `gating.advantages`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the advantage. One that training would supply (α, δ …) is held at the value given here."""
    scale: float | None = Field(0.25, gt=0)
    """Mean |advantage × draw weight| to which every batch is scaled, so that methods compare at one step size; unset
    leaves the advantages as they are."""
    normalisation: Literal["token_mean", "sequence_mean", "constant"] = "constant"
    """Sum over tokens, then: divide by all tokens; by each completion's length and the completions; or by
    `constant_tokens` and the completions."""
    constant_tokens: float = Field(1.0, gt=0)
    """Tokens per completion in the divisor of `constant`."""
    truncated: Literal["wrong", "mask"] = "wrong"
    """A completion cut off at the token limit is trained on as wrong, or not trained on and not counted."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        made = advantages.make(self.advantage, **self.params)  # ValueError names what is wrong
        made.success(1, 2)  # and says so where a group's counts are not enough, which are all that the learner has
        if self.normalisation != "constant" and "constant_tokens" in self.model_fields_set:
            raise ValueError(f"constant_tokens has no effect with normalisation = {self.normalisation}")
        return self


class CorrectionConfig(Section):
    """How the age of a group is corrected: weights on log π from the ratio π/μ (DESIGN §6)."""

    kind: Literal["none", "tis", "mis", "topr", "seq_tis", "seq_mis", "gspo"] = "tis"
    """tis: ratio truncated at the cap; mis: tokens above the cap dropped; seq_*: the same with the whole
    completion's ratio; topr: 1 on positives, the completion's ratio truncated at 1 on negatives; gspo: the geometric
    mean of the completion's ratios, which the trust region judges too (2507.18071; with sequence_mean); none: 1.
    CISPO is tis with one cap for both signs and no trust region; PPO's clip is mis with the trust region, a
    cap_positive above 1 + clip_high, and a cap_negative that is its dual clip."""
    cap_positive: float = Field(2.0, gt=0)
    """Largest ratio on completions with a positive advantage (tis, mis, seq_tis, seq_mis)."""
    cap_negative: float = Field(1.0, gt=0)
    """Largest ratio on completions with a negative advantage (tis, mis, seq_tis, seq_mis)."""
    trust: bool = True
    """Mask the tokens whose ratio has left [1 − clip_low, 1 + clip_high] in the direction of their advantage."""
    clip_low: float = Field(0.1, gt=0, lt=1)
    """A token of a negative completion is masked below ratio 1 − clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """A token of a positive completion is masked above ratio 1 + clip_high."""


class GatingConfig(Section):
    """How facts become opinions: evidence, gate and FADE dynamics (DESIGN §5)."""

    gamma: float = Field(0.97, gt=0, le=1)
    """Discount of evidence per version; 1 never forgets. Fixed for a run."""
    k: int = Field(8, ge=2)
    """The k of pass@k whose boundary the gate seeks: larger trades pass@1 for pass@256."""
    tau: float = Field(0.01, ge=0, lt=1)
    """The gate is closed where E[(1−p)^(k−1)] is below it."""
    prior_a: float = Field(1.0, gt=0)
    """Successes in the prior Beta(prior_a, prior_b) of a problem's solve rate."""
    prior_b: float = Field(1.0, gt=0)
    """Failures in the prior."""
    alpha_max: float = Field(3.0, ge=1)
    """Largest difficulty exponent α."""
    delta_floor: float = Field(0.3, gt=0, le=1)
    """Smallest δ, on fresh data."""
    delta_floor_per_lag: float = Field(0.175, ge=0)
    """How much δ's floor rises per version of the batch's lag (at most to 1): stale failures get no extra weight."""
    delta_mode: Literal["absolute", "relative"] = "absolute"
    """δ = clip(1 + Ĥ − H*, floor, 1), in nats as in the paper, or clip(Ĥ/H*, floor, 1)."""
    ema_rate: float = Field(0.02, gt=0, le=1)
    """Rate of the moving averages of solve rate p̂ and entropy Ĥ."""
    target_entropy: float | None = Field(None, gt=0)
    """H* in nats; by default half the entropy measured at the first step."""

    @model_validator(mode="after")
    def _gate_opens(self) -> Self:
        at_prior = _boundary_at_prior(self.prior_a, self.prior_b, self.k)
        if at_prior < self.tau:
            raise ValueError(
                f"tau is {self.tau}, but under the prior Beta({self.prior_a}, {self.prior_b}) E[(1−p)^{self.k - 1}] is"
                f" {at_prior:.3g}: every gate would start closed and no problem would ever be issued; lower tau or k"
            )
        return self


class DrawConfig(Section):
    """How groups are drawn from the pool: P ∝ (1−ε)·mass·freshness^lag + ε·uniform."""

    epsilon: float = Field(0.05, ge=0, le=1)
    """Share of uniform drawing; it bounds the draw weights."""
    freshness: float = Field(0.9, gt=0, le=1)
    """Factor on a group's weight per version of lag."""
    beta: float = Field(1.0, ge=0, le=1)
    """Exponent of the draw weight: 1 undoes the preference exactly, 0 ignores it."""


class AdmissionConfig(Section):
    """How many tickets are out, and for which problems (DESIGN §4)."""

    max_lag: int = Field(4, ge=0)
    """Largest lag, in versions, of a group that is trained on; 0 is synchronous."""
    max_uses: int = Field(1, ge=1)
    """Steps that may train on one group."""
    samples_per_insert: float = Field(1.0, gt=0)
    """Mean number of steps that train on one group; above 1 is replay."""
    fruitless_limit: int = Field(8, ge=1)
    """Batches' worth of groups that may arrive since the last step before the learner steps with what it has."""
    retest_floor: float = Field(0.05, ge=0, le=1)
    """Probability with which a problem whose gate is closed is issued when its turn comes."""
    patience: int = Field(1024, ge=1)
    """Attempts at a problem that was never solved after which it comes up less often: with probability
    patience / attempts, and at least retest_floor."""

    @model_validator(mode="after")
    def _no_deadlock(self) -> Self:
        spi = self.samples_per_insert
        if spi > self.max_uses:
            raise ValueError(
                f"samples_per_insert is {spi:g} but must be ≤ {self.max_uses} (= max_uses): B/{spi:g} new groups a step"
                f" could be trained on only {self.max_uses} times each, fewer than the B a step takes, and the"
                " learner would wait for ever"
            )
        if spi > self.max_lag + 1:
            raise ValueError(
                f"samples_per_insert is {spi:g} but must be ≤ {self.max_lag + 1} (= max_lag + 1): the first step would"
                f" get only (max_lag + 1)·B/{spi:g} groups, fewer than the B it draws, and would wait for ever"
            )
        return self


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """All that `run_learner` needs: the config sections, the model folder, and where the run and its store are."""

    learner: LearnerConfig
    objective: ObjectiveConfig
    correction: CorrectionConfig
    gating: GatingConfig
    draw: DrawConfig
    admission: AdmissionConfig
    model: Path
    run_dir: Path
    store_url: str
    store_password: str | None
    run: str
    temperature: float
    group_size: int
    seed: int = 0
    """Of drawing and of the order of problems."""
    patience_s: float = 120.0
    """For how long an absent store is waited for."""


def _boundary_at_prior(a: float, b: float, k: int) -> float:
    """E[(1−p)^(k−1)] under Beta(a, b) = Π_{i<k−1} (b+i)/(a+b+i)."""
    product = 1.0
    for i in range(k - 1):
        product *= (b + i) / (a + b + i)
    return product
