"""FADE: difficulty exponent α and failure weight 1/δ, read from training as it moves (arXiv 2607.01490; DESIGN §5).

α falls from α_max to 1 as the mean solve rate p̂ rises; δ falls from 1 to its floor as entropy drops below its target,
which makes failures count more and so lifts entropy again.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from gating.checks import Array, one_of, real, scalar

DeltaMode = Literal["absolute", "relative"]
_MODES = ("absolute", "relative")
_STATE = ("solve_rate", "entropy", "target_entropy")


def alpha(p_hat: npt.ArrayLike, alpha_max: float = 3.0) -> Array:
    """α = clip(3(1−p̂) / (2p̂), 1, α_max); α_max at p̂ = 0."""
    p = real("p_hat", p_hat, 0, 1)
    alpha_max = scalar("alpha_max", alpha_max, 1)
    with np.errstate(divide="ignore"):
        return np.clip(np.divide(3.0 * (1.0 - p), 2.0 * p), 1.0, alpha_max)


def delta(
    entropy: npt.ArrayLike, target: npt.ArrayLike, floor: npt.ArrayLike = 0.3, mode: DeltaMode = "absolute"
) -> Array:
    """δ = clip(1 + Ĥ − H*, floor, 1), or clip(Ĥ/H*, floor, 1) in the relative mode.

    Args:
        entropy: Ĥ, nats per token at the sampling temperature, >= 0.
        target: H*, nats per token, > 0.
    """
    floor = real("floor", floor, 0, 1, above=True)
    H, goal = real("entropy", entropy, 0), real("target", target, 0, above=True)
    one_of("mode", mode, _MODES)
    return np.clip(1.0 + H - goal if mode == "absolute" else H / goal, floor, 1.0)


def delta_floor(lag: npt.ArrayLike, floor: float = 0.3, per_lag: float = 0.0) -> Array:
    """The floor of δ for a batch of this lag (versions): min(1, floor + per_lag · lag).

    Failure-biased updates on stale data collapse the model (LAB.md), so δ must approach 1 as data ages.
    """
    floor, per_lag = scalar("floor", floor, 0, 1, above=True), scalar("per_lag", per_lag, 0)
    return np.minimum(1.0, floor + per_lag * real("lag", lag, 0))


class FadeDynamics:
    """The two moving averages behind α and δ.

    solve_rate: EMA of the mean solve rate over all sampled problems, from 0.5.
    entropy: EMA of mean token entropy (nats), from the first one measured; until then δ is 1.
    target_entropy: H*; half the first entropy unless given.

    >>> dynamics = FadeDynamics()
    >>> dynamics.update(solve_rate=0.4, entropy=1.0)
    """

    def __init__(
        self,
        target_entropy: float | None = None,
        *,
        rate: float = 0.02,
        alpha_max: float = 3.0,
        floor: float = 0.3,
        per_lag: float = 0.0,
        mode: DeltaMode = "absolute",
    ) -> None:
        self.rate = scalar("rate", rate, 0, 1, above=True)
        self.alpha_max = scalar("alpha_max", alpha_max, 1)
        self.floor = scalar("floor", floor, 0, 1, above=True)
        self.per_lag = scalar("per_lag", per_lag, 0)
        self.mode: DeltaMode = mode
        one_of("mode", mode, _MODES)
        self.solve_rate = 0.5
        self.entropy: float | None = None
        self.target_entropy = (
            None if target_entropy is None else scalar("target_entropy", target_entropy, 0, above=True)
        )

    def update(self, solve_rate: float, entropy: float) -> None:
        """Take in one step's mean solve rate over all sampled problems, and mean token entropy in nats."""
        solve_rate, entropy = scalar("solve_rate", solve_rate, 0, 1), scalar("entropy", entropy, 0)
        self.solve_rate += self.rate * (solve_rate - self.solve_rate)
        self.entropy = entropy if self.entropy is None else self.entropy + self.rate * (entropy - self.entropy)
        if self.target_entropy is None and entropy > 0:
            self.target_entropy = entropy / 2.0

    @property
    def alpha(self) -> float:
        """α now."""
        return float(alpha(self.solve_rate, self.alpha_max))

    @property
    def delta(self) -> float:
        """δ now, for a batch without lag."""
        return self.delta_at(0.0)

    def delta_at(self, lag: float) -> float:
        """δ now, for a batch of this lag in versions."""
        if self.entropy is None or self.target_entropy is None:
            return 1.0
        return float(delta(self.entropy, self.target_entropy, delta_floor(lag, self.floor, self.per_lag), self.mode))

    def state_dict(self) -> dict[str, float | None]:
        """The moving averages and the entropy target; settings belong to the config, not to the state."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Continue from `state_dict()`; refuses missing or unknown fields."""
        if set(state) != set(_STATE):
            raise ValueError(f"state has the fields {sorted(state)} but must have exactly {sorted(_STATE)}")
        solve_rate, entropy, target = (state[name] for name in _STATE)
        self.solve_rate = scalar("solve_rate", np.nan if solve_rate is None else solve_rate, 0, 1)
        self.entropy = None if entropy is None else scalar("entropy", entropy, 0)
        self.target_entropy = None if target is None else scalar("target_entropy", target, 0, above=True)
