"""`verge bench draw`: how long a batch takes to draw from a pool of 10³ to 10⁶ groups."""

import math
import time
from typing import Any

import numpy as np

from gating import draw
from ops.figures import at_most

POOLS = (10**3, 10**4, 10**5, 10**6)
BATCH = 64
TARGET_MS = 50.0
TARGET_EXPONENT = 1.1


def time_draws(pool: int, repeats: int, rng: np.random.Generator) -> float:
    """Median milliseconds from masses and lags to a drawn, corrected batch; 40 % of the pool has no mass."""
    mass = rng.exponential(size=pool) * (rng.random(pool) > 0.4)
    lag = rng.integers(0, 5, pool)
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        priorities = draw.weights(mass, lag, freshness=0.9, epsilon=0.05)
        _, inclusion = draw.systematic_pps(priorities, BATCH, rng)
        draw.draw_weights(inclusion, pool, BATCH)
        taken.append(time.perf_counter() - start)
    return 1e3 * float(np.median(taken))


def run() -> dict[str, Any]:
    """Time every pool size.

    Returns:
        `checks`: draw_1e6_ms, and growth_exponent, the least-squares slope of log time over log size (1 is linear);
        `draws`: milliseconds per size.
    """
    rng = np.random.default_rng(0)
    draws = [{"groups": pool, "ms": time_draws(pool, 101 if pool < 10**5 else 15, rng)} for pool in POOLS]
    sizes, times = ([math.log(row[key]) for row in draws] for key in ("groups", "ms"))
    exponent = float(np.polyfit(sizes, times, 1)[0])
    slowest = draws[-1]["ms"]
    return {
        "checks": [
            at_most("draw_1e6_ms", slowest, TARGET_MS),
            at_most("growth_exponent", exponent, TARGET_EXPONENT),
        ],
        "draws": draws,
    }
