"""Advantages that lean towards hard problems: by a power, a risk, a focal weight, or pass@k itself."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gating.checks import Array, scalar, whole
from gating.registry import CountAdvantage, make, register
from gating.special import choose_ratio


@register
@dataclass(frozen=True, eq=False)
class MaxRL(CountAdvantage):
    """A = (r − r̄)/r̄, 0 on an all-wrong group: climbs Σ_{k<G} pass@k/k, towards log p."""

    name: ClassVar[str] = "maxrl"
    source: ClassVar[str] = "Tajwar et al., arXiv 2602.02710 (MaxRL), the estimator with baseline"

    def _success(self, c: Array, G: Array) -> Array:
        return (G - c) / c

    def _failure(self, c: Array, G: Array) -> Array:
        return -np.minimum(c, 1.0)


@register
@dataclass(frozen=True, eq=False)
class Power(CountAdvantage):
    """A = (1−r̄)^(α−1) · (r−r̄): FADE's difficulty axis alone."""

    alpha: float = 2.0

    name: ClassVar[str] = "power"
    source: ClassVar[str] = "FADE, arXiv 2607.01490, the probe of the difficulty axis"

    def __post_init__(self) -> None:
        scalar("alpha", self.alpha, 0, above=True)

    def _success(self, c: Array, G: Array) -> Array:
        return (1.0 - c / G) ** self.alpha

    def _failure(self, c: Array, G: Array) -> Array:
        return -((1.0 - c / G) ** (self.alpha - 1.0)) * c / G


@register
@dataclass(frozen=True, eq=False)
class AsymGRPO(CountAdvantage):
    """A = (r−r̄) · (1/δ if wrong): FADE's sign axis alone, m_F/m_S = 1/δ."""

    delta: float = 0.5

    name: ClassVar[str] = "asym_grpo"
    source: ClassVar[str] = "FADE, arXiv 2607.01490, the probe of the sign axis"

    def __post_init__(self) -> None:
        scalar("delta", self.delta, 0, above=True)

    def _success(self, c: Array, G: Array) -> Array:
        return 1.0 - c / G

    def _failure(self, c: Array, G: Array) -> Array:
        return -c / G / self.delta


@register
@dataclass(frozen=True, eq=False)
class FGRPO(CountAdvantage):
    """A = (1−r̄)^γ · inner advantage: a focal weight on the observed solve rate."""

    gamma: float = 1.0
    inner: str = "grpo"
    _inner: Any = field(init=False, repr=False)

    name: ClassVar[str] = "f_grpo"
    source: ClassVar[str] = "Plyusov et al., arXiv 2602.06717, the focal weight g = (1 − μ̂)^γ"

    def __post_init__(self) -> None:
        scalar("gamma", self.gamma, 0)
        object.__setattr__(self, "_inner", make(self.inner))

    @property
    def min_group(self) -> int:
        """As the inner advantage."""
        return int(getattr(self._inner, "min_group", 1))

    def _success(self, c: Array, G: Array) -> Array:
        return np.asarray((1.0 - c / G) ** self.gamma * self._inner.success(c, G))

    def _failure(self, c: Array, G: Array) -> Array:
        return np.asarray((1.0 - c / G) ** self.gamma * self._inner.failure(c, G))


@register
@dataclass(frozen=True, eq=False)
class RSGRPO(CountAdvantage):
    """A = (e^{βr} / mean e^{βr} − 1) / β: risk-seeking, between the mean (β→0) and the maximum (β→∞) reward."""

    beta: float = 2.0

    name: ClassVar[str] = "rs_grpo"
    source: ClassVar[str] = "Jiang et al., arXiv 2509.24261 (RS-GRPO), the risk-sensitive advantage"

    def __post_init__(self) -> None:
        scalar("beta", self.beta, 0, 700, above=True)

    def _success(self, c: Array, G: Array) -> Array:
        lift = np.expm1(self.beta)
        return (1.0 - c / G) * lift / (1.0 + c / G * lift) / self.beta

    def _failure(self, c: Array, G: Array) -> Array:
        lift = np.expm1(self.beta)
        return -(c / G) * lift / (1.0 + c / G * lift) / self.beta


@register
@dataclass(frozen=True, eq=False)
class PassK(CountAdvantage):
    """Pass@k training in its analytic form: GRPO over all k-subsets of the group, each subset's reward its best one.

    With ρ = 1 − C(G−c, k)/C(G, k) and σ = √(ρ(1−ρ)): a_S = (1−ρ)/σ, a_F = (1 − ρ − C(G−c−1, k−1)/C(G−1, k−1))/σ.
    """

    k: int = 4

    name: ClassVar[str] = "passk"
    source: ClassVar[str] = "Chen et al., arXiv 2508.10751, the analytical advantage of pass@k training"

    def __post_init__(self) -> None:
        whole("k", self.k, 1)

    @property
    def min_group(self) -> int:
        """A subset of k needs k completions."""
        return int(self.k)

    def _miss(self, c: Array, G: Array) -> Array:
        return choose_ratio(G, G - c, np.full_like(G, self.k))

    def _success(self, c: Array, G: Array) -> Array:
        miss = self._miss(c, G)  # c >= 1, so below 1
        return np.sqrt(miss / (1.0 - miss))

    def _failure(self, c: Array, G: Array) -> Array:
        miss = self._miss(c, G)
        spread = np.sqrt(miss * (1.0 - miss))
        alone = choose_ratio(G - 1.0, G - 1.0 - c, np.full_like(G, self.k - 1.0)) if self.k > 1 else np.ones_like(G)
        mixed = spread > 0.0
        return np.where(mixed, (miss - alone) / np.where(mixed, spread, 1.0), 0.0)


@register
@dataclass(frozen=True, eq=False)
class PKPO(CountAdvantage):
    """The unbiased pass@k gradient with the leave-one-out-minus-one baseline: k·C(G−c, k−1)/C(G−1, k−1) for successes.

    Failures get 0: a wrong completion never raises the best of a subset. Slope k(1−p)^(k−1) = d pass@k/dp.
    """

    k: int = 4

    name: ClassVar[str] = "pkpo"
    source: ClassVar[str] = "Walder & Karkhanis, arXiv 2505.15201, s^(loo−1)"

    def __post_init__(self) -> None:
        whole("k", self.k, 1)

    @property
    def min_group(self) -> int:
        """The estimator needs k completions."""
        return int(self.k)

    def _success(self, c: Array, G: Array) -> Array:
        if self.k == 1:
            return np.ones_like(c)
        return self.k * choose_ratio(G - 1.0, G - c, np.full_like(G, self.k - 1.0))

    def _failure(self, c: Array, G: Array) -> Array:
        return np.zeros_like(c)


@register
@dataclass(frozen=True, eq=False)
class ZeroOnly(CountAdvantage):
    """−1 to every completion of an all-wrong group, else 0: in expectation exactly (1/G)∇pass@G."""

    name: ClassVar[str] = "zero_only"
    source: ClassVar[str] = "Yuan et al., arXiv 2606.15455, updates on problems without an observed success only"

    def _success(self, c: Array, G: Array) -> Array:
        return np.zeros_like(c)

    def _failure(self, c: Array, G: Array) -> Array:
        return np.where(c == 0.0, -1.0, 0.0)
