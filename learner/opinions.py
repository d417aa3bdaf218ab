"""What the learner makes of the facts: which problems still teach, what each group is worth, and which are drawn.

Pure functions of the mirror's columns and of the FADE dynamics; α, δ and the gate are those of the step's start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gating import advantages, bbg, draw, posterior
from gating.adaptive import has_problem_gate
from gating.fade import FadeDynamics
from gating.history import DifficultyAnchor, LikelihoodAdvantage
from gating.reference import ReferenceAdvantage
from learner.config import DrawConfig, GatingConfig, ObjectiveConfig
from store.wire import GroupEntry

Floats = NDArray[np.float64]
LAG_GROUPS = "lag_groups_"
"""Before a lag, the name in the dynamics of how many of a step's groups had it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch: for each of n groups its advantage for a success and a failure, draw weight, and lag.

    Both advantages are 0 where they need more than counts: `learner.weighing` makes them.
    """

    entries: tuple[GroupEntry, ...]
    success: Floats
    failure: Floats
    weight: Floats
    lag: NDArray[np.int64]
    alpha: float
    delta: float


@dataclass(frozen=True, slots=True)
class Gates:
    """Evidence and gate of every problem at one version. `scale` gives the open gates mean 1."""

    version: int
    evidence_a: Floats
    evidence_b: Floats
    gate: Floats
    scale: float

    @property
    def open(self) -> NDArray[np.bool_]:
        return self.gate > 0


class Facts(Protocol):
    """What opinions read of the store's mirror."""

    ids: list[str]

    def evidence_at(self, now_version: int) -> tuple[Floats, Floats]:
        """(a, b) of every problem as they are worth at `now_version`."""


class Opinions:
    """The advantage of `objective`, with what training and history supply to it: α and δ from `fade`, ha_dw's `anchor`.

    Where it has a problem gate (`has_problem_gate`), its k, τ and prior are those of [gating], unless
    `objective.params` holds others; without one, every problem counts as active.
    """

    def __init__(self, objective: ObjectiveConfig, gating: GatingConfig, drawing: DrawConfig) -> None:
        self._objective, self._gating, self._drawing = objective, gating, drawing
        self.fade = FadeDynamics(
            gating.target_entropy,
            rate=gating.ema_rate,
            alpha_max=gating.alpha_max,
            floor=gating.delta_floor,
            per_lag=gating.delta_floor_per_lag,
            mode=gating.delta_mode,
        )
        self.anchor = DifficultyAnchor()
        name, params = objective.advantage, dict(objective.params)
        self._gated = has_problem_gate(name, params)
        if self._gated:
            params = {key: getattr(gating, key) for key in ("k", "tau", "prior_a", "prior_b")} | params
        self._params: dict[str, Any] = params
        made = advantages.make(name, **params)
        self._by_likelihood = made if isinstance(made, LikelihoodAdvantage) else None
        self.reads_base_evidence = isinstance(made, ReferenceAdvantage) and made.reads_base_evidence

    def learn(self, reward: float, entropy: float) -> None:
        """Take a step's mean solve rate, and the mean token entropy in nats that it measured, into account."""
        self.fade.update(reward, entropy)
        self.anchor.update(reward)

    def gates(self, facts: Facts, version: int) -> Gates:
        """What every problem is worth at `version`."""
        a, b = facts.evidence_at(version) if facts.ids else (np.zeros(0), np.zeros(0))
        if not self._gated or not facts.ids:
            return Gates(version, a, b, np.ones(len(a)), 1.0)
        p = self._params
        gate = bbg.gate(a, b, p["k"], p["tau"], (p["prior_a"], p["prior_b"]))
        return Gates(version, a, b, gate, bbg.scale_over_active(gate))

    def masses(self, entries: Sequence[GroupEntry], rows: NDArray[np.int64], gates: Gates) -> Floats:
        """Mean |advantage| of each group, float[n]; 0 means that it teaches nothing. `rows`: their problems.

        Where counts do not determine it, 1 for every group that can teach.
        """
        c, G, lag = _columns(entries, gates.version)
        if self._by_likelihood is not None:
            return self._by_likelihood.teaches(c, G).astype(np.float64)
        advantage = self._bind(entries, rows, gates, self.fade.delta_at(float(lag.mean())))
        return advantages.group_mass(advantage, c, G)

    def draw(
        self,
        entries: Sequence[GroupEntry],
        rows: NDArray[np.int64],
        mass: Floats,
        gates: Gates,
        size: int,
        rng: np.random.Generator,
    ) -> Drawn:
        """Draw up to `size` of these groups (all with mass) by systematic PPS, one random number.

        Draw weights are Horvitz–Thompson over the groups given.
        """
        _, _, lag = _columns(entries, gates.version)
        weights = draw.weights(mass, lag, self._drawing.freshness, self._drawing.epsilon)
        picked, inclusion = draw.systematic_pps(weights, size, rng)
        weight = draw.draw_weights(inclusion, len(entries), len(picked), self._drawing.beta)
        chosen = tuple(entries[i] for i in picked)
        c, G, lag = _columns(chosen, gates.version)
        delta = self.fade.delta_at(float(lag.mean()))
        success = failure = np.zeros(len(chosen))
        if self._by_likelihood is None:
            advantage = self._bind(chosen, rows[picked], gates, delta)
            success, failure = advantage.success(c, G), advantage.failure(c, G)
        return Drawn(chosen, success, failure, weight, lag, self.fade.alpha, delta)

    def _bind(self, entries: Sequence[GroupEntry], rows: NDArray[np.int64], gates: Gates, delta: float) -> Any:
        c, G, _ = _columns(entries, gates.version)
        written = np.array([entry.version_min for entry in entries])
        a, b = posterior.without_group(
            gates.evidence_a[rows], gates.evidence_b[rows], c, G, written, gates.version, self._gating.gamma
        )
        return advantages.bind(
            self._objective.advantage,
            self._params,
            alpha=self.fade.alpha,
            delta=delta,
            anchor=self.anchor.value,
            evidence_a=a,
            evidence_b=b,
            gate_scale=gates.scale,
        )


def lags(entries: Sequence[GroupEntry], version: int) -> NDArray[np.int64]:
    """Learner version − the oldest version that wrote a token of the group, int64[n]."""
    return version - np.array([entry.version_min for entry in entries], np.int64)


def _columns(
    entries: Sequence[GroupEntry], version: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    c = np.array([entry.c for entry in entries], np.int64)
    G = np.array([entry.G for entry in entries], np.int64)
    return c, G, np.maximum(lags(entries, version), 0)
