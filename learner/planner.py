"""Rank 0's decisions: what leaves the pool, which tickets go out, which groups the next step trains on."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.admission import Admission, Fruitless, chances, check_fields, ticket_limit
from learner.base_evidence import BaseEvidence
from learner.batches import balance
from learner.config import LearnerSettings
from learner.opinions import Drawn, Gates, Opinions
from learner.store_thread import StoreThread
from store.errors import VergeError
from store.groups import Reason
from store.mirror import Mirror
from store.wire import GroupEntry

SAY_WHY_EVERY_S = 5.0
_LOOK_EVERY_S = 0.03
_TEND_EVERY_S = 0.2


@dataclass(slots=True)
class Batch:
    """A drawn batch and what the pool looked like: what the step's record needs."""

    drawn: Drawn
    active_problems: int
    reward: float
    """Mean solve rate of the groups that arrived since the last step (of the drawn ones if none did)."""
    base: list[tuple[int, int]]
    """For each group, how often the base model solved its problem and did not, this group aside; (0, 0) where the
    objective does not ask."""
    why_inactive: str
    """Why no problem is active, if none is."""


class Planner:
    """Keeps the mirror and the pool, paces the actors by tickets, and draws.

    live group ──lag > max_lag──▶ expired        ──mass 0──▶ zero_mass        (both refunded)
               ──drawn, max_uses times──▶ kept until a checkpoint covers its last use ──▶ used

    A used group stays that long so that a learner killed before the checkpoint can train on it again.
    `version` is that of the weights being trained; `step` counts finished steps.
    """

    def __init__(self, settings: LearnerSettings, line: StoreThread, ranks: int, clock: Callable[[], float]) -> None:
        self._settings, self._line, self._ranks, self._clock = settings, line, ranks, clock
        self._mirror = Mirror(line.store)
        self.opinions = Opinions(settings.objective, settings.gating, settings.draw)
        self._base = BaseEvidence(line.store)
        self._admission = Admission(settings.seed)
        self._fruitless = Fruitless(settings.admission.fruitless_limit, settings.learner.groups_per_step)
        self._rng = np.random.default_rng([settings.seed, 2])
        self._arrived: list[GroupEntry] = []
        self._last_arrival = clock()
        self._absences = 0
        self.failure: Exception | None = None
        """What went wrong while a step was tended, for the caller to raise where every rank can hear of it."""
        self._held = ""
        self._full_since = math.inf
        self._said = clock()
        self.version = 0
        self.step = 0
        self.covered_step = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "version": self.version,
            "fade": self.opinions.fade.state_dict(),
            "anchor": self.opinions.anchor.state_dict(),
            "admission": self._admission.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = {"anchor": {"beliefs": []}, **state}  # which older checkpoints have not
        check_fields("Planner", state, {"step", "version", "fade", "anchor", "admission", "rng"})
        self.step = self.covered_step = int(state["step"])
        self.version = int(state["version"])
        self.opinions.fade.load_state_dict(state["fade"])
        self.opinions.anchor.load_state_dict(state["anchor"])
        self._admission.load_state_dict(state["admission"])
        self._rng.bit_generator.state = state["rng"]

    def wait_for_batch(self, announced_step: Callable[[], int], until: float) -> Batch | None:
        """A batch as soon as there is one, or None at `until` (clock time), having said what is missing.

        announced_step: the step whose weights the actors can load by now; tickets are paced by it.

        Raises:
            NothingLeft: no problem has an open gate, and no group is on its way.
            VergeError: nothing will ever come: no problems, only fruitless groups, or none at all for too long.
        """
        while True:
            batch = self._look(announced_step())
            if batch is not None or self._clock() >= until:
                return batch
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def tended(self, announced_step: Callable[[], int]) -> Iterator[None]:
        """While the caller trains, and asks nothing of the planner, take in what arrives and issue what it refunds.

        Otherwise actors would wait for the end of a step, however long, before a group that teaches nothing is
        replaced, and before new weights let more tickets out. What fails meanwhile is in `failure`.
        """
        over = threading.Event()

        def tend() -> None:
            pause_s = _TEND_EVERY_S
            while not over.wait(pause_s):
                began = time.monotonic()
                try:
                    self._tend(announced_step())
                except Exception as error:
                    self.failure = error
                    return
                # With a million problems their gates alone take half a second, which is taken from the training.
                pause_s = max(_TEND_EVERY_S, 4 * (time.monotonic() - began))

        with ThreadPoolExecutor(1, "tend") as thread:
            thread.submit(tend)
            try:
                yield
            finally:
                over.set()

    def take(self, batch: Batch) -> list[list[int]]:
        """Record the draw in the store as that of step + 1; returns the indices of the batch, split over ranks."""
        ids = [entry.id for entry in batch.drawn.entries]
        self._line.call(self._line.store.use(ids, self.step + 1))
        self._mirror.used(ids, self.step + 1)
        self._fruitless.reset()
        self._arrived.clear()
        self._said = self._clock()
        tokens = [entry.tokens for entry in batch.drawn.entries]
        return balance(tokens, self._ranks, self._settings.learner.mini_batches)

    def lost(self, ids: Sequence[str]) -> None:
        """Payloads that were gone when a rank fetched them."""
        self._retire(ids, "lost_payload")

    def covered(self) -> None:
        """A checkpoint of `step` is complete: what was used up to it can leave."""
        self.covered_step = self.step

    def _tend(self, announced_step: int) -> tuple[Gates, list[GroupEntry], NDArray[np.int64], NDArray[np.float64]]:
        """Take in what arrived, retire, issue; returns the gates and what can be drawn, as `_tidy` does."""
        self._line.check()
        arrived = self._line.call(self._mirror.sync())
        if arrived:
            self._last_arrival = self._clock()
            self._arrived += arrived
            self._fruitless.add(len(arrived))
        gates = self.opinions.gates(self._mirror, self.version)
        entries, rows, mass = self._tidy(gates)
        self._issue(announced_step, gates)
        return gates, entries, rows, mass

    def _look(self, announced_step: int) -> Batch | None:
        gates, entries, rows, mass = self._tend(announced_step)
        wanted, have = self._settings.learner.groups_per_step, len(entries)
        if have < wanted and not (self._fruitless.over and have):
            pending, leased = self._line.call(self._line.store.open_tickets())
            ended = not gates.open.any() and not pending
            if not (ended and have):
                self._give_up_or_say(have, wanted, pending, leased, gates)
                return None
        if have < wanted:
            say(
                f"step {self.step + 1} takes {have} of {wanted} groups: {self._fruitless.arrived} arrived since the"
                f" last step and the rest teach nothing; {HINT}"
            )
        return self._draw(entries, rows, mass, gates, wanted)

    def _draw(
        self,
        entries: list[GroupEntry],
        rows: NDArray[np.int64],
        mass: NDArray[np.float64],
        gates: Gates,
        wanted: int,
    ) -> Batch:
        drawn = self.opinions.draw(entries, rows, mass, gates, wanted, self._rng)
        worst, most = int(drawn.lag.max()), self._settings.admission.max_lag
        assert worst <= most, f"a group of lag {worst} was drawn, max_lag is {most}"
        seen = self._arrived or drawn.entries
        active, reward = int(gates.open.sum()), float(np.mean([entry.c / entry.G for entry in seen]))
        base = [(0, 0)] * len(drawn.entries)
        if self.opinions.reads_base_evidence:
            self._line.call(self._base.sync())
            base = self._base.without(drawn.entries)
        return Batch(drawn, active, reward, base, "" if active else self._why_closed(gates))

    def _why_closed(self, gates: Gates) -> str:
        solved = int((2 * self._mirror.successes > self._mirror.attempts).sum())
        return f"every gate is closed, and {solved} of {len(gates.gate)} problems are solved more often than not"

    def _tidy(self, gates: Gates) -> tuple[list[GroupEntry], NDArray[np.int64], NDArray[np.float64]]:
        """Retire what can never be drawn again; returns what can be drawn now, its problems' rows and masses."""
        config = self._settings.admission
        fresh, expired, done = [], [], []
        for group in self._mirror.pool.values():
            if group.uses >= config.max_uses:
                if group.last_step <= self.covered_step:
                    done.append(group.entry.id)
            elif self.version - group.entry.version_min > config.max_lag:
                expired.append(group.entry.id)
            else:
                fresh.append(group.entry)
        self._retire(done, "used")
        self._retire(expired, "expired")
        rows = np.array([self._mirror.index[entry.problem_id] for entry in fresh], np.int64)
        if not fresh:
            return [], rows, np.zeros(0)
        mass = self.opinions.masses(fresh, rows, gates)
        keep = mass > 0
        self._retire([entry.id for entry, kept in zip(fresh, keep, strict=True) if not kept], "zero_mass")
        return [entry for entry, kept in zip(fresh, keep, strict=True) if kept], rows[keep], mass[keep]

    def _retire(self, ids: Sequence[str], reason: Reason) -> None:
        if ids:
            self._line.call(self._line.store.retire(ids, reason))
            self._mirror.remove(ids)

    def _issue(self, announced_step: int, gates: Gates) -> None:
        """Issue up to the limit and what the pool has room for; nothing once no gate is open."""
        learner, config = self._settings.learner, self._settings.admission
        # Beyond the run's own need only one batch more, to choose from: what the last step leaves over is wasted.
        need = math.ceil(learner.steps * learner.groups_per_step / config.samples_per_insert)
        limit = min(ticket_limit(announced_step, learner.groups_per_step, config), need + learner.groups_per_step)
        room, self._held = self._line.call(self._line.store.room(limit))
        if room > 0 and gates.open.any():
            chosen = self._admission.choose(
                room, chances(gates.open, self._mirror.attempts, self._mirror.successes, config)
            )
            self._line.call(self._line.store.issue([self._mirror.ids[i] for i in chosen], limit))

    def _give_up_or_say(self, have: int, wanted: int, pending: int, leased: int, gates: Gates) -> None:
        now, stall_s = self._clock(), self._settings.learner.stall_s
        absences = self._line.store.link.absences
        if absences > self._absences:  # while the store is away, no actor can be late
            self._absences, self._last_arrival = absences, now
        if not self._mirror.ids:
            raise VergeError(f"run {self._settings.run!r} has no problems; add some before the learner starts")
        if not gates.open.any() and not pending:
            raise NothingLeft(
                f"no active problem is left at step {self.step}: {self._why_closed(gates)}; add harder problems"
            )
        if self._fruitless.over and not have:
            raise VergeError(
                f"{self._fruitless.arrived} groups arrived since step {self.step} and not one teaches anything; {HINT}"
            )
        self._full_since = min(self._full_since, now) if self._held and not pending else math.inf
        if now - self._full_since > SAY_WHY_EVERY_S:  # no ticket is out, and without a step nothing leaves the pool
            raise VergeError(
                f"step {self.step + 1} has {have} of {wanted} groups and will never have more: {self._held}, and groups"
                " that were trained on stay until a checkpoint; raise it or lower learner.checkpoint_every"
            )
        if now - self._last_arrival > stall_s and self._line.call(self._line.store.round_under_way()):
            self._last_arrival = now  # an actor that evaluates takes no ticket once there are newer weights
        if now - self._last_arrival > stall_s:
            raise VergeError(
                f"no group arrived for {now - self._last_arrival:.0f} s (learner.stall_s = {stall_s:g}) while"
                f" {wanted - have} are missing; is an actor running, and does it reach the store?"
            )
        if now - self._said >= SAY_WHY_EVERY_S:
            self._said = now
            say(f"have {have} of {wanted} groups for step {self.step + 1}, because {self._why(pending, leased, gates)}")

    def _why(self, pending: int, leased: int, gates: Gates) -> str:
        since = f"{len(self._arrived)} groups arrived since the last step"
        if self._line.call(self._line.store.round_under_way()):
            since += ", and an actor evaluates"
        beats = self._line.call(self._line.store.actors()).values()
        if all(beat.get("engine") == "starting" for beat in beats):
            return f"no actor has started yet ({pending} tickets wait)"
        if self._held:
            return f"{self._held}: {pending} tickets are out, {leased} of them with an actor; {since}"
        if pending == 0:
            return f"{since}, and no ticket is out: {int(gates.open.sum())} of {len(gates.gate)} problems are active"
        return f"{pending} tickets are out, {leased} of them with an actor; {since}"


class NothingLeft(Exception):
    """The run has reached its end before its last step: no problem teaches any more. The message says why."""


HINT = (
    "are the problems all too easy, too hard, or the verifier always of one mind?"
    " `verge state summary` shows their solve rates"
)


def say(text: str) -> None:
    """One line for the person who watches."""
    print(f"learner: {text}", file=sys.stderr, flush=True)


def plan_of(batch: Batch, shares: list[list[int]]) -> dict[str, Any]:
    """The batch as JSON, for every rank."""
    drawn = batch.drawn
    return {
        "ids": [entry.id for entry in drawn.entries],
        "success": drawn.success.tolist(),
        "failure": drawn.failure.tolist(),
        "weight": drawn.weight.tolist(),
        "base": batch.base,
        "shares": shares,
    }
