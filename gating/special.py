"""Log-gamma and Beta moments, vectorised, accurate where evidence is 1e7 and k is 1e6.

A difference of log-gammas loses eight digits there; Stirling's main terms are therefore cancelled by hand and only
Binet's small remainder is evaluated.
"""

import math

import numpy as np

from gating.checks import Array

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# B_{2n} / (2n (2n-1)), n = 1..6 (DLMF 5.11.1); the next term is below 1e-15 from x = 10 on.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_SHIFT = 10
_BLOCK = 8192
"""Numbers worked on at a time, so that the many intermediate arrays stay in the processor's cache."""


def binet(x: Array) -> Array:
    """log Γ(x) − [(x − ½) log x − x + ½ log 2π] for x > 0 (DLMF 5.11.1; below 10 by the recurrence Γ(x+1) = xΓ(x))."""
    x = np.asarray(x, dtype=np.float64)
    small = x < _SHIFT
    y = np.where(small, x + _SHIFT, x)
    inverse = 1.0 / y
    square = inverse * inverse
    series = np.full_like(y, _STIRLING[-1])
    for coefficient in reversed(_STIRLING[:-1]):
        series = series * square + coefficient
    series = np.asarray(series * inverse)
    if small.any():
        s = x[small]
        rising = s.copy()
        for j in range(1, _SHIFT):
            rising *= s + j
        t = s + _SHIFT
        series[small] += (t - 0.5) * np.log(t) - (s - 0.5) * np.log(s) - _SHIFT - np.log(rising)
    return series


def log_gamma(x: Array) -> Array:
    """log Γ(x) for x > 0, to about 1e-14 absolute (relative for large x)."""
    x = np.asarray(x, dtype=np.float64)
    return (x - 0.5) * np.log(x) - x + _HALF_LOG_2PI + binet(x)


def log_choose(n: Array, k: Array) -> Array:
    """log C(n, k) for real 0 <= k <= n; −inf where k > n."""
    n, k = np.broadcast_arrays(np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64))
    inside = k <= n
    m = np.where(inside, k, 0.0)
    value = log_gamma(n + 1.0) - log_gamma(m + 1.0) - log_gamma(n - m + 1.0)
    value = np.where((m == 0.0) | (m == n), 0.0, value)
    return np.where(inside, value, -np.inf)


def log_failure_moment(A: Array, B: Array, m: Array) -> Array:
    """log E[(1−p)^m] under Beta(A, B): log Γ(A+B)Γ(B+m) / (Γ(B)Γ(A+B+m)).

    Args:
        A, B: posterior parameters, > 0, up to 1e7 and beyond.
        m: power, >= 0.
    Returns:
        Array of their broadcast shape, absolute error about max(m, 1) · 1e-16.
    """
    A, B, m = np.broadcast_arrays(A, B, m)
    if A.size > _BLOCK:
        flat = [part.ravel() for part in (A, B, m)]
        blocks = (slice(start, start + _BLOCK) for start in range(0, A.size, _BLOCK))
        return np.concatenate([log_failure_moment(*(part[block] for part in flat)) for block in blocks]).reshape(
            A.shape
        )
    S = A + B
    main = m * np.log1p(-A / (S + m)) + (B - 0.5) * np.log1p(m / B) - (S - 0.5) * np.log1p(m / S)
    return np.asarray(main + binet(B + m) - binet(B) - binet(S + m) + binet(S))


def choose_ratio(n: Array, wrong: Array, k: Array) -> Array:
    """C(wrong, k) / C(n, k): the chance that k of n draws without replacement are all among `wrong`.

    0 where k > wrong. Valid for wrong <= n and k <= n.
    """
    n, wrong, k = np.broadcast_arrays(n, wrong, k)
    possible = k <= wrong
    w = np.where(possible, wrong, n)
    # = Γ(w+1) Γ(n−k+1) / (Γ(w−k+1) Γ(n+1)) = E[(1−p)^k] under Beta(n−w, w−k+1), which is 1 at w = n.
    A = n - w
    moment = np.exp(log_failure_moment(np.where(A > 0, A, 1.0), w - k + 1.0, k))
    return np.where(possible, np.where(A > 0, moment, 1.0), 0.0)
