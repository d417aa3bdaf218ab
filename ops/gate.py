"""The gate that a run's learner uses, for whoever shows what the learner saw."""

from typing import Any

from gating.adaptive import has_problem_gate
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
    return has_problem_gate(config.objective.advantage, config.objective.params)


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
