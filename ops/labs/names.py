"""What a kind of run is called in a table."""

from typing import Any

from ops.labs import plans
from ops.labs.settings import RunSettings

_FIELDS = {"clip_low": "low", "clip_high": "high", "delta_floor": "δ floor", "delta_floor_per_lag": "δ floor per lag",
           "target_entropy": "H*", "cov_kl": "KL"}  # fmt: skip


def method_name(settings: RunSettings) -> str:
    """The method, with what of it differs from its defaults."""
    params, gating = dict(settings.params), dict(settings.gating)
    if settings.method == "fade_bbg" and params == {"k": 1}:
        return "fade_bbg, no gate"
    if settings.method == "fade_bbg" and params == {"alpha": 1.0}:
        return "fade_bbg, α off"
    named = {plans.GROUP_BASELINE: "fade_bbg, group baseline", plans.SEEING_GATE: "fade_bbg, gate sees r"}
    relative = gating.pop("delta_mode", "absolute") == "relative"
    words = [named.get(settings.method, settings.method), *_listed(params), *_listed(gating)]
    return ", ".join([*words, "δ relative"] if relative else words)


def correction_name(settings: RunSettings) -> str:
    """How age is corrected, and what bounds the policy's move; "default" for the learner's own."""
    fields = dict(settings.correction)
    kind, trust = fields.pop("kind", "tis"), fields.pop("trust", True)
    if settings.objective.get("covariance") == "kl":
        bound = f"KL {settings.objective.get('cov_kl', 1.0):g}"
    elif not trust:
        bound = "no trust region"
    elif kind == "gspo":
        bound = f"sequence mask {fields.pop('clip_low', 0.1):g}"
    else:
        bound = ", ".join(_listed(fields)) or "trust region"
    if kind == "tis" and bound == "trust region":
        return "default"
    if kind == "decoupled":
        bound = f"{settings.mini_batches} mini-batches, {bound}"
    return bound if kind == "tis" else f"{kind}, {bound}"


def full_name(settings: RunSettings) -> str:
    """Method and correction, the latter where it is not the default or the rollouts are old."""
    if settings.lag == 0 and not settings.correction and not settings.objective:
        return method_name(settings)
    return f"{method_name(settings)}; {correction_name(settings)}"


def _listed(fields: dict[str, Any]) -> list[str]:
    return [f"{_FIELDS.get(name, name)} {value:g}" for name, value in fields.items()]
