"""How many sequences an engine is given, by what it says of itself."""

from actors.load import Load


def test_an_engine_that_keeps_up_is_filled_and_a_quarter_queues() -> None:
    load = Load(max_sequences=256, group_size=8)
    assert load.room(0) == (256 + 64) // 8
    load.record(running=200, waiting=0)
    assert load.room(200) == 120 // 8
    assert load.room(320) == 0


def test_an_engine_whose_memory_is_full_has_shown_what_it_can_run() -> None:
    load = Load(max_sequences=256, group_size=8)
    load.record(running=40, waiting=8)
    assert (load.capacity, load.queue, load.room(48)) == (40, 10, 0)


def test_at_least_a_group_queues() -> None:
    assert Load(max_sequences=1, group_size=64).room(0) == 1
    load = Load(max_sequences=256, group_size=64)
    load.record(running=64, waiting=64)
    assert load.queue == 64


def test_the_queue_doubles_where_it_was_too_short_and_shrinks_where_it_is_too_long() -> None:
    load = Load(max_sequences=256, group_size=8)
    load.record(running=100, waiting=0)
    assert load.queue == 64, "it has not been given all that it should hold"
    assert load.room(320) == 0
    load.record(running=255, waiting=0)
    assert load.queue == 128
    load.record(running=100, waiting=0)
    assert load.queue == 128, "it has not been filled again"
    for _ in range(3):
        load.room(1000)
        load.record(running=255, waiting=0)
    assert load.queue == 256, "never more than a batch"
    for _ in range(2000):
        load.record(running=256, waiting=250)
    assert load.queue == 64


def test_an_engine_that_waits_for_tickets_asks_for_no_longer_queue() -> None:
    load = Load(max_sequences=256, group_size=8)
    for _ in range(10):
        assert load.room(100) > 0
        load.record(running=100, waiting=0)
    assert load.queue == 64
