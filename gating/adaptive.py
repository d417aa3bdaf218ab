"""The advantages Verge exists for: FADE, BBG, and their union `fade_bbg`, which reads a problem's whole history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gating.bbg import gate_open, utility
from gating.checks import Array, one_of, real, scalar
from gating.registry import CountAdvantage, find, register


@register
@dataclass(frozen=True, eq=False)
class FADE(CountAdvantage):
    """A = (1−r̄)^(α−1) · (r−r̄) · (1/δ if r < r̄ else 1); α, δ from `gating.fade`."""

    alpha: float = 1.5
    delta: float = 1.0

    name: ClassVar[str] = "fade"
    source: ClassVar[str] = "FADE, arXiv 2607.01490, the focal advantage with dynamic entropy"
    dynamic: ClassVar[frozenset[str]] = frozenset({"alpha", "delta"})

    def __post_init__(self) -> None:
        scalar("alpha", self.alpha, 0, above=True)
        scalar("delta", self.delta, 0, above=True)

    def _success(self, c: Array, G: Array) -> Array:
        return (1.0 - c / G) ** self.alpha

    def _failure(self, c: Array, G: Array) -> Array:
        return -((1.0 - c / G) ** (self.alpha - 1.0)) * (c / G) / self.delta


@register
@dataclass(frozen=True, eq=False)
class BBG(CountAdvantage):
    """A = ±u(posterior), 0 once the gate is closed.

    evidence "group" (paper): Beta(c+1, G−c+1) from this group alone, closed where u < τ(G+1);
    "pooled": Beta(prior_a + evidence_a + c, prior_b + evidence_b + G − c), closed where u/k < τ.
    evidence_a, evidence_b are the problem's pooled evidence without this group, aligned with c.
    """

    k: float = 16
    tau: float = 0.01
    evidence: str = "group"
    prior_a: float = 1.0
    prior_b: float = 1.0
    evidence_a: npt.ArrayLike = 0.0
    evidence_b: npt.ArrayLike = 0.0

    name: ClassVar[str] = "bbg"
    source: ClassVar[str] = "Yuan et al., arXiv 2606.15455 (BBG), signed rewards weighted by the boundary utility"
    dynamic: ClassVar[frozenset[str]] = frozenset({"evidence_a", "evidence_b"})

    def __post_init__(self) -> None:
        scalar("k", self.k, 1)
        scalar("tau", self.tau, 0)
        one_of("evidence", self.evidence, ("group", "pooled"))
        scalar("prior_a", self.prior_a, 0, above=True)
        scalar("prior_b", self.prior_b, 0, above=True)
        real("evidence_a", self.evidence_a, 0)
        real("evidence_b", self.evidence_b, 0)

    def _weight(self, c: Array, G: Array) -> Array:
        if self.evidence == "group":
            A, B, size = c + 1.0, G - c + 1.0, G
        else:
            A = self.prior_a + np.asarray(self.evidence_a, dtype=np.float64) + c
            B = self.prior_b + np.asarray(self.evidence_b, dtype=np.float64) + (G - c)
            size = None
        return np.where(gate_open(A, B, self.k, self.tau, size), utility(A, B, self.k), 0.0)

    def _success(self, c: Array, G: Array) -> Array:
        return self._weight(c, G)

    def _failure(self, c: Array, G: Array) -> Array:
        return -self._weight(c, G)


@register
@dataclass(frozen=True, eq=False)
class FadeBBG(CountAdvantage):
    """A_i = gate_i · (1−b_i)^(α−1) · (r_i − b_i) · (1/δ if wrong), all of it blind to r_i.

    Completion i is judged by Beta(A_i, B_i): prior, the problem's pooled evidence without this group, and the group's
    *other* completions. b_i is its mean; gate_i = u(A_i, B_i)/k, 0 where below τ, times gate_scale. Since nothing that
    multiplies (r_i − b_i) depends on r_i, E[A_i] = 0 under the posterior at δ = 1, and it survives stale data (LAB.md).
    An all-wrong group still teaches: b_i > 0.

    evidence_a, evidence_b: >= 0, scalars or aligned with c. gate_scale: 1/mean gate over the active problems.
    """

    k: float = 8
    tau: float = 0.01
    prior_a: float = 1.0
    prior_b: float = 1.0
    alpha: float = 1.0
    delta: float = 1.0
    evidence_a: npt.ArrayLike = 0.0
    evidence_b: npt.ArrayLike = 0.0
    gate_scale: float = 1.0

    name: ClassVar[str] = "fade_bbg"
    source: ClassVar[str] = "Verge's own (DESIGN §5)"
    dynamic: ClassVar[frozenset[str]] = frozenset({"alpha", "delta", "evidence_a", "evidence_b", "gate_scale"})

    def __post_init__(self) -> None:
        scalar("k", self.k, 1)
        scalar("tau", self.tau, 0)
        for name in ("prior_a", "prior_b", "alpha", "delta", "gate_scale"):
            scalar(name, getattr(self, name), 0, above=True)
        real("evidence_a", self.evidence_a, 0)
        real("evidence_b", self.evidence_b, 0)

    def judged_by(self, successes: Array, failures: Array) -> tuple[Array, Array]:
        """(baseline, gate) of a completion whose group-mates have these successes and failures."""
        A = self.prior_a + np.asarray(self.evidence_a, dtype=np.float64) + successes
        B = self.prior_b + np.asarray(self.evidence_b, dtype=np.float64) + failures
        value = utility(A, B, self.k) / self.k
        return A / (A + B), np.where(value >= self.tau, value, 0.0) * self.gate_scale

    def _success(self, c: Array, G: Array) -> Array:
        baseline, gate = self.judged_by(c - 1.0, G - c)
        return gate * (1.0 - baseline) ** self.alpha

    def _failure(self, c: Array, G: Array) -> Array:
        baseline, gate = self.judged_by(c, G - c - 1.0)
        return -gate * (1.0 - baseline) ** (self.alpha - 1.0) * baseline / self.delta


def has_problem_gate(name: str, params: Mapping[str, Any]) -> bool:
    """Whether the advantage of this name weighs problems by a gate: fade_bbg, what is derived from it, pooled bbg."""
    return issubclass(find(name), FadeBBG) or (name == BBG.name and params.get("evidence") == "pooled")
