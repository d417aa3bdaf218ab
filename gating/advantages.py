"""Every advantage by name: importing this module fills the registry.

>>> advantage = make("fade", alpha=2.0, delta=0.5)
>>> advantage.success(c=[1, 2], G=8), advantage.failure(c=[1, 2], G=8)
"""

from gating import adaptive, boundary, classic
from gating.registry import Advantage, CountAdvantage, bind, find, group_mass, make, names, parameters, register

__all__ = [
    "Advantage",
    "CountAdvantage",
    "adaptive",
    "bind",
    "boundary",
    "classic",
    "find",
    "group_mass",
    "make",
    "names",
    "parameters",
    "register",
]
