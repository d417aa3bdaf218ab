"""Each ablation of fade_bbg takes one idea out, and nothing else."""

from typing import ClassVar

import numpy as np
import pytest

from gating.adaptive import FadeBBG, has_problem_gate
from learner.config import DrawConfig, GatingConfig, ObjectiveConfig
from learner.opinions import Opinions
from ops.labs import plans
from ops.labs.ablations import GroupBaseline, SeeingGate

GIVEN = {"evidence_a": 3.0, "evidence_b": 5.0, "alpha": 2.0}


class SolvedOften:
    """The first problem is solved nearly always, the second never."""

    ids: ClassVar = ["easy", "hard"]

    def evidence_at(self, now_version: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array([60.0, 0.0]), np.array([2.0, 8.0])


def test_a_group_baseline_is_silent_on_an_all_wrong_group_and_centred_on_the_others() -> None:
    assert FadeBBG(**GIVEN).failure(0, 8) < 0
    assert GroupBaseline(**GIVEN).failure(0, 8) == 0
    ratio = GroupBaseline(**GIVEN).success(2, 8) / FadeBBG(**GIVEN).success(2, 8)
    assert ratio == pytest.approx((1 - 2 / 8) ** 2 / (1 - 5 / 17) ** 2)  # b = (1 + 3 + 1) / (2 + 8 + 7)


def test_a_gate_that_sees_the_reward_is_one_for_both_where_the_blind_ones_differ() -> None:
    """Of 3 right of 8 beside evidence 3, 5: a success is judged by Beta(6, 11), a failure by Beta(7, 10)."""
    success, failure = (1 - 6 / 17) ** 2, -(1 - 7 / 17) * 7 / 17
    seeing, blind = SeeingGate(**GIVEN), FadeBBG(**GIVEN)
    assert seeing.success(3, 8) / success == pytest.approx(seeing.failure(3, 8) / failure)
    assert blind.success(3, 8) / success > 1.5 * blind.failure(3, 8) / failure


@pytest.mark.parametrize("method", [plans.GROUP_BASELINE, plans.SEEING_GATE, "fade_bbg"])
def test_an_ablation_keeps_the_gate_of_a_problem(method: str) -> None:
    assert has_problem_gate(method, {})
    opinions = Opinions(ObjectiveConfig(advantage=method), GatingConfig(), DrawConfig())
    assert opinions.gates(SolvedOften(), 0).open.tolist() == [False, True]


def test_without_a_gate_every_problem_is_open_and_counts_the_same() -> None:
    ungated = plans.ABLATIONS[0]
    opinions = Opinions(
        ObjectiveConfig(advantage=ungated["method"], params=ungated["params"]), GatingConfig(), DrawConfig()
    )
    assert opinions.gates(SolvedOften(), 0).gate.tolist() == [1.0, 1.0]
    assert not has_problem_gate("bbg", {"evidence": "group"})
    assert has_problem_gate("bbg", {"evidence": "pooled"})
