"""Bayesian Boundary Gating: how much one more success on a problem would raise its pass@k, averaged over its posterior.

Boundary utility u = E[d pass@k / dp] = E[k (1−p)^(k−1)], p ~ Beta(A, B). It is k for a problem nobody solves and
vanishes for one that k tries solve anyway (Yuan et al., arXiv 2606.15455; DESIGN §5).
"""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, real, scalar, whole
from gating.posterior import Prior, pass_at_k
from gating.special import log_failure_moment


def _beta(A: npt.ArrayLike, B: npt.ArrayLike) -> tuple[Array, Array]:
    return real("A", A, 0, above=True), real("B", B, 0, above=True)


def utility(A: npt.ArrayLike, B: npt.ArrayLike, k: npt.ArrayLike) -> Array:
    """u = k·Γ(A+B)Γ(B+k−1) / (Γ(B)Γ(A+B+k−1)) under Beta(A, B), prior included; k >= 1; in (0, k]."""
    k = real("k", k, 1)
    return np.asarray(k * np.exp(log_failure_moment(*_beta(A, B), k - 1.0)))


def posterior_pass_at_k(A: npt.ArrayLike, B: npt.ArrayLike, k: npt.ArrayLike) -> Array:
    """1 − Γ(A+B)Γ(B+k) / (Γ(B)Γ(A+B+k)) under Beta(A, B), prior included."""
    return np.asarray(-np.expm1(log_failure_moment(*_beta(A, B), real("k", k, 0))))


def gate_open(
    A: npt.ArrayLike, B: npt.ArrayLike, k: npt.ArrayLike, tau: float = 0.01, group_size: npt.ArrayLike | None = None
) -> npt.NDArray[np.bool_]:
    """Whether there is boundary left: u >= τ·(G+1) with `group_size` (paper form), else u/k >= τ (pooled form)."""
    tau = scalar("tau", tau, 0)
    threshold = tau * (real("k", k, 1) if group_size is None else whole("group_size", group_size, 1) + 1.0)
    return np.asarray(utility(A, B, k) >= threshold)


def gate(a: npt.ArrayLike, b: npt.ArrayLike, k: float = 8, tau: float = 0.01, prior: Prior = (1.0, 1.0)) -> Array:
    """Pooled gate u/k = E[(1−p)^(k−1)] of evidence `a`, `b` (prior not included), 0 where below τ; in [0, 1]."""
    tau, k = scalar("tau", tau, 0), scalar("k", k, 1)
    value = 1.0 - pass_at_k(a, b, k - 1.0, prior)
    return np.where(value >= tau, value, 0.0)


def patience_factor(fruitless: npt.ArrayLike, patience: float) -> Array:
    """What is left of the gate of a problem that keeps failing: min(1, patience / attempts since its last success).

    A problem that nobody can solve stays at full gate for ever; this lets it fade, yet never to 0.
    """
    attempts = real("fruitless", fruitless, 0)
    return np.minimum(1.0, scalar("patience", patience, 0, above=True) / np.maximum(attempts, 1e-300))


def with_retest_floor(gates: npt.ArrayLike, floor: float) -> Array:
    """Gates for choosing what to roll out next: none below `floor`, so solved and hopeless problems are re-tested."""
    return np.maximum(real("gates", gates, 0), scalar("floor", floor, 0, 1))


def scale_over_active(gates: npt.ArrayLike) -> float:
    """The factor that gives the open gates mean 1; 1 when every gate is closed."""
    values = real("gates", gates, 0)
    active = values[values > 0]
    return float(1.0 / active.mean()) if active.size else 1.0


def normalise_over_active(gates: npt.ArrayLike) -> Array:
    """Gates with mean 1 over the open ones; closed gates stay 0."""
    return real("gates", gates, 0) * scale_over_active(gates)
