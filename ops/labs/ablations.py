"""`fade_bbg` with one of its ideas taken out, each as an advantage of its own; its α and gate go by parameters."""

from dataclasses import dataclass

import numpy as np

from gating.adaptive import FadeBBG
from gating.bbg import utility
from gating.checks import Array


@dataclass(frozen=True, eq=False)
class GroupBaseline(FadeBBG):
    """The baseline is the group's own mean, as FADE's: an all-wrong group no longer teaches."""

    def _success(self, c: Array, G: Array) -> Array:
        _, gate = self.judged_by(c - 1.0, G - c)
        return gate * (1.0 - c / G) ** self.alpha

    def _failure(self, c: Array, G: Array) -> Array:
        _, gate = self.judged_by(c, G - c - 1.0)
        return -gate * (1.0 - c / G) ** (self.alpha - 1.0) * (c / G) / self.delta


@dataclass(frozen=True, eq=False)
class SeeingGate(FadeBBG):
    """The gate reads all of the group, also the completion that it multiplies: failures then weigh more."""

    def _gate(self, c: Array, G: Array) -> Array:
        A = self.prior_a + np.asarray(self.evidence_a, dtype=np.float64) + c
        B = self.prior_b + np.asarray(self.evidence_b, dtype=np.float64) + (G - c)
        value = utility(A, B, self.k) / self.k
        return np.where(value >= self.tau, value, 0.0) * self.gate_scale

    def _success(self, c: Array, G: Array) -> Array:
        baseline, _ = self.judged_by(c - 1.0, G - c)
        return self._gate(c, G) * (1.0 - baseline) ** self.alpha

    def _failure(self, c: Array, G: Array) -> Array:
        baseline, _ = self.judged_by(c, G - c - 1.0)
        return -self._gate(c, G) * (1.0 - baseline) ** (self.alpha - 1.0) * baseline / self.delta
