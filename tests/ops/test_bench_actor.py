"""What `verge bench actor` makes of its measurements, and how it watches a loop."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE

import pytest

from ops.bench_actor import Update, figures
from ops.measured import Measured, measured


def taken(tokens: int, seconds: float, cpu_s: float, lags: list[float], own: float = 0.0) -> Measured:
    return Measured(tokens, seconds, cpu_s, cpu_s + tokens * 1e-4, tuple((lag, min(lag, own)) for lag in lags))


def rates(tokens_per_s: float, cpu: float, all_cpu: float) -> dict[str, float]:
    return {"tokens_per_s": tokens_per_s, "cpu_us_per_token": cpu, "all_cpu_us_per_token": all_cpu}


def test_each_round_is_a_ratio_and_the_check_is_their_median() -> None:
    bare = taken(1000, 10.0, 0.05, [0.001] * 199 + [0.5])
    rounds = [
        (bare, taken(1100, 11.0, 0.077, [0.002] * 100)),  # as fast
        (bare, taken(900, 10.0, 0.054, [0.004] * 100)),  # 0.9
        (bare, taken(500, 100.0, 0.035, [0.030] * 100, own=0.012)),  # a machine busy with others: 0.05
    ]
    updates = [Update(0.2, 1.0), Update(0.3, 5.0), Update(9.0, 2.0)]
    found = figures(rounds, updates)
    assert {row["name"]: (row["value"], row["ok"]) for row in found["checks"]} == {
        "throughput_over_bare": (pytest.approx(0.9), False),
        "loop_lag_p99_ms": (pytest.approx(30.0), False),
        "update_pause_ms": (pytest.approx(300.0), True),
        "publish_to_first_token_ms": (pytest.approx(2000.0), True),
    }
    assert found["loop_lag_of_own_work_p99_ms"] == pytest.approx(12.0)
    assert found["bare_loop_lag_p99_ms"] == pytest.approx(1.0)  # 1 timer in 200 was half a second late
    # 70 − 50, 60 − 50 and 70 − 50 microseconds of CPU a token
    assert found["own_cpu_us_per_token"] == pytest.approx(20.0)
    assert found["cpu_over_bare"] == pytest.approx(150 / 170)  # 150 in all, of 170, 160 and 170
    assert [round["bare"] for round in found["rounds"]] == [pytest.approx(rates(100.0, 50.0, 150.0))] * 3
    assert found["rounds"][1]["actor"] == pytest.approx(rates(90.0, 60.0, 160.0))


def test_a_loop_that_is_held_up_is_late_at_every_timer_that_it_missed() -> None:
    async def work() -> tuple[int, float]:
        await asyncio.sleep(0.05)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            sum(range(1000))
        await asyncio.sleep(0.05)
        return 7, time.time()

    found = asyncio.run(measured(work()))
    assert found.tokens == 7
    assert found.seconds >= 0.4
    late = [lag for lag, _ in found.lags if lag > 0.1]
    assert len(late) >= 15, "20 of the 30 timers of that time are more than 100 ms late, not the first one alone"
    assert max(late) >= 0.28
    assert max(own for _, own in found.lags) <= found.cpu_s + 0.01


def test_the_cpu_of_all_is_that_of_the_processes_that_were_started_too() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: sum(range(1000))\nprint(); input()"

    async def work() -> tuple[int, float]:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", burn, stdin=PIPE, stdout=PIPE)
        assert child.stdout is not None
        await child.stdout.readline()
        children.append(child)
        return 1, time.time()

    async def both() -> Measured:
        found = await measured(work())
        await children[0].communicate(b"\n")
        return found

    children: list[asyncio.subprocess.Process] = []
    found = asyncio.run(both())
    assert found.all_cpu_s - found.cpu_s >= 0.25
