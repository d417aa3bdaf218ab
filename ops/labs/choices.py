"""What the runs say of three settings: clip_low, clip_high, and how δ's floor rises with the lag."""

from collections.abc import Iterator
from typing import Any

from ops.labs import offpolicy_plan, plans
from ops.labs.cells import Cell, Study, against
from ops.labs.claims import judge, mean_over_k, said


def choices(study: Study) -> list[str]:
    """One line for each setting and lag of which two values or more were run."""
    return [*_clips(study), *_floors(study)]


def _clips(study: Study) -> Iterator[str]:
    lags = sorted({cell.kind.lag for cell in study.cells.values()} - {0})
    for name, values in (("clip_low", (0.05, 0.1, 0.2)), ("clip_high", (0.1, 0.28, 0.5))):
        for lag in lags:
            tried: dict[Any, Cell] = {}
            for value in values:
                default = value == (0.1 if name == "clip_low" else 0.28)
                if cell := study.cell("fade_bbg", lag, correction={} if default else {name: value}):
                    tried[value] = cell
            if len(tried) > 1:
                yield f"{name} at lag {lag}, fade_bbg: {_best(tried)}"


def _floors(study: Study) -> Iterator[str]:
    for lag in sorted({cell.kind.lag for cell in study.cells.values()} - {0}):
        tried = {
            gating.get("delta_floor_per_lag", 0.175): cell
            for gating in offpolicy_plan.FLOORS
            if (cell := study.cell("fade", lag, gating=gating))
        }
        if len(tried) > 1:
            target = plans.HIGH_TARGET["target_entropy"]
            yield f"delta_floor_per_lag at lag {lag}, fade with H* {target}: {_best(tried)}"


def _best(tried: dict[Any, Cell]) -> str:
    """The value that is best on the choosing half, and on the reporting half how far it is from the others."""
    best = max(tried, key=lambda value: tried[value].mean(lambda run: run.mean_over_k("choose")))
    others = []
    for value, cell in tried.items():
        if value != best:
            differences = against(tried[best], cell, mean_over_k)
            others.append(f"{said(differences)} against {value:g} ({_clear(differences)})")
    return f"{best:g} is best on the choosing half; on the other, mean over k {', '.join(others)}"


def _clear(differences: list[float]) -> str:
    status = judge(differences)
    return "clear" if status == "holds" else "one run is no proof" if len(differences) < 2 else "within noise"
