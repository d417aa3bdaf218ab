"""Run by test_resume: a learner in a process of its own, killed −9 at one point after the other, then left to end.

argv: a JSON file with a list of runs: `model`, `folder`, `url`, `password`, `run`, `steps`, and `kills`, keys of KILLS.
Each learner is a fork of this process, which has imported everything and started nothing.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

import learner.checkpoint
import learner.publish
from learner.config import (
    AdmissionConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.loop import Learner, run_learner
from learner.planner import Planner
from learner.publish import Publisher
from learner.ranks import import_deepspeed
from learner.trainer import Trainer
from store.keys import Keys

B = 4
KILLS: dict[str, tuple[Any, str, int, bool]] = {
    "with its batch recorded as used": (Planner, "take", 3, False),
    "between two micro-batches": (Trainer, "_micro_step", 5, False),
    "with the weights changed": (Trainer, "_update", 3, False),
    "before a snapshot is announced": (learner.publish, "manifest_of", 3, True),
    "after a snapshot is announced": (Publisher, "_remove_old", 3, True),
    "before the step is recorded": (Learner, "_record", 3, True),
    "with half a checkpoint": (Trainer, "save", 2, False),
    "before a checkpoint is pointed to": (learner.checkpoint, "write_atomically", 2, True),
}
"""Where to kill: a function, the number of the call, and whether at its entry (else once it has returned)."""


def settings_of(given: dict[str, Any]) -> LearnerSettings:
    """Nothing depends on when or as which version a group was made, so that a broken run can be held to a whole one."""
    return LearnerSettings(
        learner=LearnerConfig(
            steps=given["steps"], groups_per_step=B, lr=1e-3, threads=1, stall_s=60, checkpoint_every=2,
            micro_batch_tokens=64,
        ),
        objective=ObjectiveConfig(),
        correction=CorrectionConfig(),
        gating=GatingConfig(gamma=1.0, delta_floor_per_lag=0.0),
        draw=DrawConfig(freshness=1.0),
        admission=AdmissionConfig(max_lag=200),
        model=Path(given["model"]),
        run_dir=Path(given["folder"]),
        store_url=given["url"],
        store_password=given["password"],
        run=given["run"],
        temperature=1.0,
        group_size=8,
    )  # fmt: skip


def kill_at(owner: Any, name: str, call: int, entry: bool) -> None:
    """Let the call-th call of owner.name be this process's last."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def fatal(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and entry:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, fatal)


def run_once(given: dict[str, Any], kill: str | None) -> int:
    """The status with which one learner ends; a signal is negative."""
    child = os.fork()
    if child == 0:
        try:
            if kill is not None:
                kill_at(*KILLS[kill])
            run_learner(settings_of(given))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    import_deepspeed()
    from transformers import LlamaForCausalLM  # noqa: F401  (so that no learner has to import it)

    for plan in json.loads(Path(sys.argv[1]).read_text()):
        for point in plan["kills"]:
            status = run_once(plan, point)
            assert status == -signal.SIGKILL, f"a learner to be killed {point} ended with status {status}"
            # A dead learner's lock lasts 30 s; nobody waits for it here.
            redis.Redis.from_url(plan["url"], password=plan["password"]).delete(Keys(plan["run"]).learner)
        assert run_once(plan, None) == 0
