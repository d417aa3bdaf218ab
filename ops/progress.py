"""What a run says while it goes: one status line, redrawn on a terminal, repeated in a pipe."""

import sys
from collections.abc import Mapping
from typing import TextIO


def status_line(dynamics: Mapping[str, float], steps: int, completions_per_s: float, actors: int) -> str:
    """The state of training in one line; see learner/README.md for what each figure means."""
    if "step" not in dynamics:
        return f"starting: {actors} actors load the model, the learner waits for the first groups"
    value = dynamics.__getitem__
    return (
        f"step {value('step'):.0f}/{steps} · reward {value('reward'):.3f} · p̂ {value('solve_rate'):.3f} · "
        f"Ĥ {value('entropy'):.2f} · α {value('alpha'):.2f} · δ {value('delta'):.2f} · "
        f"active {value('active_problems'):.0f} · lag {value('lag_mean'):.1f}/{value('lag_max'):.0f} · "
        f"learner idle {value('idle_share'):.0%} · {completions_per_s:.0f} rollouts/s"
    )


UNCHANGED_EVERY_S = 60.0


def _head(line: str) -> str:
    return line.rpartition(" · ")[0] or line


class StatusLine:
    """Shows the newest line: in place on a terminal; elsewhere at most every `every_s` seconds, and where only its last
    figure has changed, once a minute."""

    def __init__(self, stream: TextIO | None = None, every_s: float = 5.0) -> None:
        self._stream = stream or sys.stderr
        self._every_s = every_s
        self._terminal = self._stream.isatty()
        self._shown_s = float("-inf")
        self._open = False
        self._last = ""

    def show(self, line: str, now_s: float) -> None:
        """Show `line`, unless in a pipe one was shown less than `every_s` ago."""
        if self._terminal:
            self._stream.write(f"\r\033[K{line}")
            self._open = True
        elif now_s - self._shown_s >= (self._every_s if _head(line) != _head(self._last) else UNCHANGED_EVERY_S):
            self._stream.write(line + "\n")
            self._shown_s, self._last = now_s, line
        self._stream.flush()

    def say(self, message: str) -> None:
        """A line that stays."""
        self.finish()
        self._stream.write(message + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """End the line that is redrawn."""
        if self._open:
            self._stream.write("\n")
            self._open = False
