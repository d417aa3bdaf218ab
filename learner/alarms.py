"""What a person should hear about a step, before the reward shows it."""

from collections.abc import Mapping

from learner.config import AlarmsConfig

ALARMS = ("ess", "entropy", "kl", "problems")


def alarms_of(
    metrics: Mapping[str, float], active_problems: int, why_none: str, config: AlarmsConfig
) -> dict[str, str]:
    """What is wrong with a step, by name in ALARMS; "" where nothing is.

    Args:
        metrics: ess in [0, 1], entropy and kl in nats a token, as `StepStats.metrics` has them.
        active_problems: problems whose gate is open; why_none: the reason, where there is none.
    """
    ess, entropy, kl = metrics["ess"], metrics["entropy"], metrics["kl"]
    found = dict.fromkeys(ALARMS, "")
    if ess < config.ess_floor:
        found["ess"] = (
            f"the effective sample size is {ess:.2f} of the tokens, below {config.ess_floor:g} (alarms.ess_floor): a"
            " few ratios carry the step; lower admission.max_lag or learner.lr"
        )
    if entropy < config.entropy_floor:
        found["entropy"] = (
            f"the policy's entropy is {entropy:.3f} nats, below {config.entropy_floor:g} (alarms.entropy_floor): it"
            " hardly explores any more; raise gating.target_entropy or lower learner.lr"
        )
    if kl > config.kl_ceiling:
        found["kl"] = (
            f"KL(μ‖π) is {kl:.3f} nats a token, above {config.kl_ceiling:g} (alarms.kl_ceiling): the data are not the"
            " policy's; lower admission.max_lag or learner.lr"
        )
    if active_problems == 0:
        found["problems"] = f"no problem is active, because {why_none}"
    return found


class AlarmLog:
    """Says when an alarm starts and when it is over, and not in between."""

    def __init__(self) -> None:
        self._on: set[str] = set()

    def lines(self, found: Mapping[str, str], step: int) -> list[str]:
        """What is to be said of a step's alarms, as `alarms_of` gives them."""
        lines = []
        for name, text in found.items():
            if text and name not in self._on:
                self._on.add(name)
                lines.append(f"alarm at step {step}: {text}")
            elif not text and name in self._on:
                self._on.remove(name)
                lines.append(f"alarm {name} is over at step {step}")
        return lines
