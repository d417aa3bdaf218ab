"""The atlas: every advantage's masses and slope on one sheet, equalised, and FADE's path as training moves."""

import html
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gating import fade, framework
from gating.advantages import CountAdvantage, find, make, names
from store.errors import VergeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUCCESS, FAILURE, SLOPE, PATH = "#2f6fb3", "#c8641e", "#555555", "#2e7d4f"
COLUMNS = 6
LINE = 0.047
"""Height of a line of labels on the map."""
# FADE's path: the mean solve rate rises while entropy falls, from its start to below the target at half of it.
PATH_SOLVE_RATES = np.array([0.15, 0.3, 0.45, 0.6, 0.75])
PATH_ENTROPIES = np.array([1.6, 1.2, 0.8, 0.5, 0.3])
PATH_TARGET = 0.8


def drawable(group_size: int) -> dict[str, Any]:
    """Every registered advantage that counts alone determine, with its default parameters, by name."""
    advantages = {}
    for name in names():
        cls = find(name)
        if issubclass(cls, CountAdvantage) and make(name).min_group <= group_size:
            advantages[name] = make(name)
    return advantages


def check_drawable(out: Path, suffixes: Sequence[str]) -> None:
    """Refuse a file that cannot be drawn to. VergeError: another type, no such folder, or nothing to draw with."""
    if out.suffix not in suffixes:
        listed = " or ".join([", ".join(suffixes[:-1]), suffixes[-1]])
        raise VergeError(f"{out} ends in {out.suffix or 'nothing'} but must end in {listed}")
    if not out.parent.is_dir():
        raise VergeError(f"the folder {out.parent} of {out.name} does not exist; create it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise VergeError("drawing needs matplotlib: pip install 'verge-rl[plot]'")


def draw(out: Path, group_size: int = 8) -> None:
    """Draw the sheet.

    Args:
        out: a file ending in .png, .svg or .html; the last holds the drawing and each advantage's source.
        group_size: G, at least 2.
    Raises:
        VergeError: as `check_drawable`, or a group of one.
    """
    check_drawable(out, (".png", ".svg", ".html"))
    if group_size < 2:
        raise VergeError(f"group size is {group_size} but must be >= 2: most advantages compare within a group")
    advantages = drawable(group_size)
    figure = _sheet(advantages, group_size)
    if out.suffix != ".html":
        figure.savefig(out, dpi=110)
        return
    svg = io.StringIO()
    figure.savefig(svg, format="svg")
    out.write_text(_page(svg.getvalue(), advantages, group_size), encoding="utf-8")


def _sheet(advantages: dict[str, Any], G: int) -> "Figure":
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = -(-len(advantages) // COLUMNS)
    figure = Figure(figsize=(2.75 * COLUMNS, 2.1 * rows + 4.6), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=[2.1 * rows, 4.2])
    top = figure.add_subfigure(grid[0])
    bottom = figure.add_subfigure(grid[1])
    p = np.linspace(0.0, 1.0, 201)
    axes = top.subplots(rows, COLUMNS, sharex=True, sharey=True)
    for axis, (name, advantage) in zip(axes.flat, advantages.items(), strict=False):
        _panel(axis, name, advantage, p, G)
    for axis in axes.flat[len(advantages) :]:
        axis.set_axis_off()
    axes.flat[0].set_ylim(-0.6, 2.3)
    axes.flat[0].legend(frameon=False, fontsize=7.5, loc="upper right")
    top.supxlabel("solve rate p", fontsize=10)
    top.suptitle(f"Masses of every advantage at G = {G}, default parameters, each scaled to mean mass 1", fontsize=12)
    cells = bottom.add_gridspec(2, 3, width_ratios=[1.0, 1.3, 1.5])
    difficulty, sign = bottom.add_subplot(cells[0, 0]), bottom.add_subplot(cells[1, 0])
    path, plane = bottom.add_subplot(cells[:, 1]), bottom.add_subplot(cells[:, 2])
    _dials(difficulty, sign)
    _path(path, p, G)
    _map(plane, advantages, G)
    for axis in [*axes.flat, difficulty, sign, path, plane]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _panel(axis: "Axes", name: str, advantage: Any, p: Any, G: int) -> None:
    scale = framework.equalising_scale(advantage, G)
    up, down = framework.masses(advantage, p, G)
    axis.fill_between(p, 0, scale * up, color=SUCCESS, alpha=0.12, lw=0)
    axis.plot(p, scale * up, color=SUCCESS, label="m_S, successes")
    axis.plot(p, scale * down, color=FAILURE, ls=(0, (5, 1.5)), label="m_F, failures")
    axis.plot(p, scale * framework.slope(advantage, p, G) * p * (1 - p), color=SLOPE, ls=":", label="F′·p(1−p)")
    axis.axhline(0, color="#cccccc", lw=0.6, zorder=0)
    axis.set_title(name, fontsize=9.5, loc="left")
    axis.tick_params(labelsize=7.5)


def _dials(difficulty: "Axes", sign: "Axes") -> None:
    rate, entropy = np.linspace(0.05, 1.0, 200), np.linspace(0.0, 1.7, 200)
    difficulty.plot(rate, fade.alpha(rate), color=PATH)
    difficulty.plot(PATH_SOLVE_RATES, fade.alpha(PATH_SOLVE_RATES), "o", color=PATH, ms=4)
    difficulty.set(xlabel="mean solve rate p̂ (rising)", ylabel="α", ylim=(0.8, 3.2))
    difficulty.set_title("FADE's two dials", fontsize=10, loc="left")
    sign.plot(entropy, fade.delta(entropy, PATH_TARGET), color=PATH)
    sign.plot(PATH_ENTROPIES, fade.delta(PATH_ENTROPIES, PATH_TARGET), "o", color=PATH, ms=4)
    sign.set(xlabel=f"entropy Ĥ, nats (falling; target {PATH_TARGET:g})", ylabel="δ", ylim=(0.0, 1.1), xlim=(1.7, 0.0))


def _stages() -> list[tuple[str, Any]]:
    stages = []
    for rate, entropy in zip(PATH_SOLVE_RATES, PATH_ENTROPIES, strict=True):
        a, d = float(fade.alpha(rate)), float(fade.delta(entropy, PATH_TARGET))
        stages.append((f"p̂ {rate:g}, Ĥ {entropy:g}: α {a:.2f}, δ {d:.2f}", make("fade", alpha=a, delta=d)))
    return stages


def _path(axis: "Axes", p: Any, G: int) -> None:
    for shade, (label, advantage) in zip(np.linspace(0.25, 1.0, len(PATH_SOLVE_RATES)), _stages(), strict=True):
        scale = framework.equalising_scale(advantage, G)
        up, down = framework.masses(advantage, p, G)
        axis.plot(p, scale * up, color=SUCCESS, alpha=shade, label=label)
        axis.plot(p, -scale * down, color=FAILURE, alpha=shade)
    axis.axhline(0, color="#cccccc", lw=0.6, zorder=0)
    axis.legend(frameon=False, fontsize=8, loc="lower center")
    axis.set(xlabel="solve rate p", ylabel="m_S above, m_F below", ylim=(-2.1, 1.15))
    axis.set_title("FADE as training moves: light to dark", fontsize=10, loc="left")


def _place(advantage: Any, G: int) -> tuple[float, float]:
    """(mean solve rate where its mass sits, share of that mass on successes)."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    p = (nodes + 1) / 2
    up, down = (np.abs(mass) for mass in framework.masses(advantage, p, G))
    total = float((up + down) @ weights)
    return float(((up + down) * p) @ weights) / total, float(up @ weights) / total


def _map(axis: "Axes", advantages: dict[str, Any], G: int) -> None:
    shared: dict[tuple[float, float], list[str]] = {}
    for name, advantage in advantages.items():
        if name != "fade":
            x, y = _place(advantage, G)
            shared.setdefault((round(x, 2), round(y, 2)), []).append(name)
    until: dict[int, float] = {}  # where the last label of each line of text ends
    for (x, y), here in sorted(shared.items()):
        text, line, lifted = ", ".join(here), round(y / LINE), 0
        while until.get(line + lifted, -1.0) > x:  # it would run into its left neighbour: one line up
            lifted += 1
        until[line + lifted] = x + 0.0095 * len(text) + 0.02
        axis.plot(x, y, "o", color=SLOPE, ms=4)
        leader = {"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.7} if lifted else None
        axis.annotate(text, (x, y), (x + 0.007, y + lifted * LINE + 0.008), fontsize=8, arrowprops=leader)
    path = np.array([_place(advantage, G) for _, advantage in _stages()])
    axis.plot(path[:, 0], path[:, 1], "o-", color=PATH, ms=5, mfc="white")
    axis.annotate("FADE's path", path[-2], (-10, -8), textcoords="offset points", color=PATH, ha="right", fontsize=9)
    axis.set(xlabel="mean p of its mass: hard ← → easy", ylabel="share of its mass on successes", ylim=(-0.06, 1.16))
    axis.set_xlim(0.03, 0.87)
    axis.set_title("The sign and difficulty axes", fontsize=10, loc="left")


def _idea(name: str) -> str:
    return (find(name).__doc__ or "").split("\n")[0]


def _page(svg: str, advantages: dict[str, Any], G: int) -> str:
    drawing = svg[svg.index("<svg") :]
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_idea(name))}</td>"
        f"<td>{html.escape(find(name).source)}</td></tr>"
        for name in names()
    )
    hidden = [name for name in names() if name not in advantages]
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Advantages at G = {G}</title>"
        "<style>body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1300px;padding:0 1rem}"
        "svg{width:100%;height:auto}td{padding:.15rem 1rem .15rem 0;vertical-align:top}</style>"
        f"<body>{drawing}<p>Not drawn, because counts alone do not determine them or they need a larger group: "
        f"{', '.join(hidden) or 'none'}.</p><table>{rows}</table></body></html>"
    )
