"""Tickets: the limit of DESIGN §4, and the order in which problems come up."""

import numpy as np
import pytest

from learner.admission import Admission, Fruitless, chances, ticket_limit
from learner.config import AdmissionConfig


def test_the_ticket_limit_is_the_formula_of_the_design() -> None:
    assert ticket_limit(0, 64, AdmissionConfig(max_lag=0)) == 64
    assert ticket_limit(10, 64, AdmissionConfig(max_lag=4)) == 15 * 64
    assert ticket_limit(2, 10, AdmissionConfig(max_lag=1, max_uses=2, samples_per_insert=1.5)) == 27  # 40/1.5 = 26.7


def test_every_problem_comes_up_once_per_epoch_however_the_calls_are_cut() -> None:
    admission = Admission(seed=3)
    chosen = [i for count in (3, 4, 5, 8) for i in admission.choose(count, np.ones(10))]
    assert sorted(chosen[:10]) == list(range(10))
    assert sorted(chosen[10:]) == list(range(10))
    assert chosen[:10] != chosen[10:]


def test_a_problem_comes_up_by_its_gate_its_patience_and_the_retest_floor() -> None:
    is_open = np.array([True, True, True, True, False])
    attempts, successes = np.array([0, 100, 400, 400, 400]), np.array([0, 0, 0, 1, 400])
    config = AdmissionConfig(patience=100, retest_floor=0.1)
    assert chances(is_open, attempts, successes, config).tolist() == [1.0, 1.0, 0.25, 1.0, 0.1]
    assert chances(is_open, 100 * attempts, successes, config).tolist() == [1.0, 0.1, 0.1, 1.0, 0.1]


def test_a_problem_is_issued_as_often_as_its_chance_says() -> None:
    chance = np.where(np.arange(100) % 2 == 0, 1.0, 0.1)
    chosen = np.array(Admission(0).choose(20_000, chance))
    share = (chosen % 2 == 1).mean()
    assert share == pytest.approx(0.1 / 1.1, abs=0.01)  # 50 open and 50·0.1 closed an epoch
    assert set(Admission(0).choose(500, np.floor(chance))) == set(range(0, 100, 2))


def test_choosing_ends_when_no_problem_has_a_chance() -> None:
    assert Admission(0).choose(5, np.zeros(10)) == []
    assert Admission(0).choose(5, np.zeros(0)) == []


def test_problems_that_join_come_up_in_what_is_left_of_the_epoch() -> None:
    admission = Admission(0)
    first = admission.choose(2, np.ones(4))
    assert sorted(first + admission.choose(4, np.ones(6))) == [0, 1, 2, 3, 4, 5]
    assert sorted(admission.choose(6, np.ones(6))) == [0, 1, 2, 3, 4, 5]


def test_admission_continues_from_its_state_and_refuses_another() -> None:
    one = Admission(7)
    chance = np.where(np.arange(9) % 3 > 0, 1.0, 0.3)
    one.choose(5, chance)
    two = Admission(99)
    two.load_state_dict(one.state_dict())
    assert two.choose(40, chance) == one.choose(40, chance)
    with pytest.raises(ValueError, match="expected"):
        two.load_state_dict({"order": []})


def test_fruitless_counts_batches_since_the_last_step() -> None:
    fruitless = Fruitless(limit=2, groups_per_step=8)
    fruitless.add(15)
    assert not fruitless.over
    fruitless.add(1)
    assert fruitless.over
    fruitless.reset()
    assert not fruitless.over
