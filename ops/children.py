"""The processes of a run: started with a log each, watched, restarted, and stopped in order."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ops.placement import VERGE

BACK_OFF_S = (1.0, 5.0, 20.0)
HEALTHY_S = 120.0
_TAIL_BYTES = 4096
_FOR_A_PERSON = "verge: "
"""Before the line in which a process of ours says why it ends."""


@dataclass
class Child:
    """One process of the run and its log.

    running ──exit──▶ (actor: back-off ──▶ running again) or stopped; more restarts than `BACK_OFF_S` within
    `HEALTHY_S` of one another: failed.
    """

    name: str
    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = VERGE
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started_s: float = 0.0
    not_before_s: float = 0.0
    log_began: int = 0
    """Bytes that earlier processes left in the log."""

    def start(self) -> None:
        """Start the process, its output appended to its log. It dies with us even if we are killed."""
        with self.log.open("ab") as log:
            self.log_began = log.tell()
            self.process = subprocess.Popen(
                [*self.program, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.started_s = time.monotonic()

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self.process.poll() if self.process is not None else None

    @property
    def state(self) -> str:
        """`running`, `ended` well, or `starts again` when its back-off is over."""
        if self.process is None or self.exit_status:
            return "starts again"
        return "running" if self.exit_status is None else "ended"

    def schedule_restart(self, now: float) -> bool:
        """Plan a restart after a back-off, once nothing is left of it. False when it has failed too often."""
        self.terminate(0)  # killed, it has left its engine's processes behind
        if now - self.started_s > HEALTHY_S:
            self.restarts = 0
        if self.restarts >= len(BACK_OFF_S):
            return False
        self.not_before_s = now + BACK_OFF_S[self.restarts]
        self.restarts += 1
        self.process = None
        return True

    def how_it_ended(self) -> str:
        """`killed by SIGKILL`, or its status and its reason: its last line for a person, else its last of all."""
        status = self.exit_status or 0
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        said = self.log.read_bytes()[self.log_began :].decode(errors="replace").splitlines()
        lines = [line.strip() for line in said if line.strip()]
        for_a_person = [line for line in lines if _FOR_A_PERSON in line]
        words = (for_a_person or lines or ["it left no message"])[-1]
        return f"ended with status {status}: {words.rpartition(_FOR_A_PERSON)[2]}"

    def just_said(self, within_s: float = 10.0) -> str:
        """The last line of ours in its log, if anything was written there of late; "" where there is none."""
        kind = self.arguments[0]
        with suppress(OSError):
            if time.time() - self.log.stat().st_mtime < within_s:
                with self.log.open("rb") as log:
                    log.seek(max(self.log_began, self.log.stat().st_size - _TAIL_BYTES))
                    lines = log.read().decode(errors="replace").splitlines()
                ours = [line for line in lines if line.startswith(f"{kind}: ")]
                return ours[-1].removeprefix(f"{kind}: ") if ours else ""
        return ""

    def terminate(self, grace_s: float) -> None:
        """SIGTERM, then after `grace_s` SIGKILL to the whole session, so that nothing is left running."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def die_with_parent() -> None:
    """Have the kernel end this process, by SIGTERM, when the one that started it ends in whatever way."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
