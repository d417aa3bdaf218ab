"""Advantages that compare the policy with a frozen reference model: KL-controlled reward, and the filtered model.

Both read every completion's sequence log-probability under policy and reference; `gating.filtered` has their formulas.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gating import filtered
from gating.checks import Array, counts, one_of, real, scalar
from gating.history import LikelihoodAdvantage
from gating.registry import register


@dataclass(frozen=True, eq=False)
class ReferenceAdvantage(LikelihoodAdvantage):
    """Base of the advantages that also read log-probs under a frozen reference model.

    base_a, base_b: the reference's own successes and failures, scalars or one per group; prior_a, prior_b: what its
    solve rate is thought to be before any.
    """

    prior_a: float = 1.0
    prior_b: float = 1.0
    base_a: npt.ArrayLike = 0.0
    base_b: npt.ArrayLike = 0.0

    dynamic: ClassVar[frozenset[str]] = frozenset({"base_a", "base_b"})

    def __post_init__(self) -> None:
        scalar("prior_a", self.prior_a, 0, above=True)
        scalar("prior_b", self.prior_b, 0, above=True)
        real("base_a", self.base_a, 0)
        real("base_b", self.base_b, 0)

    @property
    def min_group(self) -> int:
        """A leave-one-out baseline needs a second completion."""
        return 2

    @property
    def reads_base_evidence(self) -> bool:
        """Whether `base_a`, `base_b`, the successes and failures of the reference itself, matter."""
        raise NotImplementedError


def _reference(name: str, value: npt.ArrayLike | None) -> npt.ArrayLike:
    if value is None:
        raise ValueError(f"advantage {name!r} reads reference, [groups, completions], but got none")
    return value


@register
@dataclass(frozen=True, eq=False)
class KLControl(ReferenceAdvantage):
    """v − β·(log π − log a) minus the mean of the group's others, for E[v] − β·KL(π‖a); KL of whole sequences, in nats.

    One of two must be given: `beta`, or `mu`, the solve rate to reach, from which each problem gets the β that would
    lift the reference's posterior mean to it (clipped to [beta_min, beta_max]).
    """

    beta: float | None = None
    mu: float | None = None
    beta_min: float = 0.02
    beta_max: float = 10.0

    name: ClassVar[str] = "kl_control"
    source: ClassVar[str] = "Dymetman, arXiv 2605.02375 (DESIGN §5); one β is the usual KL-regularised objective"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.beta is None) == (self.mu is None):
            given = "neither" if self.beta is None else f"beta = {self.beta} and mu = {self.mu}"
            raise ValueError(f"kl_control needs either beta, one for all, or mu, a solve rate to reach; it got {given}")
        if self.beta is not None:
            scalar("beta", self.beta, 0, above=True)
        else:
            scalar("mu", self.mu, 0, 1, above=True, below=True)
        scalar("beta_max", self.beta_max, scalar("beta_min", self.beta_min, 0, above=True))

    @property
    def reads_base_evidence(self) -> bool:
        """Only to find β."""
        return self.mu is not None

    def teaches(self, c: npt.ArrayLike, G: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Also a group of one mind does: it says how far the policy has gone."""
        return counts(c, G)[1] >= self.min_group

    def completions(
        self, rewards: npt.ArrayLike, logprobs: npt.ArrayLike, reference: npt.ArrayLike | None = None
    ) -> Array:
        """Advantage of every completion."""
        beta: npt.ArrayLike | None = self.beta
        if beta is None:
            prior = (self.prior_a, self.prior_b)
            assert self.mu is not None
            found = filtered.problem_beta(self.base_a, self.base_b, self.mu, self.beta_min, self.beta_max, prior)
            beta = found.beta
        return filtered.kl_control(rewards, logprobs, _reference(self.name, reference), beta)


@register
@dataclass(frozen=True, eq=False)
class Filtered(ReferenceAdvantage):
    """α-DPG towards p_* = a(·|right): with t = π/p_*, min(t^(α−1) − 1, cap), −1 where wrong, minus the others' mean.

    z: where Z = a(right) comes from: "group", the mean of v·a/π over the group's others (unbiased, and 0 where none of
    them is right: then a right answer is at the cap); "posterior", the posterior mean of the reference's solve rate.
    """

    divergence: filtered.Divergence = "alpha"
    alpha: float = 0.25
    cap: float = 10.0
    z: str = "group"

    name: ClassVar[str] = "filtered"
    source: ClassVar[str] = "α-DPG, Kruszewski et al., arXiv 2512.05962; Dymetman, arXiv 2605.02375"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("divergence", self.divergence, filtered.DIVERGENCES)
        one_of("z", self.z, ("group", "posterior"))
        scalar("alpha", self.alpha, 0, 1, below=True)
        scalar("cap", self.cap, 0, above=True)

    @property
    def reads_base_evidence(self) -> bool:
        """Only for the posterior's Z."""
        return self.z == "posterior"

    def teaches(self, c: npt.ArrayLike, G: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Wrong answers are all alike; a group of right ones says which are too likely."""
        correct, size = counts(c, G)
        return (correct > 0) & (size >= self.min_group)

    def completions(
        self, rewards: npt.ArrayLike, logprobs: npt.ArrayLike, reference: npt.ArrayLike | None = None
    ) -> Array:
        """Advantage of every completion."""
        base = _reference(self.name, reference)
        if self.z == "group":
            log_z = filtered.log_z_from_group(rewards, logprobs, base)
        else:
            log_z = filtered.log_z_from_posterior(self.base_a, self.base_b, (self.prior_a, self.prior_b))
        return filtered.filtered(rewards, logprobs, base, log_z, self.divergence, alpha=self.alpha, cap=self.cap)
