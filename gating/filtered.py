"""Binary rewards as filtering: the base model a, its valid answers Y1 with mass p = a(Y1), and what training aims at.

Tilted p_[β] ∝ a·e^{v/β} is what KL-controlled reward maximises; filtered p_* = a(·|Y1) is its limit β → 0. Among all
models that are right with probability μ, p_[β] with logit μ = logit p + 1/β is the closest to a. β is in nats of
*sequence* KL. (Dymetman, arXiv 2605.02375; α-DPG: Kruszewski et al., arXiv 2512.05962; DESIGN §5.)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gating import posterior
from gating.checks import Array, one_of, real, scalar

Divergence = Literal["alpha", "forward_kl", "reverse_kl", "js", "tv", "chi2"]
DIVERGENCES: tuple[Divergence, ...] = ("alpha", "forward_kl", "reverse_kl", "js", "tv", "chi2")


def _unit(name: str, value: npt.ArrayLike) -> Array:
    return real(name, value, 0, 1, above=True, below=True)


def _logit(p: Array) -> Array:
    return np.asarray(np.log(p) - np.log1p(-p))


def beta_of(p: npt.ArrayLike, mu: npt.ArrayLike) -> Array:
    """β = 1/(logit μ − logit p): the KL weight under which a base right with probability p becomes right with μ > p."""
    base, goal = np.broadcast_arrays(_unit("p", p), _unit("mu", mu))
    if (goal <= base).any():
        at = np.argmax(goal <= base)
        raise ValueError(f"mu is {goal.flat[at]:g} but must be in ({base.flat[at]:g}, 1) (= (p, 1)): β > 0 raises p")
    return np.asarray(1.0 / (_logit(goal) - _logit(base)))


def mu_of(p: npt.ArrayLike, beta: npt.ArrayLike) -> Array:
    """μ with logit μ = logit p + 1/β, β > 0."""
    lift = _logit(_unit("p", p)) + 1.0 / real("beta", beta, 0, above=True)
    return np.asarray(np.exp(-np.logaddexp(0.0, -lift)))


def kappa(mu: npt.ArrayLike, p: npt.ArrayLike) -> Array:
    """κ(μ) = KL(p_[β]‖a) = μ log(μ/p) + (1−μ) log((1−μ)/(1−p)): the least KL at which μ can be reached; μ in [0, 1]."""
    goal, base = real("mu", mu, 0, 1), _unit("p", p)
    with np.errstate(divide="ignore", invalid="ignore"):
        right = np.where(goal > 0.0, goal * (np.log(goal) - np.log(base)), 0.0)
        wrong = np.where(goal < 1.0, (1.0 - goal) * (np.log1p(-goal) - np.log1p(-base)), 0.0)
    return np.asarray(right + wrong)


def kl_filtered_tilted(mu: npt.ArrayLike) -> Array:
    """KL(p_*‖p_[β]) = −log μ."""
    return np.asarray(-np.log(real("mu", mu, 0, 1, above=True)))


def tv(mu: npt.ArrayLike) -> Array:
    """TV(p_*, p_[β]) = 1 − μ."""
    return 1.0 - real("mu", mu, 0, 1)


def free_energy(p: npt.ArrayLike, beta: npt.ArrayLike) -> Array:
    """max over π of E[v] − β·KL(π‖a) = β log(1 − p + p·e^{1/β}), reached at p_[β]."""
    base, weight = _unit("p", p), real("beta", beta, 0, above=True)
    return np.asarray(weight * np.logaddexp(np.log1p(-base), np.log(base) + 1.0 / weight))


@dataclass(frozen=True, eq=False)
class ProblemBeta:
    """A β per problem, and what it can and cannot do."""

    beta: Array
    mu: Array
    """The solve rate that this β reaches from the posterior mean; differs from the target where `clipped`."""
    clipped: npt.NDArray[np.bool_]
    """Where the target was not attainable within [beta_min, beta_max], or not above the posterior mean."""


def problem_beta(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    mu: npt.ArrayLike,
    beta_min: float = 0.02,
    beta_max: float = 10.0,
    prior: posterior.Prior = (1.0, 1.0),
) -> ProblemBeta:
    """β per problem for a target solve rate μ, from evidence `a`, `b` *about the base model* (version 0), prior aside.

    A problem already at the target gets beta_max (stay near the base), a hopeless one beta_min; both are reported.
    """
    low = scalar("beta_min", beta_min, 0, above=True)
    high = scalar("beta_max", beta_max, low)
    p, goal = np.broadcast_arrays(posterior.mean(a, b, prior), _unit("mu", mu))
    gap = _logit(goal) - _logit(p)
    wanted = np.where(gap > 0.0, 1.0 / np.where(gap > 0.0, gap, 1.0), np.inf)
    beta = np.clip(wanted, low, high)
    return ProblemBeta(beta, mu_of(p, beta), beta != wanted)


def pseudo_reward(
    log_t: npt.ArrayLike, divergence: Divergence = "alpha", *, alpha: float = 0.25, cap: float = 10.0
) -> Array:
    """−f'(t) of the f-divergence D_f(π‖target) = E_target[f(t)], t = π/target, shifted to 0 at t = 1, cut to ±cap.

    E_π[pseudo_reward·∇log π] = −∇D_f(π‖target) where the cap is not felt. log_t = +inf is allowed: an answer that the
    target excludes. "alpha" is t^(α−1) − 1 as α-DPG writes it: (1−α) times −f', from the forward KL (α → 0) towards the
    reverse KL (α → 1).

    Args:
        log_t: log π − log target, nats; any shape; +inf allowed, NaN and −inf not.
        cap: M > 0.
    """
    x = np.asarray(log_t, dtype=np.float64)
    if x.size == 0 or np.isnan(x).any() or (x == -np.inf).any():
        what = "empty" if x.size == 0 else "nan or -inf somewhere"
        raise ValueError(f"log_t is {what} but must hold numbers in (-inf, inf]")
    one_of("divergence", divergence, DIVERGENCES)
    alpha, limit = scalar("alpha", alpha, 0, 1, below=True), scalar("cap", cap, 0, above=True)
    with np.errstate(over="ignore"):
        if divergence in ("alpha", "forward_kl"):
            power = alpha - 1.0 if divergence == "alpha" else -1.0
            value = np.expm1(power * x)
        elif divergence == "reverse_kl":
            value = -x
        elif divergence == "js":
            value = 0.5 * (np.logaddexp(0.0, -x) - np.log(2.0))  # −½ log(2t/(1+t))
        elif divergence == "tv":
            value = -0.5 * np.sign(x)
        else:
            value = -2.0 * np.expm1(x)
    return np.clip(value, -limit, limit)


def leave_one_out(values: npt.ArrayLike) -> Array:
    """Each value minus the mean of the others in its group (last axis, at least two)."""
    x = real("values", values)
    G = x.shape[-1] if x.ndim else 0
    if G < 2:
        raise ValueError(
            f"values has shape {x.shape} but must end in at least 2: a leave-one-out mean needs a second one"
        )
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) * (G / (G - 1.0)))


def _groups(**arrays: npt.ArrayLike) -> list[Array]:
    read = {name: real(name, value) for name, value in arrays.items()}
    shapes = {array.shape for array in read.values()}
    if len(shapes) > 1 or any(len(shape) != 2 for shape in shapes):
        listed = ", ".join(f"{name} {array.shape}" for name, array in read.items())
        raise ValueError(f"shapes are {listed} but must all be the same [groups, completions]")
    return list(read.values())


def log_z_from_group(verdicts: npt.ArrayLike, logp: npt.ArrayLike, logp_base: npt.ArrayLike) -> Array:
    """[N, G] log of the others' mean of v·a/π, an unbiased estimate of Z = a(Y1) that completion i does not see.

    −inf where no other completion of the group is right.
    """
    v, now, base = _groups(verdicts=verdicts, logp=logp, logp_base=logp_base)
    G = v.shape[1]
    if G < 2:
        raise ValueError(f"verdicts has shape {v.shape} but must have at least 2 completions per group")
    with np.errstate(divide="ignore"):
        terms = np.where(v == 1.0, base - now, -np.inf)
    top = np.max(terms, axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(terms - top)
    others = np.stack([np.delete(weights, i, axis=1).sum(axis=1) for i in range(G)], axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(others / (G - 1.0)) + top)


def log_z_from_posterior(a: npt.ArrayLike, b: npt.ArrayLike, prior: posterior.Prior = (1.0, 1.0)) -> Array:
    """log of the posterior mean solve rate of the *base* model; needs evidence from version 0."""
    return np.log(posterior.mean(a, b, prior))


def filtered(
    verdicts: npt.ArrayLike,
    logp: npt.ArrayLike,
    logp_base: npt.ArrayLike,
    log_z: npt.ArrayLike,
    divergence: Divergence = "alpha",
    *,
    alpha: float = 0.25,
    cap: float = 10.0,
) -> Array:
    """Coefficients of ∇log π for a direct fit of p_* = a·v/Z: `pseudo_reward` minus the group's leave-one-out mean.

    Args:
        verdicts: [N, G], 1 right, 0 wrong.
        logp, logp_base: [N, G] sequence log-probabilities under π and under the frozen base, nats.
        log_z: log Z, [N], [N, G] or a scalar; −inf (no right answer known) leaves the group's right answers at the cap.
    Returns:
        [N, G].
    """
    v, now, base = _groups(verdicts=verdicts, logp=logp, logp_base=logp_base)
    z = np.asarray(log_z, dtype=np.float64)
    if np.isnan(z).any() or (z == np.inf).any():
        raise ValueError("log_z is nan or inf somewhere but must hold numbers in [-inf, inf)")
    # −inf would make the target infinite: hold it where exp stays finite, the cap decides.
    z = np.maximum(z[:, None] if z.ndim == 1 else z, -700.0)
    log_t = np.where(v == 1.0, now - base + z, np.inf)
    return leave_one_out(pseudo_reward(log_t, divergence, alpha=alpha, cap=cap))


def kl_control(verdicts: npt.ArrayLike, logp: npt.ArrayLike, logp_base: npt.ArrayLike, beta: npt.ArrayLike) -> Array:
    """Coefficients of ∇log π for E[v] − β·KL(π‖a): v − β(log π − log a) minus the group's leave-one-out mean.

    Args:
        verdicts, logp, logp_base: [N, G] as in `filtered`.
        beta: > 0, a scalar or one per group [N].
    Returns:
        [N, G].
    """
    v, now, base = _groups(verdicts=verdicts, logp=logp, logp_base=logp_base)
    weight = real("beta", beta, 0, above=True)
    return leave_one_out(v - (weight[:, None] if weight.ndim == 1 else weight) * (now - base))
