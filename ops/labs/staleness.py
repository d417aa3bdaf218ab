"""`verge lab staleness`: one method on rollouts of a fixed age, with and without the trust region on negatives."""

from typing import Any

from gating import advantages
from ops.figures import check
from ops.labs import training
from ops.labs.measures import KS
from ops.labs.settings import BASE, RunSettings

RATE = 2e-4
RISES, COLLAPSES = 0.03, 0.5
"""Gain of pass@16 that counts as a rise; share of the base's pass@16 under which a run has collapsed."""


def run(lag: int, steps: int, seed: int, advantage: str = "fade_bbg") -> dict[str, Any]:
    """Train twice from the tiny model, with and without the trust region; the checks compare exact held-out pass@16."""
    settings = RunSettings(method=advantage, lr=RATE, lag=lag, steps=steps, seed=seed)
    advantages.make(advantage).success(1, settings.size)  # ValueError names what is wrong
    base = _figures(training.run(RunSettings(method=BASE)))
    kept = _figures(training.run(settings))
    lost = _figures(training.run(settings.model_copy(update={"correction": {"trust": False}})))
    gain = kept["pass_at"]["16"] - base["pass_at"]["16"]
    left = lost["pass_at"]["16"] / base["pass_at"]["16"]
    return {
        "advantage": advantage,
        "lag": lag,
        "steps": steps,
        "base": base,
        "with_trust_region": kept,
        "without_trust_region": lost,
        "checks": [
            check("pass_at_16_gain_with_trust_region", gain, RISES, gain >= RISES),
            check("pass_at_16_share_left_without", left, COLLAPSES, left <= COLLAPSES),
        ],
    }


def _figures(line: dict[str, Any]) -> dict[str, Any]:
    """Of one run, on held-out problems; `rewards` by tenths of it."""
    found = {
        "pass_at": dict(zip(map(str, KS), line["final"]["report"]["pass"], strict=True)),
        "entropy": line["final"]["entropy"],
    }
    return found | {name: line[name] for name in ("rewards", "ended") if name in line}
