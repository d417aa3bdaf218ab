"""What a problem's history says about its solve rate: discounted evidence, and the Beta posterior built on it.

Evidence `a`, `b` is without the prior: successes and failures, each worth γ per version that has passed (DESIGN §4).
The posterior is Beta(prior_a + a, prior_b + b).
"""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, counts, real, scalar
from gating.incomplete_beta import quantile
from gating.special import log_failure_moment

Prior = tuple[float, float]


def _prior(prior: Prior) -> Prior:
    return scalar("prior[0]", prior[0], 0, above=True), scalar("prior[1]", prior[1], 0, above=True)


def discount(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    v: npt.ArrayLike,
    c: npt.ArrayLike,
    G: npt.ArrayLike,
    w: npt.ArrayLike,
    gamma: float,
) -> tuple[Array, Array, Array]:
    """Add a group generated at version `w` to evidence last seen at version `v` (lazy discount, DESIGN §4).

    The evidence moves to version max(v, w), so any order of the same groups gives the same result.

    Args:
        a, b: evidence at version v, >= 0.
        c, G: correct and counted completions of the group.
        gamma: worth of evidence one version later, in (0, 1]; 1 never forgets.
    Returns:
        (a, b, v), all float64, of the broadcast shape.
    """
    gamma = scalar("gamma", gamma, 0, 1, above=True)
    a, b = real("a", a, 0), real("b", b, 0)
    correct, size = counts(c, G)
    seen, written = real("v", v), real("w", w)
    old = gamma ** np.maximum(written - seen, 0.0)
    new = gamma ** np.maximum(seen - written, 0.0)
    return old * a + new * correct, old * b + new * (size - correct), np.maximum(seen, written)


def evidence_at(
    a: npt.ArrayLike, b: npt.ArrayLike, v: npt.ArrayLike, now: npt.ArrayLike, gamma: float
) -> tuple[Array, Array]:
    """Evidence last seen at version `v`, as it is worth at version `now`; evidence from the future is not inflated."""
    gamma = scalar("gamma", gamma, 0, 1, above=True)
    worth = gamma ** np.maximum(real("now", now) - real("v", v), 0.0)
    return worth * real("a", a, 0), worth * real("b", b, 0)


def without_group(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike,
    G: npt.ArrayLike,
    w: npt.ArrayLike,
    now: npt.ArrayLike,
    gamma: float,
) -> tuple[Array, Array]:
    """Evidence at version `now` with one group's own share, generated at version `w`, taken out again.

    Clipped at 0: rounding, or a group that was never counted, must not make evidence negative.
    """
    gamma = scalar("gamma", gamma, 0, 1, above=True)
    correct, size = counts(c, G)
    share = gamma ** np.maximum(real("now", now) - real("w", w), 0.0)
    left_a = np.maximum(real("a", a, 0) - share * correct, 0.0)
    left_b = np.maximum(real("b", b, 0) - share * (size - correct), 0.0)
    return left_a, left_b


def mean(a: npt.ArrayLike, b: npt.ArrayLike, prior: Prior = (1.0, 1.0)) -> Array:
    """Posterior mean solve rate under Beta(prior_a + a, prior_b + b)."""
    prior_a, prior_b = _prior(prior)
    A, B = real("a", a, 0) + prior_a, real("b", b, 0) + prior_b
    return A / (A + B)


def pass_at_k(a: npt.ArrayLike, b: npt.ArrayLike, k: npt.ArrayLike, prior: Prior = (1.0, 1.0)) -> Array:
    """Posterior mean of pass@k = 1 − (1−p)^k, k >= 0 (DESIGN §5, BBG)."""
    prior_a, prior_b = _prior(prior)
    moment = log_failure_moment(real("a", a, 0) + prior_a, real("b", b, 0) + prior_b, real("k", k, 0))
    return np.asarray(-np.expm1(moment))


def credible_interval(
    a: npt.ArrayLike, b: npt.ArrayLike, level: float = 0.95, prior: Prior = (1.0, 1.0)
) -> tuple[Array, Array]:
    """Equal-tailed interval that holds the solve rate with probability `level`."""
    prior_a, prior_b = _prior(prior)
    tail = (1.0 - scalar("level", level, 0, 1, above=True, below=True)) / 2.0
    A, B = real("a", a, 0) + prior_a, real("b", b, 0) + prior_b
    return quantile(np.asarray(tail), A, B), quantile(np.asarray(1.0 - tail), A, B)


def pass_at_k_interval(
    a: npt.ArrayLike, b: npt.ArrayLike, k: npt.ArrayLike, level: float = 0.95, prior: Prior = (1.0, 1.0)
) -> tuple[Array, Array]:
    """Equal-tailed interval of pass@k = 1 − (1−p)^k: pass@k rises with p, so its quantiles are those of p."""
    tries = real("k", k, 0)
    low, high = credible_interval(a, b, level, prior)
    with np.errstate(divide="ignore", invalid="ignore"):  # p = 1: log 0 · k
        return tuple(np.where(tries > 0, -np.expm1(tries * np.log1p(-p)), 0.0) for p in (low, high))  # type: ignore[return-value]


def versions_until_forgotten(a: npt.ArrayLike, b: npt.ArrayLike, gamma: float, prior: Prior = (1.0, 1.0)) -> Array:
    """Versions until the evidence, unrefreshed, weighs less than the prior: log((a+b)/(prior_a+prior_b)) / −log γ.

    0 where it already does; inf at γ = 1.
    """
    gamma = scalar("gamma", gamma, 0, 1, above=True)
    weight = (real("a", a, 0) + real("b", b, 0)) / sum(_prior(prior))
    if gamma == 1.0:
        return np.where(weight > 1.0, np.inf, 0.0)
    return np.log(np.maximum(weight, 1.0)) / -np.log(gamma)


def mean_memory(gamma: float) -> float:
    """Versions that a piece of evidence is expected to count: Σ γ^i = 1/(1−γ); inf at γ = 1."""
    gamma = scalar("gamma", gamma, 0, 1, above=True)
    return float("inf") if gamma == 1.0 else 1.0 / (1.0 - gamma)
