"""pass@k from counts: the unbiased estimator, its error, and comparisons (Chen et al. 2021, eq. 1)."""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, counts, real, scalar, whole
from gating.special import choose_ratio


def pass_at_k(n: npt.ArrayLike, c: npt.ArrayLike, k: npt.ArrayLike) -> Array:
    """1 − C(n−c, k) / C(n, k): the unbiased estimate of pass@k from c correct of n samples, 1 <= k <= n.

    n, c and k broadcast; stable for any n that float64 counts exactly.
    """
    correct, samples = counts(c, n)
    tries = whole("k", k, 1)
    samples, correct, tries = np.broadcast_arrays(samples, correct, tries)
    if (tries > samples).any():
        at = np.argmax(tries > samples)
        raise ValueError(f"k is {tries.flat[at]:g} but must be in [1, {samples.flat[at]:g}] (= [1, n])")
    return 1.0 - choose_ratio(samples, samples - correct, tries)


def mean_and_error(values: npt.ArrayLike) -> tuple[float, float]:
    """Mean over problems and its standard error (ddof 1); the error is NaN for one problem."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"values has shape {x.shape} but must be one number per problem, at least one")
    error = float(x.std(ddof=1) / np.sqrt(x.size)) if x.size > 1 else float("nan")
    return float(x.mean()), error


def paired_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[float, float]:
    """Mean of first − second over the same problems in the same order, and its standard error."""
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"first has shape {x.shape} but second {y.shape}; a paired difference needs the same problems")
    return mean_and_error(x - y)


def curve(n: npt.ArrayLike, c: npt.ArrayLike, k: npt.ArrayLike) -> tuple[Array, Array]:
    """(mean, standard error) of pass@k over problems, for every k.

    Args:
        n, c: [problems] samples and correct samples.
        k: [K] tries, each <= the smallest n.
    Returns:
        two arrays [K]; the error is NaN for one problem.
    """
    correct, samples = counts(np.atleast_1d(c), np.atleast_1d(n))
    values = pass_at_k(samples[:, None], correct[:, None], np.atleast_1d(k))
    many = values.shape[0]
    error = values.std(axis=0, ddof=1) / np.sqrt(many) if many > 1 else np.full(values.shape[1], np.nan)
    return values.mean(axis=0), error


def bootstrap(
    values: npt.ArrayLike, rng: np.random.Generator, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float, float]:
    """(standard error, low, high) of the mean over problems, by resampling problems; a percentile interval."""
    x = real("values", values)
    if x.ndim != 1:
        raise ValueError(f"values has shape {x.shape} but must be one number per problem")
    tail = (1.0 - scalar("level", level, 0, 1, above=True, below=True)) / 2.0
    draws = int(whole("resamples", resamples, 2))
    # How often each problem is drawn is all that matters: one multinomial per resample, no index matrix.
    means = rng.multinomial(x.size, np.full(x.size, 1.0 / x.size), size=draws) @ x / x.size
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(means.std(ddof=1)), float(low), float(high)


def max_at_k(rewards: npt.ArrayLike, k: int) -> Array:
    """Unbiased estimate of E[max of k rewards] from n graded rewards in the last axis: Σ_i C(i−1, k−1)/C(n, k)·r_(i).

    For 0/1 rewards it is pass@k (Walder & Karkhanis, arXiv 2505.15201, maxg@k).
    """
    r = np.sort(real("rewards", rewards), axis=-1)
    n, tries = r.shape[-1], int(whole("k", k, 1))
    if tries > n:
        raise ValueError(f"k is {tries} but must be in [1, {n}] (= [1, n])")
    # P(max <= r_(i)) = C(i, k)/C(n, k), i = 0 … n
    below = choose_ratio(np.full(n + 1, float(n)), np.arange(n + 1.0), np.full(n + 1, float(tries)))
    return np.asarray(r @ np.diff(below))


def second_half_only(K: npt.ArrayLike, c: npt.ArrayLike) -> Array:
    """P(all c successes of 2K exchangeable samples lie in the second K) = C(K, c)/C(2K, c).

    How often a problem looks "newly solved" when nothing has changed (Yuan et al., arXiv 2606.15455, the noise test).
    """
    half = whole("K", K, 1)
    successes, samples = counts(c, 2.0 * half)
    return choose_ratio(samples, samples / 2.0, successes)
