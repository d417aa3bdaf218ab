"""Which problems get a ticket, and how many tickets may be out. Pure: no store, no clock."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gating import bbg
from learner.config import AdmissionConfig


def ticket_limit(step: int, groups_per_step: int, config: AdmissionConfig) -> int:
    """Largest issued − refunded once `step` steps are published: ceil((step + max_lag + 1)·B / samples_per_insert).

    tests/learner/test_admission_model.py visits every interleaving of small machines: none is a deadlock, with prompt
    actors no group is older than max_lag, and with one ticket more some would be.

    >>> ticket_limit(0, 64, AdmissionConfig(max_lag=0))
    64
    """
    return math.ceil((step + config.max_lag + 1) * groups_per_step / config.samples_per_insert)


def chances(
    is_open: NDArray[np.bool_], attempts: NDArray[np.int64], successes: NDArray[np.int64], config: AdmissionConfig
) -> NDArray[np.float64]:
    """Probability with which each problem is issued when its turn comes, float[problems].

    1 while its gate is open, patience / attempts once it has been failed more often than that and never solved, and
    never below the re-test floor: neither solved nor hopeless problems are forgotten, or waited for.
    """
    fruitless = np.where(successes == 0, attempts, 0)
    return bbg.with_retest_floor(is_open * bbg.patience_factor(fruitless, config.patience), config.retest_floor)


class Admission:
    """Issues problems in shuffled epochs, each with the chance that `chances` gives it when its turn comes.

    Problems are known by their index. Every problem comes up exactly once per epoch, so none starves and none is
    issued twice before all others had their turn. Problems that join later are shuffled into what is left of the epoch.

        epoch: [7 2 5 0 …]  ──choose──▶  issued with probability `chance`, else skipped
               └─ position               at the end: a new shuffle
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 1])
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)
        self._position = 0

    def choose(self, count: int, chance: NDArray[np.float64]) -> list[int]:
        """Up to `count` problem indices. Fewer where two whole epochs gave no more (nearly all gates closed)."""
        chosen: list[int] = []
        seen, known = 0, len(self._order)
        if known < len(chance):
            left = np.concatenate([self._order[self._position :], np.arange(known, len(chance))])
            self._order = np.concatenate([self._order[: self._position], self._rng.permutation(left)])
        while len(chance) and len(chosen) < count and seen < 2 * len(chance) + count:
            if self._position == len(self._order):
                self._order = self._rng.permutation(len(chance))
                self._position = 0
            index = int(self._order[self._position])
            self._position += 1
            seen += 1
            if chance[index] >= 1 or self._rng.random() < chance[index]:
                chosen.append(index)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        return {
            "order": self._order.tolist(),
            "position": self._position,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_fields("Admission", state, {"order", "position", "rng"})
        self._order = np.asarray(state["order"], np.int64)
        self._position = int(state["position"])
        self._rng.bit_generator.state = state["rng"]


class Fruitless:
    """Counts groups that arrived since the last step, to notice a pool that never fills.

    `over` is true once `limit` batches' worth of groups arrived; the caller knows that they did not fill one batch.
    """

    def __init__(self, limit: int, groups_per_step: int) -> None:
        self._enough = limit * groups_per_step
        self.arrived = 0

    def add(self, groups: int) -> None:
        self.arrived += groups

    def reset(self) -> None:
        self.arrived = 0

    @property
    def over(self) -> bool:
        return self.arrived >= self._enough


def check_fields(owner: str, state: dict[str, Any], fields: set[str]) -> None:
    """ValueError when a state dict has not exactly these fields."""
    if set(state) != fields:
        raise ValueError(f"{owner} state has fields {sorted(state)}, expected {sorted(fields)}")
