"""The figure of an evaluation: pass@k by k, and beside another model's, problem by problem, what is newly solved."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gating import passk
from ops.atlas import FAILURE, PATH, SLOPE, SUCCESS, check_drawable
from ops.tally import Subject, compare_tallies
from store.evaluations import Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
SURE = 0.01
"""Chance below which a change of one problem is called sure."""
Evaluated = tuple[Subject, Mapping[str, Tally]]


def check_plot(out: Path) -> None:
    """Refuse, before anything is sampled, a file that cannot be drawn to."""
    check_drawable(out, SUFFIXES)


def draw(out: Path, after: Evaluated, before: Evaluated | None = None) -> None:
    """Draw the figure.

    Args:
        out: a .png or .svg file.
        before: the evaluation that `after` is compared with, of the same problems; both are complete.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    both = before is not None
    figure = Figure(figsize=(10.5 if both else 5.2, 4.4), layout="constrained")
    axes = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    if before is not None:
        _curve(axes[0], before, SLOPE, "before")
        _problems(axes[1], before, after)
    _curve(axes[0], after, PATH, "after" if both else None)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(out, dpi=110)


def _curve(axis: "Axes", evaluated: Evaluated, color: str, label: str | None) -> None:
    """pass@k with one standard error over problems on either side, for every k that all problems allow."""
    n, c = _counts(list(evaluated[1].values()))
    k = np.unique(np.geomspace(1, n.min(), 24).astype(np.int64))
    mean, error = passk.curve(n, c, k)
    axis.fill_between(k, mean - error, mean + error, color=color, alpha=0.15, lw=0)
    axis.plot(k, mean, color=color, label=label)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.set_title(f"pass@k of {len(n)} problems, ± standard error", fontsize=10, loc="left")
    if label is not None:
        axis.legend(frameon=False, loc="lower right")


def _problems(axis: "Axes", before: Evaluated, after: Evaluated) -> None:
    """Each problem by its solve rates; those that only one of the two models has solved stand out on the axes."""
    found = compare_tallies(before, after, [1])
    named = {row["id"]: name for name in ("newly_solved", "newly_lost") for row in found[name]}
    colors = {"newly_solved": SUCCESS, "newly_lost": FAILURE, None: SLOPE}
    spots = Counter((named.get(i), old.correct / old.n, after[1][i].correct / after[1][i].n)
                    for i, old in before[1].items())  # fmt: skip
    axis.plot([0, 1], [0, 1], color="#cccccc", lw=0.7, zorder=0)
    for name, color in colors.items():
        here = [(x, y, count) for (kind, x, y), count in spots.items() if kind == name]
        if here:
            x, y, count = np.array(here, dtype=np.float64).T
            axis.scatter(x, y, s=14 * count, color=color, alpha=0.7, lw=0, label=_legend(name, found), clip_on=False)
    axis.set(xlabel="solve rate before", ylabel="solve rate after", xlim=(0, 1), ylim=(0, 1))
    axis.set_title("each problem", fontsize=10, loc="left")
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def _legend(name: str | None, found: Mapping[str, Sequence[Mapping[str, float | None]]]) -> str:
    if name is None:
        return "solved by both, or by none"
    rows = found[name]
    sure = sum(row["chance"] is not None and row["chance"] < SURE for row in rows)
    return f"{name.replace('_', ' ')}: {len(rows)}, {sure} of them beyond chance (1 in 100)"


def _counts(tallies: Sequence[Tally]) -> "tuple[np.ndarray, np.ndarray]":
    pairs = np.array([(tally.n, tally.correct) for tally in tallies], dtype=np.int64)
    return pairs[:, 0], pairs[:, 1]
