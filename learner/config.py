"""The learner's sections of the config, and the settings of one learner process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gating import advantages
from gating.history import LikelihoodAdvantage
from gating.reference import ReferenceAdvantage
from store.section import Section

Dtype = Literal["fp32", "bf16"]


class LoraConfig(Section):
    """Train low-rank adapters instead of the weights; what is published has them merged in."""

    rank: int = Field(16, ge=1)
    """r of the adapters B·A."""
    alpha: int = Field(32, ge=1)
    """An adapter counts α/r times."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Names of the layers that get one, such as `q_proj`; `all-linear` is every linear layer but the output head."""


class LearnerConfig(Section):
    """How a step is taken, and what is kept of it."""

    steps: int = Field(1000, ge=1)
    """Learner steps of the whole run, those before a resume included."""
    groups_per_step: int = Field(64, ge=1)
    """B, rollout groups drawn for one step, over all ranks."""
    mini_batches: int = Field(1, ge=1)
    """Optimiser steps of one step, each on its own share of the B groups; their advantages, α, δ and gates are those
    of the step's start. Above 1 the later shares meet a policy that has moved: see correction.kind = decoupled."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW after warm-up; constant."""
    warmup_steps: int = Field(10, ge=0)
    """Steps over which the learning rate rises linearly from lr / (warmup_steps + 1)."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's decay rates of the first and second moment, in [0, 1)."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    optimiser: Literal["torch", "cpu_adam"] = "torch"
    """PyTorch's fused AdamW, or DeepSpeed's for CPUs, which a C++ compiler builds at the first start."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global gradient norm; a longer gradient is scaled down to it."""
    lora: LoraConfig | None = None
    """Adapters to train; absent, every weight is trained."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO: 0 shards nothing, 1 the optimiser, 2 gradients too, 3 parameters too. bf16 needs ≥ 1."""
    dtype: Dtype = "fp32"
    """Dtype of the weights in forward and backward; with bf16 the optimiser keeps fp32 master weights."""
    publish_dtype: Dtype | None = None
    """Dtype of published snapshots; by default the training dtype. Actors load their own `dtype` from it."""
    attention: Literal["auto", "sdpa", "flex"] = "auto"
    """`flex` skips what a packed row masks, and needs a GPU; `sdpa` works everywhere, with a mask of tokens² bytes a
    row; `auto` is flex on GPUs."""
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
    geometry_every: int = Field(20, ge=1)
    """Steps between two measurements of how the output head has changed (learner/geometry.py)."""
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
        if self.mini_batches > self.groups_per_step:
            raise ValueError(
                f"mini_batches is {self.mini_batches} but must be ≤ {self.groups_per_step} (= groups_per_step): each"
                " optimiser step needs a group of its own; lower mini_batches or raise groups_per_step"
            )
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
    reference: str | None = None
    """The frozen model that kl_control and filtered compare with, named as `model.path` is; by default the one that
    training starts from. Every rank holds a copy of it."""
    scale: float | None = Field(0.25, gt=0)
    """Mean |advantage × draw weight| to which every step's objective is scaled, so that methods compare at one step
    size; unset leaves it as it is."""
    normalisation: Literal["token_mean", "sequence_mean", "constant"] = "constant"
    """Sum over tokens, then: divide by all tokens; by each completion's length and the completions; or by
    `constant_tokens` and the completions."""
    constant_tokens: float = Field(1.0, gt=0)
    """Tokens per completion in the divisor of `constant`."""
    overlong_cache: int = Field(0, ge=0)
    """Tokens below the completion limit over which a soft penalty grows from 0 to −1, at the limit (DAPO 2503.14476);
    0: none. It is a reward of its own: its difference from the mean of the group's others is added to the advantage,
    whatever gate and difficulty weigh the verdict with, and it does not decide which groups are drawn."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Reward for a nat of entropy at every trained token, in units of the advantage."""
    covariance: Literal["off", "clip", "kl"] = "off"
    """What becomes of the tokens whose log-prob and advantage vary together the most, (log π − mean)·(A − mean) over
    the mini-batch, A as `gating` gives it: clip leaves some out (Clip-Cov); kl holds them to the policy that `kind`
    takes the ratio from, by a KL penalty (KL-Cov; both 2505.22617)."""
    cov_share: float = Field(2e-4, gt=0, le=1)
    """Share of a mini-batch's tokens that clip leaves out, at random, and that kl holds, the highest; at least one."""
    cov_low: float = 1.0
    """Covariance, in nats, from which on clip may leave a token out."""
    cov_high: float = 5.0
    """Covariance up to which clip may leave a token out."""
    cov_kl: float = Field(1.0, gt=0)
    """Coefficient of kl's penalty, in units of the advantage per nat."""
    truncated: Literal["wrong", "mask"] = "wrong"
    """A completion cut off at the token limit is trained on as wrong, or not trained on and not counted."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        made = advantages.make(self.advantage, **self.params)  # ValueError names what is wrong
        if not isinstance(made, LikelihoodAdvantage):
            made.success(1, 2)  # and says so where neither counts nor log-probs are enough
        if self.reference is not None and not isinstance(made, ReferenceAdvantage):
            raise ValueError(f"reference has no effect with advantage = {self.advantage}; leave it out")
        if self.reference is not None and made.reads_base_evidence:
            raise ValueError(
                f"reference is {self.reference}, but {self.advantage} with these params asks how often the reference"
                " solves a problem, and only the model that training starts from is seen at that; leave reference out,"
                ' or give kl_control a beta, filtered z = "group"'
            )
        if self.normalisation != "constant":
            _refuse_idle(self, ("constant_tokens",), f"normalisation = {self.normalisation}")
        if self.covariance == "off":
            _refuse_idle(self, ("cov_share",), "covariance = off")
        if self.covariance != "clip":
            _refuse_idle(self, ("cov_low", "cov_high"), f"covariance = {self.covariance}")
        if self.covariance != "kl":
            _refuse_idle(self, ("cov_kl",), f"covariance = {self.covariance}")
        if self.cov_low >= self.cov_high:
            raise ValueError(f"cov_low is {self.cov_low:g} but must be < {self.cov_high:g} (= cov_high)")
        return self


class CorrectionConfig(Section):
    """How the age of a group is corrected: weights on log π from the ratio π/μ (DESIGN §6)."""

    kind: Literal["none", "tis", "mis", "topr", "seq_tis", "seq_mis", "gspo", "decoupled", "m2po"] = "tis"
    """tis: ratio truncated at the cap; mis: tokens above the cap dropped; seq_*: the same with the whole
    completion's ratio; topr: 1 on positives, the completion's ratio truncated at 1 on negatives; gspo: the geometric
    mean of the completion's ratios, which the trust region judges too (2507.18071; with sequence_mean); none: 1.
    decoupled: with ρ the policy at the step's start, min(ρ/μ, cap)·π/ρ, and the trust region judges π/ρ (2505.24298);
    with mini_batches = 1, π is ρ: then it is tis without a trust region.
    m2po: the ratio, of those tokens that are left when the mini-batch's largest (log ratio)² are masked until the mean
    of the others is ≤ m2_threshold (2510.01161; the paper has no trust region besides).
    CISPO is tis with one cap for both signs and no trust region; PPO's clip is mis with the trust region, a
    cap_positive above 1 + clip_high, and a cap_negative that is its dual clip; with several mini-batches and rollouts
    that are not fresh, it is decoupled."""
    cap_positive: float = Field(2.0, gt=0)
    """Largest ratio on completions with a positive advantage (tis, mis, seq_tis, seq_mis, decoupled)."""
    cap_negative: float = Field(1.0, gt=0)
    """Largest ratio on completions with a negative advantage (tis, mis, seq_tis, seq_mis, decoupled)."""
    trust: bool = True
    """Mask the tokens whose ratio has left [1 − clip_low, 1 + clip_high] in the direction of their advantage."""
    clip_low: float = Field(0.1, gt=0, lt=1)
    """A token of a negative completion is masked below ratio 1 − clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """A token of a positive completion is masked above ratio 1 + clip_high: above clip_low it is DAPO's clip-higher."""
    dual_clip: float | None = Field(None, gt=1)
    """PPO's dual clip: a token of a negative completion is masked above this ratio, too (with trust)."""
    m2_threshold: float = Field(0.04, gt=0)
    """Largest second moment of the log-ratio, in nats², that m2po leaves."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if not self.trust:
            _refuse_idle(self, ("clip_low", "clip_high", "dual_clip"), "trust = false")
        if self.kind not in ("tis", "mis", "seq_tis", "seq_mis", "decoupled"):
            _refuse_idle(self, ("cap_positive", "cap_negative"), f"kind = {self.kind}")
        if self.kind != "m2po":
            _refuse_idle(self, ("m2_threshold",), f"kind = {self.kind}")
        return self


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


class AlarmsConfig(Section):
    """When a step is said to go wrong: a line when an alarm starts and when it is over, 1 in `alarm_…` meanwhile."""

    ess_floor: float = Field(0.3, ge=0, le=1)
    """Smallest effective sample size of the ratios, as a share of the tokens."""
    entropy_floor: float = Field(0.05, ge=0)
    """Smallest mean entropy of the policy at completion tokens, in nats, at the sampling temperature."""
    kl_ceiling: float = Field(0.1, gt=0)
    """Largest KL(μ‖π), in nats a token, of the policy from the versions that wrote the step's groups."""


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
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    reference: Path | None = None
    """Folder of `objective.reference`."""
    completion_limit: int | None = None
    """Most tokens of a completion; needed for `objective.overlong_cache`."""
    seed: int = 0
    """Of drawing and of the order of problems."""
    patience_s: float = 120.0
    """For how long an absent store is waited for."""
    resume: str = "auto"
    """Which checkpoint the run continues at: `auto`, its latest, if there is one; `never`; or that of a folder."""


def _refuse_idle(section: Section, names: tuple[str, ...], setting: str) -> None:
    """ValueError for a field that differs from its default although nothing reads it under `setting`."""
    for name in names:
        if getattr(section, name) != type(section).model_fields[name].default:
            raise ValueError(f"{name} has no effect with {setting}; leave it out")


def _boundary_at_prior(a: float, b: float, k: int) -> float:
    """E[(1−p)^(k−1)] under Beta(a, b) = Π_{i<k−1} (b+i)/(a+b+i)."""
    product = 1.0
    for i in range(k - 1):
        product *= (b + i) / (a + b + i)
    return product
