"""The gate that a run's learner uses, for whoever shows what the learner saw."""

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
