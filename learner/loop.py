"""The learner's loop: one process per rank, rank 0 deciding, all training."""

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from learner.alarms import AlarmLog, alarms_of
from learner.checkpoint import Checkpoints
from learner.config import LearnerSettings
from learner.geometry import HeadWatch
from learner.groups import why_unfit
from learner.launch import check_world
from learner.loading import DTYPES
from learner.opinions import LAG_GROUPS
from learner.planner import Batch, NothingLeft, Planner, plan_of, say
from learner.publish import Publisher
from learner.ranks import Ranks
from learner.steps import TakesSteps
from learner.store_thread import LockLost, StoreThread, stop_on_sigterm
from learner.trainer import StepResult, Trainer
from learner.weighing import Weigher
from store.errors import VergeError
from store.snapshots import WEIGHTS_FILE
from store.wire import RolloutGroup

Plan = dict[str, Any]
Observe = Callable[[Mapping[str, float]], None]
"""Told of every step: on rank 0 what the store records of it, elsewhere its number."""
_ANSWER_WITHIN_S = 0.5
"""Rank 0 sends the others a word at least this often, so that none waits in a collective for ever."""
_MOST_SKIPPED = 3


def run_learner(
    settings: LearnerSettings,
    ranks: Ranks | None = None,
    trainer: TakesSteps | None = None,
    observe: Observe = lambda _: None,
) -> None:
    """Train until `learner.steps`, or until SIGTERM, which checkpoints and returns. One call per process and rank.

    `settings.resume` says at which checkpoint the run continues. The run must exist in the store, with its problems.

    Args:
        ranks, trainer: those of DeepSpeed, unless a simulation brings its own.

    Raises:
        VergeError: what a person must change, on the rank that met it; the other ranks raise Stopped.
    """
    where = (settings.store_url, settings.run, settings.store_password, settings.patience_s)
    with StoreThread(*where) as line, stop_on_sigterm(line) as asked_to_stop:
        ranks = ranks or Ranks()
        check_world(settings.learner.groups_per_step, ranks.world)
        if ranks.first:
            _check_run(settings, line)
            line.hold(f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}")
        Learner(settings, ranks, line, trainer or _deepspeed(settings, ranks), asked_to_stop.is_set, observe).run()


def _deepspeed(settings: LearnerSettings, ranks: Ranks) -> Trainer:
    objective, correction = settings.objective, settings.correction
    return Trainer(settings.model, settings.learner, objective, correction, settings.temperature, ranks)


class Stopped(VergeError):
    """Rank 0 has failed; its own message says why."""


class Learner:
    """One rank of the loop.

        restore ─▶ plan ─┬─ "wait" ──────────────────────────────────────────────▶ plan
                         ├─ "step": fetch, train, publish, record ───────────────▶ plan
                         ├─ "checkpoint" ────────────────────────────────────────▶ plan
                         └─ "stop": last weights announced, checkpoint, phase ──▶ ended

    Rank 0 plans and all ranks carry out the same plan, so their collectives always match.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        ranks: Ranks,
        line: StoreThread,
        trainer: TakesSteps,
        stopping: Callable[[], bool],
        observe: Observe = lambda _: None,
    ) -> None:
        self._observe = observe
        self._settings, self._ranks, self._line, self._stopping = settings, ranks, line, stopping
        self._trainer = trainer
        learner = settings.learner
        self._weigher = Weigher(settings, self._trainer, line)
        if ranks.first and settings.correction.kind == "decoupled" and learner.mini_batches == 1:
            say("correction.kind = decoupled with learner.mini_batches = 1 is tis without a trust region")
        self._checkpoints = Checkpoints(settings.run_dir / "checkpoints", learner.keep_checkpoints, ranks)
        self._planner = Planner(settings, line, ranks.world, time.monotonic)
        dtype = DTYPES[learner.publish_dtype or learner.dtype]
        self._publisher = Publisher(
            line,
            settings.run_dir / "weights",
            settings.model,
            learner.keep_snapshots,
            dtype,
            learner.full_snapshot_every if learner.snapshot_format == "delta" else 1,
        )
        self._head: HeadWatch | None = None
        self._alarms = AlarmLog()
        self._batch: Batch | None = None
        self._skipped = 0
        self._began: float | None = None
        self._waited_s = self._wait_s = 0.0

    def run(self) -> None:
        try:
            self._remember_base()
            self._restore()
            while (plan := self._ranks.broadcast(self._plan() if self._ranks.first else None))["do"] != "stop":
                match plan["do"]:
                    case "step":
                        self._step(plan)
                    case "checkpoint":
                        self._checkpoint()
                    case "fail":
                        raise Stopped("rank 0 has stopped the run")
            self._end(plan)
        except VergeError as error:
            if self._ranks.first and not isinstance(error, LockLost):
                self._line.call(self._line.store.set_phase("failed", str(error)))
            raise
        finally:
            self._publisher.close()
            if self._head is not None:
                self._head.close()

    def _plan(self) -> Plan:
        try:
            return self._decide()
        except BaseException:
            self._ranks.broadcast({"do": "fail"})
            raise

    def _decide(self) -> Plan:
        planner, publisher, learner = self._planner, self._publisher, self._settings.learner
        publisher.poll()
        if self._stopping():
            return {"do": "stop", "phase": "", "reason": "asked to stop"}
        if planner.step >= learner.steps:
            return {"do": "stop", "phase": "done", "reason": f"all {learner.steps} steps are taken"}
        if planner.step - planner.covered_step >= learner.checkpoint_every:
            return {"do": "checkpoint"}
        started = time.monotonic()
        try:
            self._batch = planner.wait_for_batch(lambda: publisher.announced_step, started + _ANSWER_WITHIN_S)
        except NothingLeft as end:
            return {"do": "stop", "phase": "done", "reason": str(end)}
        self._wait_s += time.monotonic() - started
        if self._batch is None:
            return {"do": "wait"}
        return {"do": "step"} | plan_of(self._batch, planner.take(self._batch))

    def _step(self, plan: Plan) -> None:
        started = time.monotonic()
        if self._began is None:  # the wait for the first batch is the actors' start-up
            self._began, self._wait_s = started, 0.0
        fetched, lost = self._fetch(plan)
        if self._ranks.first:
            self._planner.lost(lost)
        if len(lost) == len(plan["ids"]):
            return
        planner = self._planner
        groups = self._weigher.weigh(fetched, plan)
        tended = planner.tended(lambda: self._publisher.announced_step) if self._ranks.first else nullcontext()
        with tended:
            result = self._trainer.step(groups, planner.step)
        if self._ranks.reduce([float(planner.failure is not None)], "max")[0]:
            raise planner.failure or Stopped("rank 0 has stopped the run")
        planner.step += 1
        if result.applied:
            planner.version += 1
            self._publish(planner.version)
        else:
            self._publisher.unchanged(planner.step)
        if self._ranks.first:
            self._record(result, sum(len(g.completions) for g in groups), time.monotonic() - started)
        else:
            self._observe({"step": planner.step})
        if result.reason:
            self._skip(result, plan)
        else:
            self._skipped = 0

    def _fetch(self, plan: Plan) -> tuple[dict[int, RolloutGroup], list[str]]:
        """This rank's groups by their place in the plan, and the ids (of all ranks) whose payload is gone or unfit."""
        mine = plan["shares"][self._ranks.rank]
        payloads = self._line.call(self._line.store.fetch([plan["ids"][i] for i in mine]))
        config = self._trainer.config
        gone = [0.0] * len(plan["ids"])
        groups = {}
        for i in mine:
            payload = payloads[plan["ids"][i]]
            unfit = why_unfit(payload, config.vocab_size, config.max_position_embeddings) if payload else ""
            if unfit:
                say(f"group {plan['ids'][i]} cannot be trained on: {unfit}")
            if payload is None or unfit:
                gone[i] = 1.0
                continue
            groups[i] = payload
        lost = [plan["ids"][i] for i, flag in enumerate(self._ranks.reduce(gone, "max")) if flag]
        return groups, lost

    def _publish(self, version: int) -> None:
        """Collective: under ZeRO 3 every rank takes part in gathering."""
        if self._head is not None:
            step = self._planner.step
            self._publisher.begin(version, step, self._head.watch(self._trainer.weights(), step))
        else:
            for _ in self._trainer.weights():
                pass

    def _remember_base(self) -> None:
        """The head that later ones are compared with. Collective, before a checkpoint is loaded."""
        if self._ranks.first:
            every = self._settings.learner.geometry_every
            self._head = HeadWatch(self._trainer.head, self._trainer.weights(), every)
        else:
            for _ in self._trainer.weights():
                pass

    def _record(self, result: StepResult, completions: int, step_s: float) -> None:
        batch, planner = self._batch, self._planner
        assert batch is not None
        assert self._began is not None
        fade, metrics = planner.opinions.fade, result.metrics
        if not result.reason:
            planner.opinions.learn(batch.reward, metrics["entropy"])
        self._waited_s += self._wait_s
        trained = metrics if metrics.get("trained_tokens", 1) else {"ess": 1.0, "entropy": math.inf, "kl": 0.0}
        alarms = alarms_of(trained, batch.active_problems, batch.why_inactive, self._settings.alarms)
        for line in self._alarms.lines(alarms, planner.step):
            say(line)
        figures = {
            **{k: v for k, v in metrics.items() if k != "entropy"},
            **result.seconds,
            "step": planner.step,
            "version": planner.version,
            "reward": batch.reward,
            "solve_rate": fade.solve_rate,
            "entropy": fade.entropy if fade.entropy is not None else float("nan"),
            "target_entropy": fade.target_entropy if fade.target_entropy is not None else float("nan"),
            "alpha": batch.drawn.alpha,
            "delta": batch.drawn.delta,
            "active_problems": batch.active_problems,
            "lag_mean": float(batch.drawn.lag.mean()),
            "lag_max": int(batch.drawn.lag.max()),
            **{f"{LAG_GROUPS}{lag}": int(n) for lag, n in enumerate(np.bincount(batch.drawn.lag)) if n},
            "groups": len(batch.drawn.entries),
            "completions": completions,
            "tokens": sum(entry.tokens for entry in batch.drawn.entries),
            "idle_share": self._waited_s / (time.monotonic() - self._began),
            "step_s": step_s,
            "wait_s": self._wait_s,
            "publish_blocked_s": self._publisher.blocked_s,
            **{f"alarm_{name}": float(bool(text)) for name, text in alarms.items()},
            **self._head_metrics(),
            "snapshot_size_ratio": self._publisher.size_ratio,
        }
        self._line.call(self._line.store.record_dynamics(figures))
        self._observe(figures)
        self._wait_s = 0.0

    def _head_metrics(self) -> dict[str, float]:
        """The newest measurement of the head, once there is one."""
        assert self._head is not None
        self._head.poll()
        if (newest := self._head.newest) is None:
            return {}
        return {"head_step": newest.step, "head_change": newest.norm, "head_top_share": newest.top_share}

    def _skip(self, result: StepResult, plan: Plan) -> None:
        """A step that was not whole: leave its batch for inspection; too many in a row end the run."""
        self._skipped += 1
        reason, how = result.reason, "cut short" if result.applied else "skipped"
        step, folder = self._planner.step, self._settings.run_dir / "skipped"
        if self._ranks.first:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"step-{step:07d}.json").write_text(json.dumps({"reason": reason, **plan}, indent=1))
            say(f"step {step} was {how}, because {reason}; its batch is in {folder}")
        if self._skipped == _MOST_SKIPPED:
            raise VergeError(
                f"{_MOST_SKIPPED} steps in a row, up to {step}, were skipped or cut short, the last because {reason};"
                f" the weights are the last that were finite; lower learner.lr, and look at the batches in {folder}"
            )

    def _checkpoint(self) -> None:
        self._checkpoints.save(self._planner.step, self._trainer, self._planner.state_dict())
        self._planner.covered()

    def _restore(self) -> None:
        """Continue at a checkpoint; announce weights before any ticket is issued."""
        planner, publisher = self._planner, self._publisher
        state = self._checkpoints.load(self._trainer, self._settings.resume)
        if state is not None:
            planner.load_state_dict(state)
            self._checkpoints.save(planner.step, self._trainer, state)  # one from elsewhere becomes this run's
        newest = self._line.call(self._line.store.manifest())
        version = self._ranks.broadcast(-1 if newest is None else newest.version) + 1
        single = (self._settings.model / WEIGHTS_FILE).is_file()
        if state is None and version == 1:
            version = 0  # only the base model is announced, and it is what we train
        elif version == 0 and single:
            if self._ranks.first:
                publisher.announce_base()
        else:
            planner.version = version
            self._publish(version)
            publisher.finish()
        planner.version = version
        if self._ranks.first:
            store = self._line.store
            returned = self._line.call(store.rollback(planner.step))
            self._line.call(store.set_phase("running"))
            if state is not None or version:
                say(f"continues after step {planner.step} as version {version}; {returned} groups return to the pool")

    def _end(self, plan: Plan) -> None:
        """In this order: the last weights are announced, the checkpoint is complete, the weights are whole, the run is
        over. Whoever asked us to stop may not wait for long, and only the checkpoint cannot be made up for."""
        self._publisher.finish()
        self._checkpoint()
        self._publisher.complete()
        if self._ranks.first:
            planner = self._planner
            say(f"ends after step {planner.step}, version {planner.version}: {plan['reason']}")
            if plan["phase"]:
                self._line.call(self._line.store.set_phase(plan["phase"], plan["reason"]))


def _check_run(settings: LearnerSettings, line: StoreThread) -> None:
    meta = line.call(line.store.meta())
    if not meta:
        raise VergeError(f"run {settings.run!r} does not exist in the store; `verge up` opens it")
    for name, ours in (("gamma", settings.gating.gamma), ("group_size", settings.group_size)):
        if float(meta[name]) != ours:
            raise VergeError(f"run {settings.run!r} was opened with {name} = {meta[name]}, the config has {ours}")
