"""Policy-gradient advantages whose baseline or sign is their whole idea: REINFORCE and its group-relative relatives."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gating.checks import Array, scalar
from gating.registry import CountAdvantage, register


@register
@dataclass(frozen=True, eq=False)
class Reinforce(CountAdvantage):
    """A = r."""

    name: ClassVar[str] = "reinforce"
    source: ClassVar[str] = "Williams 1992"

    def _success(self, c: Array, G: Array) -> Array:
        return np.ones_like(c)

    def _failure(self, c: Array, G: Array) -> Array:
        return np.zeros_like(c)


@register
@dataclass(frozen=True, eq=False)
class ReinforceSigned(CountAdvantage):
    """A = 2r − 1."""

    name: ClassVar[str] = "reinforce_signed"
    source: ClassVar[str] = "Williams 1992, with rewards ±1"

    def _success(self, c: Array, G: Array) -> Array:
        return np.ones_like(c)

    def _failure(self, c: Array, G: Array) -> Array:
        return -np.ones_like(c)


@register
@dataclass(frozen=True, eq=False)
class AsymRE(CountAdvantage):
    """A = r − (r̄ + offset): a baseline below the mean (offset < 0) leans on successes, which off-policy data needs."""

    offset: float = -0.1

    name: ClassVar[str] = "asymre"
    source: ClassVar[str] = "Arnal et al., arXiv 2506.20520 (baseline V̂ + δV)"

    def __post_init__(self) -> None:
        scalar("offset", self.offset, -1, 1)

    def _success(self, c: Array, G: Array) -> Array:
        return 1.0 - c / G - self.offset

    def _failure(self, c: Array, G: Array) -> Array:
        return -c / G - self.offset


@register
@dataclass(frozen=True, eq=False)
class GRPO(CountAdvantage):
    """A = (r − r̄) / std, sample std (ddof 1, as the public trainers compute it); 0 where std is 0."""

    name: ClassVar[str] = "grpo"
    source: ClassVar[str] = "Shao et al., arXiv 2402.03300 (GRPO), outcome supervision"

    @property
    def min_group(self) -> int:
        """A sample std needs a second completion."""
        return 2

    def _success(self, c: Array, G: Array) -> Array:
        return np.sqrt((G - 1.0) / G * (G - c) / c)

    def _failure(self, c: Array, G: Array) -> Array:
        return -np.sqrt((G - 1.0) / G * c / (G - c))


@register
@dataclass(frozen=True, eq=False)
class DrGRPO(CountAdvantage):
    """A = r − r̄."""

    name: ClassVar[str] = "drgrpo"
    source: ClassVar[str] = "Liu et al., arXiv 2503.20783 (Dr.GRPO)"

    def _success(self, c: Array, G: Array) -> Array:
        return 1.0 - c / G

    def _failure(self, c: Array, G: Array) -> Array:
        return -c / G


@register
@dataclass(frozen=True, eq=False)
class RLOO(CountAdvantage):
    """A = r − mean of the others = G/(G−1) · (r − r̄); needs two."""

    name: ClassVar[str] = "rloo"
    source: ClassVar[str] = "Kool et al. 2019; Ahmadian et al., arXiv 2402.14740 (RLOO)"

    @property
    def min_group(self) -> int:
        """A leave-one-out mean needs a second completion."""
        return 2

    def _success(self, c: Array, G: Array) -> Array:
        return (G - c) / (G - 1.0)

    def _failure(self, c: Array, G: Array) -> Array:
        return -c / (G - 1.0)


@register
@dataclass(frozen=True, eq=False)
class OPO(CountAdvantage):
    """A = r − Σ l·r / Σ l, the length-weighted (variance-optimal) baseline.

    `length_ratio` is the mean length of wrong completions over that of correct ones; 1 makes it Dr.GRPO.
    """

    length_ratio: float = 1.0

    name: ClassVar[str] = "opo"
    source: ClassVar[str] = "Hao et al., arXiv 2505.23585 (OPO), the optimal baseline"

    def __post_init__(self) -> None:
        scalar("length_ratio", self.length_ratio, 0, above=True)

    def _baseline(self, c: Array, G: Array) -> Array:
        return c / (c + (G - c) * self.length_ratio)

    def _success(self, c: Array, G: Array) -> Array:
        return 1.0 - self._baseline(c, G)

    def _failure(self, c: Array, G: Array) -> Array:
        return -self._baseline(c, G)


@register
@dataclass(frozen=True, eq=False)
class PSR(CountAdvantage):
    """Positive samples only: A = 1 for successes, 0 for failures."""

    name: ClassVar[str] = "psr"
    source: ClassVar[str] = "Zhu et al., arXiv 2506.01347, L_PSR"

    def _success(self, c: Array, G: Array) -> Array:
        return np.ones_like(c)

    def _failure(self, c: Array, G: Array) -> Array:
        return np.zeros_like(c)


@register
@dataclass(frozen=True, eq=False)
class NSR(CountAdvantage):
    """Negative samples only: A = 0 for successes, −1 for failures."""

    name: ClassVar[str] = "nsr"
    source: ClassVar[str] = "Zhu et al., arXiv 2506.01347, L_NSR"

    def _success(self, c: Array, G: Array) -> Array:
        return np.zeros_like(c)

    def _failure(self, c: Array, G: Array) -> Array:
        return -np.ones_like(c)


@register
@dataclass(frozen=True, eq=False)
class WReinforce(CountAdvantage):
    """A = λ for successes, −1 for failures."""

    lam: float = 0.1

    name: ClassVar[str] = "w_reinforce"
    source: ClassVar[str] = "Zhu et al., arXiv 2506.01347, Weighted-REINFORCE"

    def __post_init__(self) -> None:
        scalar("lam", self.lam, 0)

    def _success(self, c: Array, G: Array) -> Array:
        return np.full_like(c, self.lam)

    def _failure(self, c: Array, G: Array) -> Array:
        return -np.ones_like(c)
