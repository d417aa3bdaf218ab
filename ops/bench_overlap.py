"""`verge bench loop --simulated`: the loop's own cost and its overlap, with a scripted fleet and step."""

from typing import Any

from ops.figures import at_most, check
from ops.sim import simulate
from ops.sim_scene import Scene

IDLE_SHARE, OVER_BOUND = 0.02, 0.9


STEPS, STEP_S = 8, 4.0


def run(steps: int = STEPS, step_s: float = STEP_S) -> dict[str, Any]:
    """Play the same scene asynchronously, at max_lag 2, and synchronously.

    Its fleet generates a batch in a quarter of a step, so that what the learner waits for is the loop's own doing.

    Returns:
        `checks`: sim_idle_share, of the learner, asynchronous; sim_max_lag_excess, beyond max_lag, of either;
        sim_async_over_bound, the smallest time that any schedule could take over that taken. Beside them both runs as
        `ops.sim.simulate` returns them, and the speed-up, with that of the two bounds.
    """
    scene = Scene(steps=steps, step_s=step_s, max_lag=2)
    runs = {
        "asynchronous": simulate(scene),
        "synchronous": simulate(scene.model_copy(update={"max_lag": 0})),
    }
    loose, strict = runs["asynchronous"], runs["synchronous"]
    excess = max(found["lag_max"] - found["scene"]["max_lag"] for found in runs.values())
    return {
        "checks": [
            at_most("sim_idle_share", loose["idle_share"], IDLE_SHARE),
            check("sim_max_lag_excess", max(excess, 0), 0, excess <= 0),
            check("sim_async_over_bound", loose["over_bound"], OVER_BOUND, loose["over_bound"] >= OVER_BOUND),
        ],
        "speed_up": strict["seconds"] / loose["seconds"],
        "speed_up_of_bounds": strict["bound_s"] / loose["bound_s"],
        **runs,
    }
