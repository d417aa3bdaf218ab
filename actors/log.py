"""What an actor says in its log."""

import sys

SAY_WHY_EVERY_S = 10.0
"""While it waits."""


def over(phase: str, reason: str) -> str:
    """That a run is no longer going on, in words."""
    return f"the run is {phase}{': ' + reason if reason else ''}"


def say(message: str) -> None:
    """One line to the log of this process."""
    print(f"actor: {message}", file=sys.stderr, flush=True)
