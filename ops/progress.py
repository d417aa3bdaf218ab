"""What a run says while it goes: a panel on a terminal (ops/panel.py), plain lines elsewhere."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console

UNCHANGED_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Look:
    """A run as `verge up` sees it at one time."""

    run: str
    steps: int
    max_lag: int
    dynamics: Mapping[str, float]
    completions_per_s: float
    processes: Mapping[str, str]
    """State of each actor: `running`, `starts again` or `ended`."""
    beats: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Their newest heartbeats."""
    said: Mapping[str, str] = field(default_factory=dict)
    """What processes have just said in their logs, as when they wait."""

    @property
    def running(self) -> int:
        """Actors that run."""
        return sum(state == "running" for state in self.processes.values())


def status_line(look: Look) -> str:
    """The state of training in one line; see learner/README.md for what each figure means."""
    if "step" not in look.dynamics:
        return f"starting: {look.running} actors load the model, the learner waits for the first groups"
    value = look.dynamics.__getitem__
    return (
        f"step {value('step'):.0f}/{look.steps} · reward {value('reward'):.3f} · p̂ {value('solve_rate'):.3f} · "
        f"Ĥ {value('entropy'):.2f} · α {value('alpha'):.2f} · δ {value('delta'):.2f} · "
        f"active {value('active_problems'):.0f} · lag {value('lag_mean'):.1f}/{value('lag_max'):.0f} · "
        f"learner idle {value('idle_share'):.0%} · {look.completions_per_s:.0f} rollouts/s"
    )


class Progress(Protocol):
    """Where a run's progress is shown."""

    def show(self, look: Look, now_s: float) -> None:
        """The newest look, which takes the place of the last one."""

    def say(self, message: str) -> None:
        """A line that stays."""

    def finish(self) -> None:
        """No more looks come."""


def progress(stream: TextIO | None = None) -> Progress:
    """A panel where the stream is a terminal that can redraw one, else lines."""
    stream = stream or sys.stderr
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        from ops.panel import TerminalPanel

        return TerminalPanel(console)
    return StatusLines(stream)


class StatusLines:
    """The status line at most every `every_s` seconds, and where only its last figure has changed, once a minute."""

    def __init__(self, stream: TextIO, every_s: float = 5.0) -> None:
        self._stream = stream
        self._every_s = every_s
        self._shown_s = float("-inf")
        self._last = ""

    def show(self, look: Look, now_s: float) -> None:
        """As Progress."""
        line = status_line(look)
        if now_s - self._shown_s >= (self._every_s if _head(line) != _head(self._last) else UNCHANGED_EVERY_S):
            self.say(line)
            self._shown_s, self._last = now_s, line

    def say(self, message: str) -> None:
        """As Progress."""
        self._stream.write(message + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """As Progress."""


def _head(line: str) -> str:
    return line.rpartition(" · ")[0] or line
