"""How an evaluation shares the engine with training."""

import pytest

from actors.rounds import share


@pytest.mark.parametrize(
    ("free", "training", "evaluating", "expected"),
    [
        (32, 0, 0, 16),  # an empty engine: half, and the rest waits for what tickets there are
        (31, 0, 1, 15),
        (8, 24, 0, 8),  # training holds more than half: all that becomes free, until it is half
        (1, 16, 15, 1),
        (1, 15, 16, 0),  # half is held: what becomes free is training's
        (4, 0, 28, 0),
        (0, 16, 16, 0),
        (1, 0, 0, 1),  # an engine that holds one group: in turn
        (1, 0, 1, 0),
    ],
)
def test_a_round_takes_room_up_to_half_of_what_the_engine_holds(
    free: int, training: int, evaluating: int, expected: int
) -> None:
    assert share(free, training, evaluating) == expected
