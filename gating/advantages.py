"""Every advantage by name: importing this module fills the registry.

>>> advantage = make("fade", alpha=2.0, delta=0.5)
>>> advantage.success(c=[1, 2], G=8), advantage.failure(c=[1, 2], G=8)
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from gating import adaptive, boundary, classic, history, reference
from gating.checks import Array
from gating.registry import Advantage, CountAdvantage, bind, find, group_mass, make, names, parameters, register


def per_completion(advantage: Any, rewards: npt.ArrayLike, logprobs: npt.ArrayLike | None = None) -> Array:
    """Advantage of every completion, [N, G], from 0/1 rewards [N, G] and, where it reads them, log-probs [N, G]."""
    r = history.binary_groups(rewards)
    if isinstance(advantage, history.LikelihoodAdvantage):
        if logprobs is None:
            raise ValueError(f"advantage {advantage.name!r} reads logprobs, [groups, completions], but got none")
        return advantage.completions(r, logprobs)
    c, G = r.sum(axis=1), r.shape[1]
    return np.where(r == 1.0, advantage.success(c, G)[:, None], advantage.failure(c, G)[:, None])


__all__ = [
    "Advantage",
    "CountAdvantage",
    "adaptive",
    "bind",
    "boundary",
    "classic",
    "find",
    "group_mass",
    "history",
    "make",
    "names",
    "parameters",
    "per_completion",
    "reference",
    "register",
]
