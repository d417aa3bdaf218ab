"""pass@k from counts: the unbiased estimator, its error, and comparisons (Chen et al. 2021, eq. 1)."""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, counts, whole
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
