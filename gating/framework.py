"""What an advantage does to learning, whatever it is: masses, slope, surrogate, profile, and a common scale.

For a group of G with c correct, c ~ Bin(G, p): the expected policy gradient is F'(p)·∇p (FADE, arXiv 2607.01490;
DESIGN §5). The three axes are *sign* (m_S/m_F), *difficulty* (where in p the mass sits) and *scale* (its size; equalise
to compare).
All p are arrays of any shape; results have that shape.
"""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, real, whole
from gating.registry import Advantage
from gating.special import log_choose


def binomial(trials: int, p: npt.ArrayLike) -> Array:
    """P(c of `trials`) for c = 0 … trials, in the last axis; p in [0, 1]."""
    q = real("p", p, 0, 1)[..., None]
    c: Array = np.arange(trials + 1.0, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(c > 0, c * np.log(q), 0.0)
        down = np.where(trials - c > 0, (trials - c) * np.log1p(-q), 0.0)
    return np.exp(log_choose(np.full_like(c, trials), c) + up + down)


def _size(advantage: Advantage, G: int) -> int:
    least = int(getattr(advantage, "min_group", 1))
    size = int(whole("G", G, 1))
    if size < least:
        raise ValueError(f"G is {size} but must be >= {least}, the smallest group that {advantage} is defined for")
    return size


def masses(advantage: Advantage, p: npt.ArrayLike, G: int) -> tuple[Array, Array]:
    """(m_S, m_F): E[(c/G)·a_S(c)] and −E[((G−c)/G)·a_F(c)]."""
    G = _size(advantage, G)
    c = np.arange(G + 1.0)
    pmf = binomial(G, p)
    success = c / G * advantage.success(c, G)
    failure = -(1.0 - c / G) * advantage.failure(c, G)
    return pmf @ success + 0.0, pmf @ failure + 0.0  # + 0 turns −0 into 0


def sign_ratio(advantage: Advantage, p: npt.ArrayLike, G: int) -> Array:
    """m_S/m_F: 1 is balanced, below 1 leans on failures, inf without failures; NaN where both are 0."""
    up, down = masses(advantage, p, G)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where((up == 0.0) & (down == 0.0), np.nan, up / np.where(down == 0.0, 0.0, down)))


def slope(advantage: Advantage, p: npt.ArrayLike, G: int) -> Array:
    """F'(p) = E_{c' ~ Bin(G−1, p)}[a_S(c'+1) − a_F(c')]."""
    G = _size(advantage, G)
    others = np.arange(float(G))
    return binomial(G - 1, p) @ (advantage.success(others + 1.0, G) - advantage.failure(others, G))


def surrogate(advantage: Advantage, p: npt.ArrayLike, G: int) -> Array:
    """F(p) = ∫₀ᵖ F', by Gauss–Legendre; exact, for F' is a polynomial of degree G−1."""
    q = real("p", p, 0, 1)
    nodes, weights = np.polynomial.legendre.leggauss(_size(advantage, G) // 2 + 1)
    half = q[..., None] / 2.0
    return (slope(advantage, half * (nodes + 1.0), G) * half) @ weights


def difficulty_profile(advantage: Advantage, p: npt.ArrayLike, G: int) -> Array:
    """Density over p of the total mass m_S + m_F for p uniform: integrates to 1 over [0, 1]."""
    up, down = masses(advantage, p, G)
    return (np.abs(up) + np.abs(down)) / mean_mass(advantage, G)


def mean_mass(advantage: Advantage, G: int) -> float:
    """∫₀¹ (|m_S| + |m_F|) dp, the advantage's scale."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    up, down = masses(advantage, (nodes + 1.0) / 2.0, G)
    return float((np.abs(up) + np.abs(down)) @ weights / 2.0)


def equalising_scale(advantage: Advantage, G: int, target: float = 1.0) -> float:
    """The factor that gives the advantage mean mass `target`; without it a method is a learning rate."""
    mass = mean_mass(advantage, G)
    if mass == 0.0:
        raise ValueError(f"{advantage} has no mass at any p for G = {G}, so no factor can equalise it")
    return target / mass
