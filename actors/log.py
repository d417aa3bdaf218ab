"""What an actor says in its log."""

import sys

SAY_WHY_EVERY_S = 10.0
"""While it waits."""


def say(message: str) -> None:
    """One line to the log of this process."""
    print(f"actor: {message}", file=sys.stderr, flush=True)
