"""What is said of a step that goes wrong, and when."""

import pytest

from learner.alarms import ALARMS, AlarmLog, alarms_of
from learner.config import AlarmsConfig

WELL = {"ess": 0.9, "entropy": 1.0, "kl": 0.01}


@pytest.mark.parametrize(
    ("changes", "active", "config", "name", "said"),
    [
        ({"ess": 0.29}, 5, {}, "ess", "0.29 of the tokens, below 0.3 (alarms.ess_floor)"),
        ({"ess": 0.5}, 5, {"ess_floor": 0.6}, "ess", "below 0.6"),
        ({"entropy": 0.04}, 5, {}, "entropy", "0.040 nats, below 0.05 (alarms.entropy_floor)"),
        ({"entropy": 0.9}, 5, {"entropy_floor": 1.0}, "entropy", "below 1"),
        ({"kl": 0.11}, 5, {}, "kl", "0.110 nats a token, above 0.1 (alarms.kl_ceiling)"),
        ({"kl": 0.02}, 5, {"kl_ceiling": 0.015}, "kl", "above 0.015"),
        ({}, 0, {}, "problems", "no problem is active, because every gate is closed"),
    ],
)
def test_each_alarm_names_the_figure_its_bound_and_the_field(
    changes: dict[str, float], active: int, config: dict[str, float], name: str, said: str
) -> None:
    found = alarms_of(WELL | changes, active, "every gate is closed", AlarmsConfig(**config))
    assert said in found[name]
    assert [other for other in ALARMS if found[other]] == [name]
    assert not any(alarms_of(WELL, 1, "", AlarmsConfig()).values())


def test_an_alarm_is_said_when_it_starts_and_when_it_is_over() -> None:
    log, config = AlarmLog(), AlarmsConfig()
    said = [
        log.lines(alarms_of(WELL | {"ess": ess}, 1, "", config), step) for step, ess in enumerate((1, 0.1, 0.2, 1, 0.1))
    ]
    assert [len(lines) for lines in said] == [0, 1, 0, 1, 1]
    assert said[1][0].startswith("alarm at step 1: the effective sample size is 0.10")
    assert said[3] == ["alarm ess is over at step 3"]
