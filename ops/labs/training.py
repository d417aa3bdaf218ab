"""One run of the laboratory: the store, the draw, the weighing and the step are the product's own.

issue ─▶ roll out (in this process, by weights of a fixed age) ─▶ commit ─▶ draw ─▶ fetch, weigh, step ─▶ issue …
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from learner.planner import Batch, NothingLeft, Planner, plan_of
from learner.ranks import Ranks, import_deepspeed
from learner.store_thread import StoreThread
from learner.trainer import Trainer
from learner.weighing import Weigher
from ops.labs.bases import LONGEST, Splits, Task, base_folder, splits
from ops.labs.measures import Measures
from ops.labs.sampler import Sampler
from ops.labs.settings import BASE, RunSettings
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import RolloutGroup

CURVE_POINTS = 4
"""How often a run is measured, its end included."""
WORST_OF = ("ess", "entropy")
"""Metrics of steps of which the smallest is kept; of the others the largest."""
KEPT = ("ess", "entropy", "kl", "ratio_max", "grad_norm", "clip_share_positive", "clip_share_negative")
_CONSUMER = "sampler"


def run(settings: RunSettings) -> dict[str, Any]:
    """Carry a run out.

    Returns:
        `final`: `Measures.final` at the end; `curve`: rollouts and `Measures.now` of points on the way; `rewards`: mean
        solve rate of the rollouts, by tenths of the run; `steps`: of `KEPT`, mean over the steps and the worst of them;
        `alpha`, `delta`: at the end; `ended`: why it ended early, if it did; `counts`: what the store counted;
        `seconds`: of the parts. Of the method `base` only the first.
    """
    problems, (base, measures) = splits(settings.task), measures_of(settings.base, settings.task)
    if settings.method == BASE:
        return {"final": measures.final(base)}
    with (
        tempfile.TemporaryDirectory(prefix="verge-lab-") as scratch,
        EmbeddedServer(Path(scratch)) as server,
        StoreThread(server.url, "lab", server.password) as line,
        Run(settings, problems, measures, Path(scratch), server, line) as taken,
    ):
        return taken.whole()


@cache
def measures_of(base: int, task: Task) -> tuple[Any, Measures]:
    """The base model, and what measures the runs from it: the same for all runs of a process."""
    import_deepspeed()  # before transformers, which would import it with all that it has to say
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = base_folder(base)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return model, Measures(AutoTokenizer.from_pretrained(folder), splits(task), model)


class Run:
    """A run in progress."""

    def __init__(
        self,
        settings: RunSettings,
        problems: Splits,
        measures: Measures,
        scratch: Path,
        server: EmbeddedServer,
        line: StoreThread,
    ) -> None:
        from transformers import AutoTokenizer

        self._settings, self._measures, self._line = settings, measures, line
        self._problems = {problem.id: problem for problem in problems.train}
        learner = settings.learner_settings(base_folder(settings.base), scratch, server.url, server.password)
        line.call(_open(line.store, learner.gating.gamma, settings.size, problems))
        self._trainer = Trainer(
            learner.model, learner.learner, learner.objective, learner.correction, learner.temperature, Ranks()
        )
        self._model: Any = self._trainer.engine.module.model
        tokenizer = AutoTokenizer.from_pretrained(learner.model)
        self._sampler = Sampler(self._model, tokenizer, settings.lag, settings.size, LONGEST, settings.seed)
        self._planner = Planner(learner, line, 1, time.monotonic)
        self._weigher = Weigher(learner, self._trainer, line)
        self._worst: dict[str, float] = {}
        self._sums: dict[str, float] = dict.fromkeys(KEPT, 0.0)
        self._rewards: list[float] = []
        self.seconds = dict.fromkeys(("sample", "store", "train", "measure"), 0.0)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self._trainer.engine.destroy()

    def whole(self) -> dict[str, Any]:
        """All steps, measured after and between."""
        settings, curve, ended = self._settings, [], ""
        points = {round(settings.steps * point / CURVE_POINTS) for point in range(1, CURVE_POINTS)}
        for step in range(settings.steps):
            if ended := self.step():
                break
            if step + 1 in points:
                now = self._timed("measure", self._measures.now, self._model)
                curve.append({"rollouts": (step + 1) * settings.groups * settings.size, **now})
        final = self._timed("measure", self._measures.final, self._model)
        fade = self._planner.opinions.fade
        tenth = max(1, settings.steps // 10)
        parts = [self._rewards[at : at + tenth] for at in range(0, len(self._rewards), tenth)]
        return {
            "final": final,
            "curve": curve,
            "rewards": [sum(part) / len(part) for part in parts],
            "steps": {name: [self._sums[name] / max(self._planner.step, 1), self._worst.get(name)] for name in KEPT},
            "alpha": fade.alpha,
            "delta": fade.delta_at(settings.lag),
            "ended": ended,
            "counts": {
                name: count
                for name, count in self._line.call(self._line.store.counters()).items()
                if name in ("committed", "drawn", "zero_mass", "refunded")
            },
            "seconds": self.seconds,
        }

    def step(self) -> str:
        """Roll out, commit, draw, train; "" or why the run is over."""
        try:
            batch = self._timed("store", self._next_batch)
        except (VergeError, NothingLeft) as error:
            return f"step {self._planner.step + 1}: {error}"
        self._timed("train", self._train, batch)
        self._sampler.offer(self._planner.version, self._model)
        return ""

    def _next_batch(self) -> Batch:
        """A step's rollouts of the newest tickets, and the batch that is drawn of them."""
        self._look()  # lets the tickets of this step out
        groups = self._groups()
        self._line.call(_commit(self._line.store, groups))
        self._rewards.append(sum(group.correct for group in groups) / sum(group.size for group in groups))
        batch = self._look()
        assert batch is not None, "a step's rollouts are there, yet there is no batch"
        return batch

    def _look(self) -> Batch | None:
        return self._planner.wait_for_batch(lambda: self._planner.step, until=0.0)

    def _groups(self) -> list[RolloutGroup]:
        tickets = self._line.call(self._line.store.take(_CONSUMER, self._settings.groups))
        began = time.perf_counter()
        groups = self._sampler.roll_out([(ticket, self._problems[ticket.problem_id]) for ticket in tickets])
        took = time.perf_counter() - began
        self.seconds["sample"] += took
        self.seconds["store"] -= took
        return groups

    def _train(self, batch: Batch) -> None:
        """What `learner.loop` does with a batch, but for publishing."""
        planner = self._planner
        plan = plan_of(batch, planner.take(batch))
        fetched = self._line.call(self._line.store.fetch(plan["ids"]))
        groups = {place: group for place, name in enumerate(plan["ids"]) if (group := fetched[name]) is not None}
        result = self._trainer.step(self._weigher.weigh(groups, plan), planner.step)
        planner.step += 1
        planner.version += result.applied
        planner.covered()
        if not result.reason:
            planner.opinions.learn(batch.reward, result.metrics["entropy"])
        for name in KEPT:
            value = result.metrics.get(name, 0.0)
            self._sums[name] += value
            pick = min if name in WORST_OF else max
            self._worst[name] = pick(self._worst.get(name, value), value)

    def _timed(self, part: str, do: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return do(*arguments)
        finally:
            self.seconds[part] += time.perf_counter() - began


async def _open(store: Store, gamma: float, size: int, problems: Splits) -> None:
    await store.open_run({"fingerprint": "lab", "gamma": repr(gamma), "group_size": str(size)})
    await store.add_problems(problems.train)


async def _commit(store: Store, groups: Sequence[RolloutGroup]) -> None:
    await asyncio.gather(*(store.commit(_CONSUMER, group) for group in groups))
