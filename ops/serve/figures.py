"""The figures of the page: the map of all problems, pass@k, one problem's posterior, and the strip charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from gating import posterior
from gating.passk import mean_and_error
from ops.serve.svg import Floats, band, element, joined, lines, number, path, percent, plot, x_ticks, y_ticks
from store.evaluations import Round
from store.queries import Gate
from store.scores import scores

COLUMNS, ROWS = 32, 14
"""Cells of the map, at most: it stays as small with 10⁵ problems as with 100."""
_LEAST_ROWS = 6
"""Rows that there is room for even before attempts differ so much."""
POINTS = 160
"""Points of a strip chart, at most."""
_LABEL = 0.09
"""Least distance of two labels at the ends of lines, as a share of the plot's height."""
K = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])


@dataclass(frozen=True, slots=True)
class Cell:
    """Problems that are close in posterior mean and attempts."""

    column: int
    row: int
    count: int
    gate: float
    """Mean gate of its problems."""
    where: str
    """The filter that lists them."""
    only: str | None
    """The problem's id where it is the only one."""


@dataclass(frozen=True, slots=True)
class Map:
    """All problems in cells; row r has attempts in [edges[r], edges[r + 1])."""

    edges: NDArray[np.int64]
    cells: tuple[Cell, ...]


def bin_problems(columns: Mapping[str, NDArray[Any]]) -> Map:
    """Every problem in one cell: posterior mean in equal steps, attempts in rows that are never empty."""
    mean, attempts, gate = columns["posterior_mean"], columns["attempts"], columns["gate"]
    edges = _attempt_edges(attempts)
    column = np.minimum((mean * COLUMNS).astype(np.int64), COLUMNS - 1)
    row = np.searchsorted(edges, attempts, side="right") - 1
    place = row * COLUMNS + column
    places, first, inverse, counts = np.unique(place, return_index=True, return_inverse=True, return_counts=True)
    gates = np.bincount(inverse, gate) / counts
    cells = []
    for at, one, count, value in zip(places.tolist(), first.tolist(), counts.tolist(), gates.tolist(), strict=True):
        r, c = divmod(at, COLUMNS)
        cells.append(Cell(c, r, count, value, _filter(c, r, edges), str(columns["id"][one]) if count == 1 else None))
    return Map(edges, tuple(cells))


def _attempt_edges(attempts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lower ends of the rows, and one more than the most: 0 alone, then about logarithmic, at values that occur."""
    found = np.unique(attempts) if len(attempts) else np.zeros(1, np.int64)
    none, some = found[found == 0], found[found > 0]
    if len(some) > ROWS:
        wanted = np.geomspace(some[0], some[-1], ROWS)
        some = np.unique(some[np.minimum(np.searchsorted(some, wanted), len(some) - 1)])
    return np.concatenate([none, some, found[-1:] + 1]).astype(np.int64)


def _filter(column: int, row: int, edges: NDArray[np.int64]) -> str:
    low, high = column / COLUMNS, (column + 1) / COLUMNS
    least, most = int(edges[row]), int(edges[row + 1])
    below = "<=" if column == COLUMNS - 1 else "<"
    tries = f"attempts == {least}" if most == least + 1 else f"attempts >= {least} and attempts < {most}"
    return f"posterior_mean >= {low:g} and posterior_mean {below} {high:g} and {tries}"


def gate_class(gate: float) -> str:
    """g0 closed, g1 barely open … g9 wide open."""
    return f"g{0 if gate <= 0 else 1 + min(8, int(9 * gate))}"


def problem_map(found: Map) -> Markup:
    """The map: posterior mean to the right, attempts upwards, size by number of problems, colour by their mean gate."""
    edges, rows = found.edges, len(found.edges) - 1
    width, height = 1 / COLUMNS, 1 / max(rows, _LEAST_ROWS)
    most = max((cell.count for cell in found.cells), default=1)
    marks: list[str] = [y_ticks([((row + 0.5) * height, _attempts(edges, row)) for row in range(rows)], grid=False)]
    marks.append(x_ticks([(tick / 10, f"{tick / 10:g}") for tick in range(0, 11, 2)]))
    for i, cell in enumerate(found.cells):
        # Area by the logarithm of the number, from a quarter of the cell to nearly all of it.
        side = 0.92 * np.sqrt(0.25 + 0.75 * np.log1p(cell.count - 1) / max(np.log(most), 1.0))
        x, y = (cell.column + (1 - side) / 2) * width, 1 - (cell.row + (1 + side) / 2) * height
        marks.append(_link(cell, edges, i == 0, (x, y, side * width, side * height)))
    return plot(marks, f"map of problems: {len(found.cells)} cells", "map", "group")


def _link(cell: Cell, edges: NDArray[np.int64], reachable: bool, box: tuple[float, float, float, float]) -> Markup:
    x, y, width, height = box
    many = f"{cell.count:,} problems" if cell.only is None else f"problem {cell.only[:80]}"
    low, high = cell.column / COLUMNS, (cell.column + 1) / COLUMNS
    label = (
        f"{many} · posterior mean {low:.3f}–{high:.3f} · {_attempts(edges, cell.row)} attempts · "
        f"gate {number(cell.gate) if cell.gate > 0 else 'closed'}"
    )
    href = f"problems?{urlencode({'where': cell.where})}" if cell.only is None else problem_link(cell.only)
    mark = element(
        "rect", element("title", label), x=percent(x), y=percent(y), width=percent(width), height=percent(height), rx=2
    )
    return element(
        "a", mark, href=href, class_=gate_class(cell.gate), aria_label=label, data_column=cell.column,
        data_row=cell.row, tabindex=0 if reachable else -1,
    )  # fmt: skip


def _attempts(edges: NDArray[np.int64], row: int) -> str:
    least, most = int(edges[row]), int(edges[row + 1]) - 1
    return str(least) if least in (0, most) else f"{least}–{most}"  # whoever was tried has a row above 0's


def problem_link(problem_id: str) -> str:
    """The address of a problem's history."""
    return f"problem?{urlencode({'id': problem_id})}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean posterior pass@k over problems, for every k in K, and its standard error over problems."""

    mean: Floats
    error: Floats


def pass_at_k_curve(a: Floats, b: Floats, gate: Gate) -> Curve:
    """The curve of some problems' evidence."""
    values = posterior.pass_at_k(a[:, None], b[:, None], K, gate.prior)
    found = [mean_and_error(values[:, i]) for i in range(len(K))]
    return Curve(np.array([mean for mean, _ in found]), np.array([error for _, error in found]))


def pass_at_k_chart(start: Curve, now: Curve) -> Markup:
    """Both curves, with bands of one standard error."""
    x = np.arange(len(K)) / (len(K) - 1)
    areas = [
        band(x, curve.mean - curve.error, curve.mean + curve.error, f"band {name}")
        for curve, name in ((start, "then"), (now, "now"))
    ]
    drawn = [path(x, start.mean, "line then"), path(x, now.mean, "line now")]
    marks = [
        y_ticks([(tick / 4, f"{tick / 4:g}") for tick in range(5)]),
        x_ticks([(at, str(k)) for at, k in zip(x.tolist(), K.tolist(), strict=True)]),
        lines([*areas, *drawn]),
    ]
    return plot(marks, "pass@k of the posterior, at the start and now", "curve")


def evaluation_chart(rounds: Sequence[Round], ks: Sequence[int]) -> Markup:
    """pass@k of each round by its version, with bands of one standard error; a line's k stands at its end.

    pass@k rises with k, so the lines do not cross and need no colours of their own.
    """
    shown = rounds[:: -max(1, -(-len(rounds) // POINTS))][::-1]  # the newest is always there
    version = np.array([one.version for one in shown], np.float64)
    x = (version - version[0]) / max(version[-1] - version[0], 1.0)
    said = [{row["k"]: (row["mean"], row["se"]) for row in scores(one.tallies, ks)["pass_at_k"]} for one in shown]
    drawn: list[Markup] = []
    labels: list[Markup] = []
    free = 2.0
    for k in sorted(ks, reverse=True):
        mean, error = np.array([row.get(k, (np.nan, np.nan)) for row in said]).T
        if not np.isfinite(mean).any():
            continue
        drawn += [band(x, mean - error, mean + error, "band now"), path(x, mean, "line now")]
        labels += [
            element("circle", cx=percent(at), cy=percent(1 - y), r=2, class_="round")
            for at, y in zip(x.tolist(), mean.tolist(), strict=True)
            if np.isfinite(y)
        ]
        if np.isfinite(mean[-1]) and mean[-1] < free - _LABEL:
            free = float(mean[-1])
            at = x[-1] if len(x) > 1 else 0.0
            labels.append(element("text", f"k = {k}", x=percent(at), dx=6, y=percent(1 - free), dy=4, class_="tick"))
    ticks = version[:: -(-len(version) // 6)]
    places = (ticks - version[0]) / max(version[-1] - version[0], 1.0)
    marks = [
        y_ticks([(tick / 4, f"{tick / 4:g}") for tick in range(5)]),
        x_ticks([(at, f"{tick:.0f}") for at, tick in zip(places.tolist(), ticks.tolist(), strict=True)]),
        lines(drawn),
        *labels,
    ]
    return plot(marks, "pass@k on held-out problems, by version", "evaluations")


def history_chart(groups: Sequence[Mapping[str, Any]]) -> Markup:
    """One problem's posterior mean after each of its groups, its 95 % interval, and each group's share of correct."""
    version = np.array([group["version_max"] for group in groups], np.float64)
    first, last = float(version.min()), float(version.max())
    # In the order in which they counted; a group of an older version that came late must not draw a line backwards.
    shown = np.maximum.accumulate(version)
    x = (shown - first) / (last - first) if last > first else np.full(len(shown), 0.5)
    low, high, mean, gate = (
        np.array([group[name] for group in groups])
        for name in ("interval_low", "interval_high", "posterior_mean", "gate")
    )
    ticks = np.arange(first, last + 1, max(1, np.ceil((last - first) / 6)))
    places = (ticks - first) / (last - first) if last > first else np.array([0.5])
    dots = [
        element(
            "circle",
            element("title", f"version {group['version_max']}: {group['c']} of {group['G']} correct"),
            cx=percent(at), cy=percent(1 - group["c"] / max(group["G"], 1)), r=4, class_=gate_class(value),
        )
        for at, group, value in zip(x.tolist(), groups, gate.tolist(), strict=True)
    ]  # fmt: skip
    marks = [
        y_ticks([(tick / 4, f"{tick / 4:g}") for tick in range(5)]),
        x_ticks([(at, f"{tick:.0f}") for at, tick in zip(places.tolist(), ticks.tolist(), strict=True)]),
        lines([band(x, low, high, "band now"), path(x, mean, "line now"), path(x, gate, "line gate")]),
        *dots,
    ]
    return plot(marks, "posterior mean with its 95 % interval, after each group", "history")


def thinned(values: Floats) -> Floats:
    """At most POINTS means of consecutive values; NaN where none of them is finite."""
    if len(values) <= POINTS:
        return values
    edges = np.linspace(0, len(values), POINTS + 1).astype(int)[:-1]
    there = np.isfinite(values)
    sums = np.add.reduceat(np.where(there, values, 0.0), edges)
    counts = np.add.reduceat(there.astype(np.float64), edges)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)


def strip_chart(series: Sequence[Floats], label: str, from_zero: bool) -> Markup:
    """One or two lines over the run, scaled to their own range."""
    drawn = [thinned(values) for values in series]
    finite = np.concatenate(drawn)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return plot([], label, "strip")
    low, high = float(finite.min()), float(finite.max())
    low = min(low, 0.0) if from_zero else low
    span = high - low if high > low else max(abs(high), 1.0)
    marks = []
    for i, values in enumerate(drawn):
        x = np.arange(len(values)) / max(len(values) - 1, 1)
        marks.append(path(x, 0.06 + 0.88 * (values - low) / span, f"line {'now' if i == 0 else 'then'}"))
    ends = [element("text", number(high), x="100%", dx=5, y="0%", dy=9, class_="tick")]
    if high > low:
        ends.append(element("text", number(low), x="100%", dx=5, y="100%", class_="tick"))
    return plot([lines(marks), joined(ends)], label, "strip")
