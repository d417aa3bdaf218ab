"""What a simulated run is given, and the bounds that follow from it."""

from math import log
from statistics import NormalDist
from typing import Self

from pydantic import Field, ValidationError, model_validator

from learner.config import AdmissionConfig
from store.section import Section


class Scene(Section):
    """A scripted fleet before a learner whose steps only take time.

    A completion has T = min(⌈X⌉, longest_tokens) tokens, X log-normal; a group takes as long as its longest.
    """

    actors: int = Field(64, ge=1, le=1000)
    """Scripted actors. Each rolls out one group at a time: a real one, which rolls out m at once, counts as m."""
    steps: int = Field(20, ge=1)
    """Learner steps of the run."""
    step_s: float = Field(1.0, ge=0)
    """Seconds that a step takes once its groups are fetched."""
    groups_per_step: int = Field(32, ge=1)
    """B, rollout groups of one step."""
    group_size: int = Field(8, ge=2)
    """G, completions of one group."""
    max_lag: int = Field(2, ge=0)
    """Largest lag, in versions, of a group that is trained on; 0 is synchronous."""
    max_uses: int = Field(1, ge=1)
    """Steps that may train on one group."""
    samples_per_insert: float = Field(1.0, gt=0)
    """Mean number of steps that train on one group; above 1 is replay."""
    median_tokens: float = Field(40.0, ge=1)
    """Median of X, a completion's length."""
    sigma: float = Field(0.6, gt=0, le=3)
    """Standard deviation of log X."""
    longest_tokens: int = Field(160, ge=1)
    """A completion that gets so long is truncated."""
    token_s: float = Field(0.005, gt=0)
    """Seconds that a token of a completion takes."""
    crash_rate: float = Field(0.0, ge=0, lt=1)
    """Share of groups during which the actor dies. It is replaced at once; its ticket waits for the lease to end."""
    error_rate: float = Field(0.0, ge=0, lt=1)
    """Share of completions that the verifier fails on."""
    lease_s: float = Field(5.0, gt=0)
    """Seconds after which a dead actor's ticket goes to another."""
    problems: int = Field(512, ge=1)
    """Problems; the logits of their solve rates at version 0 are normal."""
    solve_rate: float = Field(0.3, gt=0, lt=1)
    """Solve rate of the median problem at version 0."""
    spread: float = Field(1.5, ge=0)
    """Standard deviation of the logits over problems."""
    drift: float = 0.02
    """What a version adds to every problem's logit: above 0 the policy learns, below it forgets."""
    advantage: str = "fade_bbg"
    """Name in the registry of `gating.advantages`: it decides which groups teach, and so what is refunded."""
    seed: int = Field(0, ge=0)
    """Of lengths, verdicts, failures, and the learner's own draws."""

    @model_validator(mode="after")
    def _admission(self) -> Self:
        try:
            _ = self.admission
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return self

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.longest_tokens < self.median_tokens:
            raise ValueError(
                f"longest_tokens is {self.longest_tokens} but must be ≥ {self.median_tokens:g} (= median_tokens): most "
                "completions would be truncated"
            )
        return self

    @property
    def admission(self) -> AdmissionConfig:
        """The learner's own section."""
        return AdmissionConfig(max_lag=self.max_lag, max_uses=self.max_uses, samples_per_insert=self.samples_per_insert)

    @property
    def samples(self) -> int:
        """Completions that the run trains on."""
        return self.steps * self.groups_per_step * self.group_size

    def mean_longest_s(self, completions: int) -> float:
        """Mean seconds of the longest of n completions: token_s · Σ_{t<longest} (1 − F(t)ⁿ), F the CDF of T."""
        normal = NormalDist(log(self.median_tokens), self.sigma)
        shorter = (normal.cdf(log(t)) ** completions for t in range(1, self.longest_tokens))
        return self.token_s * (1 + sum(1 - share for share in shorter))

    def asynchronous_bound_s(self) -> float:
        """No schedule ends sooner: the learner's own time, or the actors' if all generate all the time."""
        return max(self.steps * self.step_s, self.steps * self._share_s())

    def synchronous_bound_s(self) -> float:
        """No schedule without overlap ends sooner: each step waits for its whole batch, for its longest completion."""
        longest = self.mean_longest_s(self.groups_per_step * self.group_size)
        return self.steps * (self.step_s + max(self._share_s(), longest))

    def _share_s(self) -> float:
        """Seconds in which the whole fleet, if it is never idle, generates what a step may use up."""
        groups = self.groups_per_step / self.samples_per_insert
        return groups * self.mean_longest_s(self.group_size) / self.actors
