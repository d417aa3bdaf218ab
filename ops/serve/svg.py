"""Figures as SVG, drawn on the server: marks in percent of the plot, so that text keeps its size on any screen."""

from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_UNITS = 1000
"""Side of the inner coordinate system in which lines are drawn."""


def element(name: str, content: str = "", **attributes: object) -> Markup:
    """One element; every value is escaped, `content` only where it is not Markup. A trailing _ is left off names."""
    given = joined(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, given, content)


def joined(parts: Iterable[str]) -> Markup:
    """Several elements as one content."""
    return Markup("").join(parts)


def percent(share: float) -> str:
    """A share of the plot's width or height."""
    return f"{100 * share:.2f}%"


def plot(marks: Iterable[str], label: str, class_: str, role: str = "img") -> Markup:
    """A figure that fills its box; what lies outside the box (ticks) is shown too. `role` group: it holds links."""
    return element("svg", joined(marks), class_=f"plot {class_}", role=role, aria_label=label)


def lines(marks: Iterable[str]) -> Markup:
    """Paths in [0, _UNITS]², stretched over the whole plot; their strokes are not."""
    return element("svg", joined(marks), viewBox=f"0 0 {_UNITS} {_UNITS}", preserveAspectRatio="none", class_="lines")


def path(x: Floats, y: Floats, class_: str) -> Markup:
    """A line through points in shares of the plot, y upwards; broken where y is not finite."""
    steps, pen = [], "M"
    for px, py in zip(_UNITS * x, _UNITS * (1.0 - y), strict=True):
        if not np.isfinite(py):
            pen = "M"
            continue
        steps.append(f"{pen}{px:.0f} {min(max(py, -_UNITS), 2 * _UNITS):.1f}")
        pen = "L"
    return element("path", d="".join(steps), class_=class_)


def band(x: Floats, low: Floats, high: Floats, class_: str) -> Markup:
    """The area between two lines."""
    there = np.isfinite(low) & np.isfinite(high)
    around_x = np.concatenate([x[there], x[there][::-1]])
    around_y = np.concatenate([high[there], low[there][::-1]])
    return path(around_x, around_y, class_)


def x_ticks(ticks: Sequence[tuple[float, str]]) -> Markup:
    """Labels below the plot."""
    return joined(element("text", text, x=percent(at), y="100%", dy=16, class_="tick middle") for at, text in ticks)


def y_ticks(ticks: Sequence[tuple[float, str]], grid: bool = True) -> Markup:
    """Labels left of the plot, with lines across it."""
    marks = []
    for at, text in ticks:
        y = percent(1.0 - at)
        if grid:
            marks.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        marks.append(element("text", text, x=0, dx=-6, y=y, dy=4, class_="tick end"))
    return joined(marks)


def number(value: float) -> str:
    """A number in at most five characters or so."""
    if not np.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1e6:.3g} M" if size >= 1e6 else f"{value / 1e3:.3g} k"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    if size >= 0.001:
        return f"{value:.3f}" if size < 1 else f"{value:.2f}"
    return f"{value:.1e}"
