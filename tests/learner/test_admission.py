"""Tickets: the limit of DESIGN §4, and the order in which problems come up."""

import numpy as np
import pytest

from learner.admission import Admission, Fruitless, ticket_limit
from learner.config import AdmissionConfig


def test_the_ticket_limit_is_the_formula_of_the_design() -> None:
    assert ticket_limit(0, 64, AdmissionConfig(max_lag=0)) == 64
    assert ticket_limit(10, 64, AdmissionConfig(max_lag=4)) == 15 * 64
    assert ticket_limit(2, 10, AdmissionConfig(max_lag=1, max_uses=2, samples_per_insert=1.5)) == 27  # 40/1.5 = 26.7


def test_every_problem_comes_up_once_per_epoch_however_the_calls_are_cut() -> None:
    admission = Admission(retest_floor=0.0, seed=3)
    chosen = [i for count in (3, 4, 5, 8) for i in admission.choose(count, np.ones(10, bool))]
    assert sorted(chosen[:10]) == list(range(10))
    assert sorted(chosen[10:]) == list(range(10))
    assert chosen[:10] != chosen[10:]


def test_a_closed_problem_is_issued_only_with_the_retest_probability() -> None:
    is_open = np.arange(100) % 2 == 0
    admission = Admission(retest_floor=0.1, seed=0)
    chosen = np.array(admission.choose(20_000, is_open))
    share = (chosen % 2 == 1).mean()
    assert share == pytest.approx(0.1 / 1.1, abs=0.01)  # 50 open and 50·0.1 closed an epoch
    assert set(Admission(0.0, 0).choose(500, is_open)) == set(range(0, 100, 2))


def test_choosing_ends_when_every_gate_is_closed() -> None:
    assert Admission(0.0, 0).choose(5, np.zeros(10, bool)) == []
    assert Admission(0.0, 0).choose(5, np.zeros(0, bool)) == []


def test_problems_that_join_come_up_from_the_next_epoch() -> None:
    admission = Admission(0.0, 0)
    admission.choose(2, np.ones(4, bool))
    assert sorted(admission.choose(8, np.ones(6, bool))[2:]) == [0, 1, 2, 3, 4, 5]


def test_admission_continues_from_its_state_and_refuses_another() -> None:
    one = Admission(0.3, 7)
    is_open = np.arange(9) % 3 > 0
    one.choose(5, is_open)
    two = Admission(0.3, 99)
    two.load_state_dict(one.state_dict())
    assert two.choose(40, is_open) == one.choose(40, is_open)
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
