"""Lines → cells: runs that differ only in seed and base are one cell, at the learning rate that is best elsewhere.

The rate is chosen on one half of the held-out problems and everything is reported on the other.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ops.labs.bases import Task
from ops.labs.measures import KS
from ops.labs.settings import BASE, RunSettings

COLLAPSED = 0.5
"""A run has collapsed when it ends below this share of its base's pass@16."""
Pair = tuple[int, int]
"""Base and seed: what two runs share that are compared with each other."""


@dataclass(frozen=True)
class Result:
    """A finished run: its line."""

    settings: RunSettings
    figures: Mapping[str, Any]

    @property
    def pair(self) -> Pair:
        return self.settings.base, self.settings.seed

    def part(self, name: str) -> Mapping[str, Any]:
        """Final figures of `train`, `choose` or `report`."""
        found: Mapping[str, Any] = self.figures["final"][name]
        return found

    def at(self, k: int, part: str = "report", of: str = "pass") -> float:
        """Pass@k at the end, over all problems (`pass`) or over the hard ones (`hard`)."""
        return float(self.part(part)[of][KS.index(k)])

    def mean_over_k(self, part: str = "report") -> float:
        return float(np.mean(self.part(part)["pass"]))

    @property
    def entropy(self) -> float:
        return float(self.figures["final"]["entropy"])

    def steps(self, name: str) -> float:
        """Mean over the steps of a metric of training."""
        return float(self.figures["steps"][name][0])

    def curve(self, part: str, k: int) -> list[tuple[int, float]]:
        """(rollouts, pass@k) on the way and at the end."""
        place = KS.index(k)
        on_the_way = [(int(point["rollouts"]), float(point[part][place])) for point in self.figures["curve"]]
        return [*on_the_way, (self.settings.rollouts, self.at(k, part))]


@dataclass(frozen=True)
class Cell:
    """Runs of one kind. `rate` is the chosen one; `runs` are those at that rate; `rates` are all that were tried."""

    kind: RunSettings
    rate: float
    runs: tuple[Result, ...]
    rates: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.runs)

    def mean(self, figure: Any) -> float:
        """Mean of `figure(run)` over the runs."""
        return float(np.mean([figure(run) for run in self.runs]))

    def spread(self, figure: Any) -> float | None:
        """Sample standard deviation, None of a single run."""
        return float(np.std([figure(run) for run in self.runs], ddof=1)) if self.n > 1 else None


class Study:
    """The runs of one task and one length: those that can be compared."""

    def __init__(self, results: Iterable[Result], task: Task = "all", steps: int | None = None) -> None:
        """`steps`: their length, by default that of most runs."""
        of_task = [result for result in results if result.settings.task == task]
        self.bases = {run.settings.base: run for run in of_task if run.settings.method == BASE}
        trained = [run for run in of_task if run.settings.method != BASE]
        lengths = Counter(run.settings.steps for run in trained)
        self.steps = steps or (lengths.most_common(1)[0][0] if lengths else 0)
        self._runs = [run for run in trained if run.settings.steps == self.steps and run.settings.base in self.bases]

    def __len__(self) -> int:
        return len(self._runs)

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Every cell by what tells its kind, in the order in which the kinds were first run."""
        kinds: dict[str, list[Result]] = {}
        for run in self._runs:
            kinds.setdefault(_kind(run.settings), []).append(run)
        return {name: _cell(runs) for name, runs in kinds.items()}

    def cell(self, method: str, lag: int = 0, **others: Any) -> Cell | None:
        """The runs of a method with these settings; None where there is none."""
        task = next(iter(self.cells.values())).kind.task if self.cells else "all"
        return self.cells.get(_kind(RunSettings(method=method, lag=lag, steps=self.steps, task=task, **others)))

    def base_of(self, run: Result) -> Result:
        return self.bases[run.settings.base]

    def collapsed(self, run: Result) -> bool:
        """Whether the model was destroyed."""
        return run.at(16) < COLLAPSED * self.base_of(run).at(16)

    def against_base(self, cell: Cell, figure: Any) -> list[float]:
        """figure(run) − figure(its base), for each run."""
        return [figure(run) - figure(self.base_of(run)) for run in cell.runs]


def against(one: Cell, other: Cell, figure: Any) -> list[float]:
    """figure(one's run) − figure(other's run), for each base and seed that both have."""
    others = {run.pair: run for run in other.runs}
    return [figure(run) - figure(others[run.pair]) for run in one.runs if run.pair in others]


def _kind(settings: RunSettings) -> str:
    fields = settings.model_dump(exclude={"lr", "seed", "base"}, exclude_defaults=True)
    return json.dumps(fields, sort_keys=True)


def _cell(runs: Sequence[Result]) -> Cell:
    """Rates are compared on the bases and seeds that all have; without such, the one with most runs is taken."""
    by_rate: dict[float, dict[Pair, Result]] = {}
    for run in runs:
        by_rate.setdefault(run.settings.lr, {})[run.pair] = run
    shared = set.intersection(*(set(found) for found in by_rate.values()))

    def worth(rate: float) -> tuple[float, int]:
        found = by_rate[rate]
        return float(np.mean([found[pair].mean_over_k("choose") for pair in shared])) if shared else 0.0, len(found)

    best = max(sorted(by_rate), key=worth)
    chosen = by_rate[best]
    return Cell(runs[0].settings, best, tuple(chosen[pair] for pair in sorted(chosen)), tuple(sorted(by_rate)))
