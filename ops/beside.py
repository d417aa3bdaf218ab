"""What runs beside a run: processes of `verge up` that the run does not depend on."""

from collections.abc import Callable

from ops.children import Child

_FOR_A_PERSON_TO_MEND = 1
"""Exit status of a VergeError: starting again would change nothing."""


class Beside:
    """One such process.

    off
    running ──it has done its work──▶ ended
       └──it dies──▶ back-off ──▶ running …; given up, and said, when it dies again and again or needs a person
    """

    def __init__(self, what: str, child: Child | None, grace_s: float, say: Callable[[str], None]) -> None:
        self._what, self._child, self._grace_s, self._say = what, child, grace_s, say

    def start(self) -> None:
        """Start it, unless it is off."""
        if self._child is not None:
            self._child.start()

    def keep(self, now_s: float) -> None:
        """Start it again when it has died, or give it up."""
        child = self._child
        if child is None:
            return
        if child.process is None:
            if now_s >= child.not_before_s:
                child.start()
        elif child.exit_status is None:
            self._running(child.process.pid)
        elif child.exit_status == 0:
            child.terminate(0)  # what it may have left behind
            self._child = None
        else:
            self._died(child, now_s)

    def _running(self, pid: int) -> None:
        """It is well; called at every look."""

    def _died(self, child: Child, now_s: float) -> None:
        reason = f"{self._what} {child.how_it_ended()}"
        if child.exit_status == _FOR_A_PERSON_TO_MEND or not child.schedule_restart(now_s):
            self._say(f"{reason}; the run goes on without it (log: {child.log})")
            self._child = None
            return
        self._say(f"{reason}; starting it again in {child.not_before_s - now_s:.0f} s")

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.terminate(self._grace_s)
