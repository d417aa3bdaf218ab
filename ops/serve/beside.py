"""The page beside a run: a process of `verge up` that the run does not depend on."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ops.children import Child
from ops.config import RunConfig
from ops.serve.process import URL_FILE

_GRACE_S = 3.0
_FOR_A_PERSON_TO_MEND = 1
"""Exit status of a VergeError: starting again would change nothing."""


class PageBeside:
    """`verge serve` as a child, with its address said once it is known.

    off (serve.enabled = false)
    running ──it dies──▶ back-off ──▶ running …; given up, and said, when it dies again and again or needs a person
    """

    def __init__(self, config: RunConfig, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._said = ""
        serve = Child("serve", ["serve", str(folder)], folder / "logs" / "serve.log")
        self._child = serve if config.serve.enabled else None

    def start(self) -> None:
        """Start it, unless it is off."""
        if self._child is not None:
            self._child.start()

    def keep(self, now_s: float) -> None:
        """Say where it is, start it again when it has died, or give it up."""
        child = self._child
        if child is None:
            return
        if child.process is None:
            if now_s >= child.not_before_s:
                child.start()
        elif child.exit_status is None:
            self._say_where(child.process.pid)
        else:
            self._ended(child, now_s)

    def _ended(self, child: Child, now_s: float) -> None:
        reason = f"the page {child.how_it_ended()}"
        if child.exit_status == _FOR_A_PERSON_TO_MEND or not child.schedule_restart(now_s):
            self._say(f"{reason}; the run goes on without it (log: {child.log})")
            self._child = None
            return
        self._say(f"{reason}; starting it again in {child.not_before_s - now_s:.0f} s")

    def _say_where(self, pid: int) -> None:
        found = {}
        with suppress(OSError, ValueError):
            found = json.loads((self._folder / URL_FILE).read_text(encoding="utf-8"))
        if found.get("pid") == pid and found["url"] != self._said:
            self._said = found["url"]
            self._say(f"page: {self._said}")

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.terminate(_GRACE_S)
