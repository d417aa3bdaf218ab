"""The Beta distribution function and its inverse, vectorised, for posteriors from no evidence to 1e7 observations."""

import math

import numpy as np

from gating.checks import Array
from gating.special import binet

_TINY = 1e-300
_LOG_2PI = math.log(2.0 * math.pi)


def _log_density_times_x(x: Array, A: Array, B: Array) -> Array:
    """log[x^A (1−x)^B / B(A, B)] for 0 < x < 1, written around the mean A/(A+B) so that large A, B do not cancel."""
    S = A + B
    shift = x - A / S
    main = A * np.log1p(shift * S / A) + B * np.log1p(-shift * S / B)
    return np.asarray(main + 0.5 * (np.log(A) + np.log(B / S) - _LOG_2PI) + binet(S) - binet(A) - binet(B))


def _fraction(x: Array, A: Array, B: Array) -> Array:
    """Lentz's evaluation of the continued fraction of I_x (DLMF 8.17.22); needs x < (A+1)/(A+B+2)."""
    h = np.ones_like(x)
    todo = np.arange(x.size)
    c, d = np.ones_like(x), 1.0 - (A + B) * x / (A + 1.0)
    d = 1.0 / np.where(np.abs(d) < _TINY, _TINY, d)
    value = d.copy()
    for m in range(1, 100_000):
        a, b, z = A[todo], B[todo], x[todo]
        even = m * (b - m) * z / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * z / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / np.where(np.abs(d) < _TINY, _TINY, d)
            c = 1.0 + term / c
            c = np.where(np.abs(c) < _TINY, _TINY, c)
            step = c * d
            value = value * step
        done = np.abs(step - 1.0) < 1e-15
        if done.any():
            h[todo[done]] = value[done]
            keep = ~done
            todo, c, d, value = todo[keep], c[keep], d[keep], value[keep]
            if not todo.size:
                return h
    raise ArithmeticError(f"the incomplete beta fraction did not converge at A={A[todo[0]]:g}, B={B[todo[0]]:g}")


def cdf(x: Array, A: Array, B: Array) -> Array:
    """I_x(A, B) = P(p <= x) under Beta(A, B); x in [0, 1], A, B > 0, broadcast."""
    x, A, B = (np.array(part, dtype=np.float64) for part in np.broadcast_arrays(x, A, B))
    shape = x.shape
    x, A, B = x.ravel(), A.ravel(), B.ravel()
    result = np.where(x >= 1.0, 1.0, 0.0)
    inside = np.flatnonzero((x > 0.0) & (x < 1.0))
    if inside.size:
        x, A, B = x[inside], A[inside], B[inside]
        front = np.exp(_log_density_times_x(x, A, B))
        flip = x >= (A + 1.0) / (A + B + 2.0)  # I_x(A, B) = 1 − I_{1−x}(B, A)
        lower, first, second = np.where(flip, 1.0 - x, x), np.where(flip, B, A), np.where(flip, A, B)
        tail = front / first * _fraction(lower, first, second)
        result[inside] = np.where(flip, 1.0 - tail, tail)
    return result.reshape(shape)


def quantile(probability: Array, A: Array, B: Array) -> Array:
    """x with I_x(A, B) = probability, by Newton steps kept inside a shrinking bracket; probability in [0, 1]."""
    q, A, B = (np.array(part, dtype=np.float64) for part in np.broadcast_arrays(probability, A, B))
    shape = q.shape
    q, A, B = q.ravel(), A.ravel(), B.ravel()
    low, high = np.zeros_like(q), np.ones_like(q)
    x = A / (A + B)
    todo = np.flatnonzero((q > 0.0) & (q < 1.0))
    x[q <= 0.0], x[q >= 1.0] = 0.0, 1.0
    for _ in range(200):
        if not todo.size:
            break
        at, a, b = x[todo], A[todo], B[todo]
        error = cdf(at, a, b) - q[todo]
        high[todo] = np.where(error > 0.0, at, high[todo])
        low[todo] = np.where(error <= 0.0, at, low[todo])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            density = np.exp(_log_density_times_x(at, a, b) - np.log(at) - np.log1p(-at))
            step = at - error / density
        bracket = (step > low[todo]) & (step < high[todo])
        new = np.where(bracket, step, 0.5 * (low[todo] + high[todo]))
        x[todo] = new
        settled = (np.abs(new - at) <= 1e-14 * at) | (high[todo] - low[todo] <= 4e-16 * high[todo]) | (new <= 0.0)
        todo = todo[~settled]
    return x.reshape(shape)
