"""The claims that the laboratory is to judge, and what the runs say of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ops.labs import plans
from ops.labs.cells import Cell, Result, Study, against
from ops.labs.measures import KS
from ops.labs.names import full_name, method_name

Status = Literal["holds", "does not hold", "seems to hold", "seems not to hold", "undecided", "not run"]
ENOUGH = 3
"""Runs from which on a mean is held against its own standard error; fewer only seem to say something."""
LEAST = 0.005
"""Difference of pass@k below which fewer runs say nothing."""
Figure = Callable[[Result], float]


@dataclass(frozen=True)
class Verdict:
    """What came out, and the figures behind it."""

    claim: str
    status: Status
    because: tuple[str, ...]


def judge(differences: Sequence[float]) -> Status:
    """Whether these differences are above 0: their mean against twice its standard error, or with few runs its sign."""
    if not differences:
        return "not run"
    mean = float(np.mean(differences))
    if len(differences) < ENOUGH:
        if abs(mean) < LEAST:
            return "undecided"
        return "seems to hold" if mean > 0 else "seems not to hold"
    noise = 2 * float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    return "holds" if mean > noise else "does not hold" if mean < -noise else "undecided"


def together(statuses: Sequence[Status]) -> Status:
    """The status of a claim of several parts: that of the weakest."""
    order: tuple[Status, ...] = (
        "does not hold", "seems not to hold", "undecided", "not run", "seems to hold", "holds",
    )  # fmt: skip
    return min(statuses, key=order.index) if statuses else "not run"


def said(differences: Sequence[float]) -> str:
    """Mean ± standard deviation and n, signed."""
    if not differences:
        return "not run"
    spread = f" ± {np.std(differences, ddof=1):.3f}" if len(differences) > 1 else ""
    return f"{np.mean(differences):+.3f}{spread} (n = {len(differences)})"


def verdicts(study: Study, longer: Study, easy: Study) -> list[Verdict]:
    """All claims. `longer`: what is judged again after more training; `easy`: long runs on easy problems, for α and δ
    to move."""
    fresh = (_narrows, _zero_only, _bbg, _fade_bbg)
    again = [verdict for judged in fresh if (verdict := judged(longer)).because]
    return [
        *(judged(study) for judged in fresh[:3]),
        _fade(easy),
        _fade_bbg(study),
        *(_stale(study, lag) for lag in (4, 16)),
        *(replace(verdict, claim=f"{verdict.claim}, after {longer.steps} steps") for verdict in again),
    ]


def _narrows(study: Study) -> Verdict:
    statuses, because = [], []
    for method in ("drgrpo", "grpo"):
        if cell := study.cell(method):
            lost = [-difference for difference in study.against_base(cell, at(256))]
            statuses.append(judge(lost))
            first = study.against_base(cell, at(1))
            because.append(f"{method}: pass@1 {said(first)}, pass@256 {said([-x for x in lost])}, against its base")
    return Verdict("(a) standard RL lowers high-k pass@k below the base", together(statuses), tuple(because))


def _zero_only(study: Study) -> Verdict:
    claim = "(b) zero-success-only raises pass@256 above the base on hard problems"
    if not (cell := study.cell("zero_only")):
        return Verdict(claim, "not run", ())
    gained = study.against_base(cell, lambda run: run.at(256, of="hard"))
    return Verdict(claim, judge(gained), (f"hard pass@256 {said(gained)}, against its base",))


def _bbg(study: Study) -> Verdict:
    claim = "(c) BBG raises average pass@k"
    if not (cell := study.cell("bbg")):
        return Verdict(claim, "not run", ())
    gained = study.against_base(cell, mean_over_k)
    each = ", ".join(f"@{k} {said(study.against_base(cell, at(k)))}" for k in KS)
    return Verdict(claim, judge(gained), (f"mean over k {said(gained)}, against its base: {each}",))


def _fade(study: Study) -> Verdict:
    claim = "(d) FADE reaches the best static baseline's peak pass@1 in fewer rollouts, with a better trade-off"
    static = [cell for method in plans.STATIC if (cell := study.cell(method))]
    fades = [cell for cell in study.cells.values() if cell.kind.method == "fade" and cell.kind.lag == 0]
    if not static or not fades:
        return Verdict(claim, "not run", ())
    best = max(static, key=lambda cell: cell.mean(lambda run: max(y for _, y in run.curve("choose", 1))))
    parts, because = [], [f"best static baseline, on the choosing half: {method_name(best.kind)}"]
    for cell in fades:
        moved = [(run.figures["alpha"], run.figures["delta"]) for run in cell.runs]
        sooner = [_sooner(run, other) for run in cell.runs for other in best.runs if run.pair == other.pair]
        better = against(cell, best, mean_over_k)
        status = together((judge(sooner), judge(better)))
        if all(alpha >= 2.999 and delta >= 0.999 for alpha, delta in moved):
            status = "undecided"  # then it was a static method itself
        parts.append(status)
        dials = ", ".join(f"α {alpha:.2f} δ {delta:.2f}" for alpha, delta in moved)
        because.append(
            f"{method_name(cell.kind)}: rollouts saved to that peak, as a share of those the baseline took,"
            f" {said(sooner)}; mean over k {said(better)}; pass@1 {said(against(cell, best, at(1)))}; pass@256"
            f" {said(against(cell, best, at(256)))}; at the end {dials}: {status}"
        )
    strongest: tuple[Status, ...] = (
        "holds", "seems to hold", "undecided", "seems not to hold", "does not hold", "not run",
    )  # fmt: skip
    return Verdict(claim, min(parts, key=strongest.index), tuple(because))


def _sooner(run: Result, baseline: Result) -> float:
    """1 − rollouts to the baseline's peak pass@1 / those of the baseline; −1 where it is never reached."""
    took, peak = max(baseline.curve("report", 1), key=lambda point: point[1])
    reached = _reached(run.curve("report", 1), peak)
    return -1.0 if reached is None else 1.0 - reached / took


def _reached(curve: Sequence[tuple[int, float]], level: float) -> float | None:
    """Rollouts at which the curve first has the level, between its points on straight lines."""
    if curve[0][1] >= level:
        return float(curve[0][0])
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 >= level:
            return x0 + (level - y0) / (y1 - y0) * (x1 - x0)
    return None


def _fade_bbg(study: Study) -> Verdict:
    claim = "(e) fade_bbg beats BBG and zero-only at every k and is best on average over k; its k is a dial"
    if not (ours := study.cell("fade_bbg")):
        return Verdict(claim, "not run", ())
    parts: list[Status] = []
    because = []
    for method in ("bbg", "zero_only"):
        if other := study.cell(method):
            each = {k: against(ours, other, at(k)) for k in KS}
            parts += [judge(differences) for differences in each.values()]
            because.append(f"against {method}: " + ", ".join(f"@{k} {said(each[k])}" for k in KS))
    others = [cell for method in plans.METHODS[1:] if (cell := study.cell(method))]
    compared = [(against(ours, cell, mean_over_k), cell) for cell in others]
    if compared := [(differences, cell) for differences, cell in compared if differences]:
        differences, rival = min(compared, key=lambda pair: np.mean(pair[0]))
        parts.append(judge(differences))
        because.append(f"mean over k against the best other method, {full_name(rival.kind)}: {said(differences)}")
    dial = dial_of(study)
    if len(dial) > 2:
        falls, rises = (_monotone([sign * cell.mean(at(k)) for _, cell in dial]) for sign, k in ((-1, 1), (1, 256)))
        turns = falls > 0.5 and rises > 0.5
        enough = min(cell.n for _, cell in dial) >= ENOUGH
        parts.append(("holds" if turns else "does not hold") if enough else _seems(turns))
        points = "; ".join(f"k = {k}: {cell.mean(at(1)):.3f}, {cell.mean(at(256)):.3f}" for k, cell in dial)
        because.append(
            f"pass@1 and pass@256 by the gate's k: {points}; rank correlation of k with −pass@1 {falls:+.2f}, with"
            f" pass@256 {rises:+.2f}"
        )
    return Verdict(claim, together(parts), tuple(because))


def dial_of(study: Study) -> list[tuple[int, Cell]]:
    """fade_bbg by its gate's k, ascending; without those that were given anything else."""
    found = [(8, cell)] if (cell := study.cell("fade_bbg")) else []
    found += [(k, cell) for k in plans.DIAL if (cell := study.cell("fade_bbg", gating={"k": k}))]
    return sorted(found, key=lambda pair: pair[0])


def _monotone(values: Sequence[float]) -> float:
    """Spearman's rank correlation of the values with their order."""
    ranks = np.argsort(np.argsort(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _stale(study: Study, lag: int) -> Verdict:
    claim = (
        f"(f) at lag {lag} failure-biased methods collapse under truncated weights alone, BBG even under PPO's clip,"
        " and fade_bbg with the trust region does not"
    )
    stale = [(method, plans.UNTRUSTED, True) for method in plans.FAILURE_BIASED]
    parts: list[Status] = []
    because = []
    for method, correction, collapses in (*stale, ("bbg", plans.PPO_CLIP, True), ("fade_bbg", {}, False)):
        if cell := study.cell(method, lag, correction=correction):
            as_claimed = all(study.collapsed(run) == collapses for run in cell.runs)
            parts.append(("holds" if as_claimed else "does not hold") if cell.n >= ENOUGH else _seems(as_claimed))
            because.append(_left(study, cell) + ("" if as_claimed else ", which is not what the claim says"))
        else:
            parts.append("not run")
    for method, correction in (
        ("fade_bbg", plans.UNTRUSTED), ("zero_only", plans.PPO_CLIP), ("bbg", {}),
        ("drgrpo", plans.UNTRUSTED), ("drgrpo", {}), ("fade", plans.UNTRUSTED), ("fade", {}),
    ):  # fmt: skip
        if cell := study.cell(method, lag, correction=correction):
            because.append(f"beside it, {_left(study, cell)}")
    return Verdict(claim, together(parts), tuple(because))


def _left(study: Study, cell: Cell) -> str:
    fell = sum(study.collapsed(run) for run in cell.runs)
    left = cell.mean(lambda run: run.at(16) / study.base_of(run).at(16))
    return f"{full_name(cell.kind)}: {fell} of {cell.n} collapsed, pass@16 is {left:.2f} of the base's"


def _seems(so: bool) -> Status:
    return "seems to hold" if so else "seems not to hold"


def at(k: int) -> Figure:
    """Pass@k on the reporting half."""
    return lambda run: run.at(k)


def mean_over_k(run: Result) -> float:
    """Mean of pass@k over k of KS, on the reporting half."""
    return run.mean_over_k()
