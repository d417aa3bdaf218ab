"""How many sequences an engine is given."""

from actors.load import sequences_wanted


def test_an_engine_that_keeps_up_is_filled_and_a_quarter_queues() -> None:
    assert sequences_wanted(running=0, waiting=0, max_sequences=256, group_size=8) == 256 + 64
    assert sequences_wanted(running=200, waiting=0, max_sequences=256, group_size=8) == 256 + 64


def test_an_engine_whose_memory_is_full_has_shown_what_it_can_run() -> None:
    assert sequences_wanted(running=40, waiting=5, max_sequences=256, group_size=8) == 40 + 10


def test_at_least_a_group_queues() -> None:
    assert sequences_wanted(running=4, waiting=4, max_sequences=256, group_size=64) == 4 + 64
    assert sequences_wanted(running=0, waiting=64, max_sequences=1, group_size=64) == 1 + 64
