"""The arithmetic of an actor's section."""

from actors.config import ActorConfig


def test_an_actor_holds_tickets_for_a_full_engine_and_a_quarter_more() -> None:
    assert ActorConfig(max_sequences=256).tickets_in_flight(group_size=8) == 40
    assert ActorConfig(max_sequences=1).tickets_in_flight(group_size=64) == 1
