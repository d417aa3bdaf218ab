"""The admission formula in every interleaving of small machines: no deadlock, and lag ≤ max_lag without waste."""

import math

import pytest

from learner.admission import ticket_limit
from learner.config import AdmissionConfig
from tests.learner.admission_model import Model, explore


def model(max_lag: int, batch: int, max_uses: int = 1, spi: float = 1.0, steps: int = 3, **settings: object) -> Model:
    config = AdmissionConfig(max_lag=max_lag, max_uses=max_uses, samples_per_insert=spi)
    return Model(config, batch, steps, lambda step: ticket_limit(step, batch, config), **settings)


@pytest.mark.parametrize(
    ("max_lag", "batch", "max_uses", "spi", "steps"),
    [
        (0, 1, 1, 1.0, 4),
        (0, 2, 1, 1.0, 4),
        (1, 1, 1, 1.0, 4),
        (1, 2, 1, 1.0, 4),
        (2, 1, 1, 1.0, 4),
        (1, 2, 2, 2.0, 3),
        (1, 2, 2, 1.5, 2),
    ],
)
def test_no_interleaving_of_deaths_refusals_and_late_weights_is_a_deadlock(
    max_lag: int, batch: int, max_uses: int, spi: float, steps: int
) -> None:
    found = explore(model(max_lag, batch, max_uses, spi, steps))
    assert found.stuck == ()
    assert found.expired > 0, "late groups were among the interleavings, and left with a refund"


@pytest.mark.parametrize(("max_lag", "batch"), [(0, 1), (0, 3), (1, 2), (2, 2), (3, 1)])
def test_with_prompt_actors_no_group_is_ever_older_than_max_lag(max_lag: int, batch: int) -> None:
    """The bound of the design: nothing that was generated has to be thrown away for being late."""
    found = explore(model(max_lag, batch, steps=max_lag + 3, prompt=True))
    assert found.stuck == ()
    assert found.expired == 0
    one_more = model(max_lag, batch, steps=max_lag + 3, prompt=True)
    looser = Model(one_more.config, batch, one_more.steps, lambda step: one_more.limit(step) + 1, prompt=True)
    assert explore(looser).expired > 0, "one ticket more, and it may be late: the bound is tight"


def test_the_checker_finds_a_bound_that_is_too_small() -> None:
    """`max_lag = 0` with max_lag · B: nothing may ever run."""
    right = model(0, 2)
    without_one = Model(right.config, 2, 3, lambda step: ticket_limit(step, 2, right.config) - 2)
    assert len(explore(without_one).stuck) == explore(without_one).states == 1
    halves = AdmissionConfig(max_lag=1, max_uses=2, samples_per_insert=1.5)
    rounded_down = Model(halves, 1, 3, lambda step: math.floor((step + 2) / 1.5 - 0.5))
    assert explore(rounded_down).stuck


def test_the_checker_finds_an_end_that_keeps_its_ticket() -> None:
    assert explore(model(1, 2)).stuck == ()
    assert explore(model(1, 2, refunds=False)).stuck


@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_a_pool_for_the_steps_between_checkpoints_never_blocks_and_a_smaller_one_does(checkpoint_every: int) -> None:
    """The least store.max_groups that the config accepts (ops/config.py)."""
    least = 2 * checkpoint_every
    settings = {"steps": checkpoint_every + 1, "checkpoint_every": checkpoint_every}
    found = explore(model(1, 2, max_groups=least, **settings))
    assert found.stuck == ()
    assert found.most_held == least
    assert explore(model(1, 2, max_groups=least - 1, **settings)).stuck
