"""The arithmetic of an actor's section."""

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from actors.config import ActorConfig, core_numbers
from actors.environment import machine_cores
from store.errors import VergeError


@pytest.mark.parametrize(("text", "cores"), [("1", (1,)), ("0-3", (0, 1, 2, 3)), ("4, 0-1", (0, 1, 4))])
def test_cores_are_named_by_ranges(text: str, cores: tuple[int, ...]) -> None:
    assert core_numbers(text) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0|1", "1,,2"])
def test_cores_that_are_no_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="must name cores, as in `0-3`"):
        ActorConfig(cpu_cores=text)


def test_an_engine_in_parts_is_not_placed_by_hand() -> None:
    with pytest.raises(ValidationError, match="remove it, or set tensor_parallel = 1"):
        ActorConfig(cpu_cores="0", tensor_parallel=2)


def test_cores_are_counted_among_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {9, 4, 6})
    assert machine_cores("0,2") == (4, 9)
    with pytest.raises(VergeError, match=r"cpu_cores is 3, but only 3 cores can be used here.*some of 0-2"):
        machine_cores("3")


def test_a_nice_actor_and_what_it_starts_stand_back_in_their_session() -> None:
    program = """
import os, subprocess, sys
from actors.environment import stand_back
stand_back(7)
subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"])
group = "/proc/self/autogroup"
print(open(group).read().split()[-1] if os.path.exists(group) else 7)
"""
    before = os.nice(0)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True)
    assert ended.stdout.split() == [str(min(before + 7, 19)), "7"], ended.stderr


def test_one_core_may_be_named_by_a_number() -> None:
    assert ActorConfig.model_validate({"cpu_cores": 1}).cpu_cores == "1"


@pytest.mark.parametrize("niceness", [-1, 20])
def test_niceness_is_that_of_linux(niceness: int) -> None:
    with pytest.raises(ValueError, match="niceness"):
        ActorConfig(niceness=niceness)
