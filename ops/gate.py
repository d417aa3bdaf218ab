"""The gate that a run's learner uses, for whoever shows what the learner saw."""

from typing import Any

from ops.config import RunConfig
from store.queries import Gate


def gate_of(config: RunConfig) -> Gate:
    """k, τ and prior as `learner.opinions` takes them: those of [gating], unless `objective.params` holds others."""
    params = config.objective.params if is_gated(config) else {}
    k, tau, prior_a, prior_b = (
        params.get(name, getattr(config.gating, name)) for name in ("k", "tau", "prior_a", "prior_b")
    )
    return Gate(k, tau, (prior_a, prior_b))


def is_gated(config: RunConfig) -> bool:
    """Whether the run's advantage reads the gate of a problem, as `learner.opinions` decides it."""
    objective = config.objective
    return objective.advantage == "fade_bbg" or (
        objective.advantage == "bbg" and objective.params.get("evidence") == "pooled"
    )


def gate_in_words(config: RunConfig) -> dict[str, Any]:
    """The parameters of the opinions, and whether the run's advantage reads the gate."""
    gate = gate_of(config)
    return {
        "k": gate.k,
        "tau": gate.tau,
        "prior": list(gate.prior),
        "gamma": config.gating.gamma,
        "advantage": config.objective.advantage,
        "used_by_the_advantage": is_gated(config),
    }
