"""Which groups the learner trains on: priorities, systematic PPS sampling, and the weights that undo its bias."""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, real, scalar, whole


def weights(mass: npt.ArrayLike, lag: npt.ArrayLike, freshness: float = 1.0, epsilon: float = 0.0) -> Array:
    """Draw probabilities: mass · freshness^lag, normalised, mixed with ε uniform over the groups that have mass.

    Args:
        mass: gate(problem now) × mass of the group, >= 0; 0 is never drawn.
        lag: versions, whole, >= 0.
        freshness: worth of a group one version older, in (0, 1].
        epsilon: share of the uniform part, in [0, 1].
    Returns:
        Probabilities summing to 1, or all 0 when no group has mass.
    """
    value = real("mass", mass, 0)
    freshness, epsilon = scalar("freshness", freshness, 0, 1, above=True), scalar("epsilon", epsilon, 0, 1)
    fresh = value * _freshness(lag, freshness)
    total = float(fresh.sum())
    if total <= 0.0:
        return np.zeros_like(fresh)
    if epsilon == 0.0:
        return fresh / total
    active = fresh > 0.0
    fresh *= (1.0 - epsilon) / total
    np.add(fresh, epsilon / np.count_nonzero(active), out=fresh, where=active)
    return fresh


def _freshness(lag: npt.ArrayLike, freshness: float) -> Array:
    """freshness^lag; for integer lags from a table of powers, several times faster than a power per group."""
    age = np.asarray(lag)
    if age.dtype.kind not in "iu" or age.size == 0 or not 0 <= age.min() <= age.max() < 1_000_000:
        return np.asarray(freshness ** whole("lag", lag))
    return np.asarray((freshness ** np.arange(age.max() + 1.0))[age])


def inclusion_probabilities(weights: npt.ArrayLike, B: int) -> Array:
    """π_i = min(1, s·w_i) with s such that Σπ = min(B, groups with weight): exact for systematic PPS.

    A group heavy enough to be certain takes one place; the rest share what is left in proportion.
    """
    w = real("weights", weights, 0)
    B = int(whole("B", B, 1))
    if w.ndim != 1:
        raise ValueError(f"weights has shape {w.shape} but must be one number per group")
    if np.count_nonzero(w) <= B:
        return (w > 0.0).astype(np.float64)
    certain = np.zeros(w.shape, dtype=bool)
    left, total = B, float(w.sum())
    if float(w.max()) * (left / total) < 1.0 - 1e-12:
        return w * (left / total)
    while True:
        inclusion = w * (left / total)
        inclusion[certain] = 1.0
        new = (inclusion >= 1.0 - 1e-12) & ~certain
        if not new.any():
            return inclusion
        certain |= new
        left = B - int(np.count_nonzero(certain))
        total = float(w[~certain].sum())
        if left == 0 or total <= 0.0:
            return certain.astype(np.float64)


def select(inclusion: Array, u: float) -> npt.NDArray[np.int64]:
    """The systematic sample at offset `u` in [0, 1): certain groups, and those that the points u, u+1, … of Σπ hit.

    Over a uniform u, group i is hit with probability π_i, and at most once since π_i <= 1.
    """
    certain = np.flatnonzero(inclusion == 1.0)
    if certain.size:
        inclusion = inclusion.copy()
        inclusion[certain] = 0.0
    edges = np.cumsum(inclusion)
    count = round(float(edges[-1]))
    if not count:
        return certain
    picked = edges.searchsorted((u + np.arange(count)) * (edges[-1] / count), side="right")
    last = edges.searchsorted(edges[-1], side="left")  # rounding must not push a point past the last weight
    picked = np.minimum(picked, last)
    return np.sort(np.concatenate([certain, picked])) if certain.size else picked


def systematic_pps(weights: npt.ArrayLike, B: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], Array]:
    """Draw B different groups, each with exactly its inclusion probability, with one random number.

    Args:
        weights: [N] >= 0, need not be normalised; 0 is never drawn.
        B: groups to draw; fewer come back when fewer have weight.
    Returns:
        (indices [n], increasing; inclusion [n], the inclusion probabilities π of *the drawn groups*).
    """
    inclusion = inclusion_probabilities(weights, B)
    indices = select(inclusion, float(rng.random()))
    return indices, inclusion[indices]


def draw_weights(inclusion: npt.ArrayLike, N: int, B: int, beta: float = 1.0) -> Array:
    """Horvitz–Thompson corrections (B / (N·π_i))^β of the drawn groups.

    With β = 1 the mean over the B drawn of weight · x is an unbiased estimate of the mean of x over all N groups.
    """
    pi = real("inclusion", inclusion, 0, 1, above=True)
    population, drawn = float(whole("N", N, 1)), float(whole("B", B, 1))
    return (drawn / (population * pi)) ** scalar("beta", beta, 0, 1)
