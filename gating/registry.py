"""What an advantage is, and the one table in which all of them are found by name.

An advantage gives a_S(c) to each success and a_F(c) to each failure of a group with c correct of G. Everything else
(masses, slope, surrogate, plots: `gating.framework`) follows from these two functions.
"""

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from gating.checks import Array, counts


@runtime_checkable
class Advantage(Protocol):
    """What a user's own advantage must offer; make("package.module:Class") loads it."""

    def success(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Advantage of each correct completion, for c correct of G; finite for every 0 <= c <= G."""

    def failure(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Advantage of each wrong completion, for c correct of G; finite for every 0 <= c <= G."""


class CountAdvantage:
    """Base of the advantages that depend on (c, G) alone: checks counts, then asks the formula.

    A kind that is absent (successes at c = 0, failures at c = G) is given the value of the nearest group that has one:
    finite, and never used. A group smaller than `min_group` has nothing to say: 0.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Paper and equation."""
    dynamic: ClassVar[frozenset[str]] = frozenset()
    """Parameters that training supplies at every step unless the user fixes them."""

    @property
    def min_group(self) -> int:
        """The smallest group that the formula is defined for."""
        return 1

    def success(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Advantage of each correct completion, for c correct of G (arrays broadcast)."""
        correct, size = counts(c, G)
        return self._answer(self._success(np.maximum(correct, 1.0), np.maximum(size, self.min_group)), size)

    def failure(self, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
        """Advantage of each wrong completion, for c correct of G (arrays broadcast)."""
        correct, size = counts(c, G)
        return self._answer(self._failure(np.minimum(correct, size - 1.0), np.maximum(size, self.min_group)), size)

    def _answer(self, value: npt.ArrayLike, size: Array) -> Array:
        return np.where(size >= self.min_group, value, 0.0)

    def _success(self, c: Array, G: Array) -> Array:
        raise NotImplementedError

    def _failure(self, c: Array, G: Array) -> Array:
        raise NotImplementedError


_REGISTRY: dict[str, type[Any]] = {}
T = TypeVar("T")


def register(cls: type[T]) -> type[T]:
    """Class decorator: makes the advantage available under its `name`."""
    name: str = cls.name  # type: ignore[attr-defined]
    if name in _REGISTRY:
        raise ValueError(f"an advantage named {name!r} exists already; choose another name")
    _REGISTRY[name] = cls
    return cls


def names() -> tuple[str, ...]:
    """Names of all registered advantages, sorted."""
    return tuple(sorted(_REGISTRY))


def find(name: str) -> type[Any]:
    """The class registered as `name`, or the object at an import path "package.module:Class"."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"advantage is {name!r} but must be 'package.module:Class' or one of {', '.join(names())}")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"advantage {name!r} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ValueError(f"advantage {name!r} is a {type(found).__name__} but must be a class")
    return found


def parameters(name: str) -> tuple[str, ...]:
    """Names of the parameters that the advantage takes; empty for a user's class that is not a dataclass."""
    cls = find(name)
    return tuple(field.name for field in fields(cls) if field.init) if is_dataclass(cls) else ()


def make(name: str, **params: Any) -> Any:
    """The advantage `name` with these parameters.

    Raises:
        ValueError: unknown name or parameter, or a parameter out of range.
    """
    cls = find(name)
    if is_dataclass(cls):
        known = parameters(name)
        unknown = sorted(set(params) - set(known))
        if unknown:
            takes = ", ".join(known) if known else "none"
            raise ValueError(f"advantage {name!r} has no parameter {unknown[0]!r}; its parameters: {takes}")
    made = cls(**params)
    if name not in _REGISTRY and not isinstance(made, Advantage):
        raise ValueError(f"advantage {name!r} must have the methods success(c, G) and failure(c, G)")
    return made


def bind(name: str, params: Mapping[str, Any], **context: Any) -> Any:
    """The advantage with the user's `params`, and from `context` whatever it declares dynamic and the user left open.

    >>> bind("fade", {"delta": 1.0}, alpha=2.25, delta=0.6, evidence_a=0.0)   # alpha from training, delta fixed at 1
    """
    dynamic: frozenset[str] = getattr(find(name), "dynamic", frozenset())
    supplied = {key: value for key, value in context.items() if key in dynamic and key not in params}
    return make(name, **supplied, **params)


def group_mass(advantage: Advantage, c: npt.ArrayLike, G: npt.ArrayLike) -> Array:
    """Mean |advantage| of a group, (c·|a_S| + (G−c)·|a_F|) / G: 0 means that the group teaches nothing."""
    correct, size = counts(c, G)
    up, down = np.abs(advantage.success(correct, size)), np.abs(advantage.failure(correct, size))
    return np.asarray((correct * up + (size - correct) * down) / size)
