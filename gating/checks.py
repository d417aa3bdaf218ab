"""What a number must be before a formula may use it; every refusal names the argument, its value and its range."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def real(
    name: str,
    value: npt.ArrayLike,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    above: bool = False,
    below: bool = False,
) -> Array:
    """`value` as float64, all of it finite and in [low, high]; `above`/`below` exclude that end.

    Raises:
        ValueError: an empty array, a NaN or infinity, or a value out of range.
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r} but must be a number or an array of numbers") from None
    if array.size == 0:
        raise ValueError(f"{name} is empty but must hold at least one number")
    least, most = float(array.min()), float(array.max())  # a NaN anywhere makes both NaN
    if (
        least != least
        or not ((least > low if above else least >= low) and (most < high if below else most <= high))
        or np.isinf(least)
        or np.isinf(most)
    ):
        ok = np.isfinite(array) & ((array > low) if above else (array >= low))
        ok &= (array < high) if below else (array <= high)
        left = "(" if above or np.isinf(low) else "["
        right = ")" if below or np.isinf(high) else "]"
        worst = array[~ok].flat[0]
        raise ValueError(f"{name} is {worst:g} but must be a finite number in {left}{low:g}, {high:g}{right}")
    return array


def scalar(name: str, value: Any, low: float = -np.inf, high: float = np.inf, **ends: bool) -> float:
    """As `real`, for exactly one number."""
    array = real(name, value, low, high, **ends)
    if array.ndim:
        raise ValueError(f"{name} has shape {array.shape} but must be a single number")
    return float(array)


def whole(name: str, value: npt.ArrayLike, low: float = 0, high: float = np.inf) -> Array:
    """As `real`, for whole numbers (kept as float64, exact up to 2^53)."""
    array = real(name, value, low, high)
    fraction = array != np.floor(array)
    if fraction.any():
        raise ValueError(f"{name} is {array[fraction].flat[0]:g} but must be a whole number")
    return array


def counts(c: npt.ArrayLike, G: npt.ArrayLike) -> tuple[Array, Array]:
    """Correct `c` of `G` completions, broadcast together: whole, 0 <= c <= G, G >= 1."""
    correct, size = np.broadcast_arrays(whole("c", c), whole("G", G, 1))
    if (correct > size).any():
        at = np.argmax(correct > size)
        raise ValueError(f"c is {correct.flat[at]:g} but must be in [0, {size.flat[at]:g}] (= [0, G])")
    return correct, size


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """`value` if it is allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r} but must be one of {', '.join(allowed)}")
    return value
