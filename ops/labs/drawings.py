"""The laboratory's figures, each from cells alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ops.labs.cells import Cell, Study
from ops.labs.claims import at, dial_of
from ops.labs.measures import KS
from ops.labs.names import full_name, method_name
from ops.labs.plans import ABLATIONS
from ops.labs.settings import RunSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, OTHER, BASE_COLOUR = "#c8641e", "#2f6fb3", "#333333"
_ABLATED = [RunSettings(**ablation).model_dump(include={"method", "params"}) for ablation in ABLATIONS]
LAGS = ("fresh", "lag 4", "lag 16")


def draw(study: Study, long: Study, folder: Path) -> list[tuple[str, str]]:
    """Draw into `folder` what there are cells for; returns (file name, caption) of each."""
    made: list[tuple[Any, tuple[Any, ...], str, str]] = []
    if fresh := [cell for cell in study.cells.values() if cell.kind.lag == 0]:
        whole = [cell for cell in fresh if cell.kind.model_dump(include={"method", "params"}) not in _ABLATED]
        made.append((_frontier, (study, whole), "frontier", "pass@1 against pass@256 for every method and every k"))
        made.append((_gains, (study, fresh), "gains", "pass@k less the base's, by k"))
    if any(cell.kind.lag for cell in study.cells.values()):
        made.append((_stale, (study,), "staleness", "what is left of the base's pass@16, by the age of the rollouts"))
    if long.cells:
        made.append((_curves, (long,), "curves", "pass@1 and pass@256 over rollouts, long runs"))
    return [_save(draw_on, arguments, folder / f"{name}.svg", caption) for draw_on, arguments, name, caption in made]


def _save(draw_on: Any, arguments: tuple[Any, ...], path: Path, caption: str) -> tuple[str, str]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "verge"  # the same cells give the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.6), layout="constrained")
    draw_on(figure, *arguments)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    return path.name, caption


def _colour(cell: Cell) -> str:
    return OURS if method_name(cell.kind).startswith("fade_bbg") else OTHER


def _frontier(figure: Any, study: Study, cells: list[Cell]) -> None:
    axis = figure.subplots()
    for base in study.bases.values():
        axis.plot(base.at(1), base.at(256), "*", color=BASE_COLOUR, ms=12)
        axis.annotate(f"base {base.settings.base}", (base.at(1), base.at(256)), (6, 4), textcoords="offset points")
    dial = [cell for _, cell in dial_of(study)]
    axis.plot([cell.mean(at(1)) for cell in dial], [cell.mean(at(256)) for cell in dial], "-", color=OURS, lw=1)
    named = []
    for cell in cells:
        x, y = cell.mean(at(1)), cell.mean(at(256))
        axis.errorbar(x, y, cell.spread(at(256)), cell.spread(at(1)), "o", color=_colour(cell), ms=5, lw=0.8)
        named.append((x, y, f"{method_name(cell.kind)} ({cell.n})"))
    _label_points(axis, named)
    axis.set(xlabel="pass@1, held-out", ylabel="pass@256, held-out", title="The frontier (number of runs in brackets)")


def _gains(figure: Any, study: Study, cells: list[Cell]) -> None:
    ours = [cell for cell in cells if _colour(cell) == OURS]
    others = [cell for cell in cells if _colour(cell) != OURS]
    axes = figure.subplots(1, 2, sharey=True)
    for axis, shown, title in zip(axes, (others, ours), ("other methods", "fade_bbg"), strict=True):
        ends = []
        for number, cell in enumerate(shown):
            gains = [float(np.mean(study.against_base(cell, at(k)))) for k in KS]
            axis.plot(KS, gains, "-" if number % 2 else "--", marker="o", ms=3, color=f"C{number}")
            ends.append((gains[-1], method_name(cell.kind), f"C{number}"))
        _label_ends(axis, KS[-1], ends)
        axis.axhline(0, color="#bbbbbb", lw=0.8)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="k", xlim=(0.9, 3000), title=title)
        axis.set_xticks(KS, [str(k) for k in KS])
    axes[0].set_ylabel("pass@k − the base's")


def _label_points(axis: "Axes", points: list[tuple[float, float, str]]) -> None:
    """Names beside points (x, y, name): above, below, or further away where one would lie on another."""
    taken: list[tuple[float, float, float]] = []  # left, right and height of what is written, in points
    for x, y, text in points:
        left, height = axis.transData.transform((x, y)) * 72 / axis.figure.dpi
        right = left + 4.6 * len(text)

        def free(offset: float, left: float = left, right: float = right, height: float = height) -> bool:
            return all(right < begin or left > end or abs(height + offset - at) > 9 for begin, end, at in taken)

        away = next(filter(free, (4, -11, 14, -21, 24, -31)), 34)
        taken.append((left, right, height + away))
        axis.annotate(text, (x, y), (5, away), textcoords="offset points", fontsize=8)


def _label_ends(axis: "Axes", x: float, ends: list[tuple[float, str, str]]) -> None:
    """Names at the right end of lines (y, name, colour), moved apart where they would lie on one another."""
    low, high = axis.get_ylim()
    room, above = (high - low) / 26, -np.inf
    for y, text, colour in sorted(ends):
        above = max(y, above + room)
        axis.annotate(text, (x, y), (x * 1.15, above), fontsize=8, va="center", color=colour)


def _stale(figure: Any, study: Study) -> None:
    axis = figure.subplots()
    stale = [cell for cell in study.cells.values() if cell.kind.lag and not cell.kind.objective]
    names = sorted({full_name(cell.kind) for cell in stale})
    for row, name in enumerate(names):
        for cell in stale:
            if full_name(cell.kind) == name:
                left = [run.at(16) / study.base_of(run).at(16) for run in cell.runs]
                marker = "o" if cell.kind.lag <= 4 else "s"
                axis.plot(
                    left, [row] * len(left), marker, color=_colour(cell), ms=6, mfc="none" if marker == "s" else None
                )
    axis.axvline(1.0, color="#bbbbbb", lw=0.8)
    axis.axvline(0.5, color="#bbbbbb", lw=0.8, ls=":")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="pass@16 / the base's (left of the dots: collapsed). ● lag 4, □ lag 16", xlim=(-0.03, None))


def _curves(figure: Any, study: Study) -> None:
    for axis, k in zip(figure.subplots(1, 2), (1, 256), strict=True):
        ends = []
        for cell in study.cells.values():
            curves = np.array([run.curve("report", k) for run in cell.runs])
            start = float(np.mean([study.base_of(run).at(k) for run in cell.runs]))
            colour = OURS if "fade" in cell.kind.method else OTHER
            x, y = [0.0, *curves[0, :, 0]], [start, *curves[:, :, 1].mean(axis=0)]
            axis.plot(x, y, "-", color=colour, alpha=0.8)
            ends.append((y[-1], method_name(cell.kind), colour))
        right = axis.get_xlim()[1]
        axis.set_xlim(0, right * 1.45)
        _label_ends(axis, right * 0.88, ends)
        axis.set(xlabel="rollouts", title=f"pass@{k}, held-out")
