"""The panel of `verge up` on a terminal: the newest look at the run, redrawn in place."""

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ops.progress import Look


def panel(look: Look) -> Panel:
    """Steps and figures, a row for each actor, and below them what processes have just said."""
    parts: list[RenderableType] = [_training(look), _actors(look)]
    for process, line in look.said.items():
        parts.append(Text(f"{process}: {line}", style="yellow", no_wrap=True, overflow="ellipsis"))
    step = f"{look.dynamics['step']:.0f}" if "step" in look.dynamics else "–"
    return Panel(Group(*parts), title=f"{look.run} · step {step}/{look.steps}", title_align="left")


def _training(look: Look) -> RenderableType:
    if "step" not in look.dynamics:
        return Text("starting: actors load the model, the learner waits for the first groups")
    value = look.dynamics.__getitem__
    tokens_per_s = sum(_number(beat, "tokens_per_s") for beat in look.beats.values())
    figures = [
        ("reward", f"{value('reward'):.3f}"), ("p̂", f"{value('solve_rate'):.3f}"), ("Ĥ", f"{value('entropy'):.2f}"),
        ("α", f"{value('alpha'):.2f}"), ("δ", f"{value('delta'):.2f}"), ("active", f"{value('active_problems'):.0f}"),
        ("lag", f"{value('lag_mean'):.1f} of {look.max_lag}"), ("learner idle", f"{value('idle_share'):.0%}"),
        ("tokens/s", f"{tokens_per_s:.0f}"), ("rollouts/s", f"{look.completions_per_s:.0f}"),
    ]  # fmt: skip
    text = Text()
    for name, figure in figures:
        text.append(f"{name} ", style="dim").append(f"{figure}   ")
    return text


def _actors(look: Look) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("actor", no_wrap=True)
    for name in ("version", "tickets", "tokens/s", "completions", "errors"):
        table.add_column(name, justify="right", no_wrap=True)
    for actor, state in look.processes.items():
        beat = look.beats.get(actor, {})
        shown = "loads its engine" if state == "running" and beat.get("engine", "starting") == "starting" else state
        if "evaluating" in beat:
            shown = f"evaluates version {_number(beat, 'evaluating'):.0f}"
        names = ("version", "tickets", "tokens_per_s", "completions", "errors")
        cells = [f"{_number(beat, name):.0f}" if name in beat else "–" for name in names]
        table.add_row(f"{actor} {'' if shown == 'running' else shown}".rstrip(), *cells)
    return table


def _number(beat: object, name: str) -> float:
    value = beat.get(name, 0) if isinstance(beat, dict) else 0
    return float(value) if isinstance(value, int | float) else 0.0


class TerminalPanel:
    """The panel at the foot of the terminal; what is said scrolls above it, and the last look stays at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def show(self, look: Look, now_s: float) -> None:
        """As Progress."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.update(panel(look), refresh=True)

    def say(self, message: str) -> None:
        """As Progress."""
        self._console.print(Text(message), soft_wrap=True)

    def finish(self) -> None:
        """As Progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None
