"""The evaluation rounds of one actor: when it has one, what is still to be sampled, and what was counted."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.config import EvaluationConfig
from actors.engine import Sample
from actors.generates import Generates
from actors.judging import Count, Judge, Judged
from actors.log import say
from actors.prompts import EncodedProblems
from store.client import Store
from store.evaluations import Claim, Round, Tally


class Rounds:
    """At most one round at a time.

    none ──claim──▶ under way ──all is counted──▶ finished ──▶ none
                       └──given back, or another actor's by now──▶ none

    While one is under way the engine keeps its version, so that every completion of a round is of that version. It is
    sampled in chunks, each as large as a group at most. What a round has counted that is given back or lost is
    dropped with it; chunks of it that are in the engine end there, and count nowhere.
    """

    def __init__(
        self,
        actor: str,
        store: Store,
        engine: Generates,
        problems: EncodedProblems,
        judge: Judge,
        config: EvaluationConfig,
        group_size: int,
    ) -> None:
        self._actor, self._store, self._engine = actor, store, engine
        self._problems, self._judge = problems, judge
        self._config, self._group_size = config, group_size
        self._round: _UnderWay | None = None
        self._over = asyncio.Event()
        self._lease = asyncio.Lock()
        self.sampling = 0
        """Chunks that the engine was given and has not returned."""
        self.verifying = 0
        """Chunks that it has returned, and that are being judged."""

    @property
    def version(self) -> int | None:
        """That of the round under way; None while there is none."""
        return None if self._round is None else self._round.claim.version

    @property
    def left(self) -> int:
        """Chunks of the round that are still to be begun."""
        return 0 if self._round is None else len(self._round.chunks)

    async def begin_if_due(self, version: int) -> None:
        """Begin a round at the version that the engine has just loaded, if one is due and nobody else has it."""
        if not self._config.every or self._round is not None:
            return
        claim = await self._store.claim_round(version, self._config.every)
        if claim is None:
            return
        ids = await self._store.held_out_ids()
        if not ids:  # the learner, which enters them, was started before there were to be evaluations
            await self._store.give_round_back(claim)
            return
        self._round = _UnderWay(claim, ids, self._config.samples_per_problem, self._group_size)
        self._over.clear()
        say(f"evaluates version {version}: {self._config.samples_per_problem} completions of {len(ids)} problems")

    def chunks(self, most: int) -> list[Coroutine[Any, Any, None]]:
        """The next chunks, at most so many; each has to be run, and then samples, judges and counts."""
        begun: list[Coroutine[Any, Any, None]] = []
        while self._round is not None and self._round.chunks and len(begun) < most:
            begun.append(self._chunk(self._round, *self._round.chunks.popleft()))
        self.sampling += len(begun)
        return begun

    async def _chunk(self, round_: "_UnderWay", place: int, count: int) -> None:
        try:
            problem, prompt_ids = await self._problems.get(round_.ids[place])
            samples = await self._engine.generate(prompt_ids, problem.max_completion_tokens, count)
        finally:
            self.sampling -= 1
        self.verifying += 1
        try:
            judged = await self._judge.judge(problem, samples)
        finally:
            self.verifying -= 1
        if round_ is self._round:
            round_.count(place, samples, judged)
            if not round_.missing:
                await self._finish(round_)

    async def _finish(self, round_: "_UnderWay") -> None:
        self._end()  # first: the lease of a round that is finished cannot be renewed
        found, claim = round_.found(self._actor), round_.claim
        if not await self._store.finish_round(claim, found):
            _say_lost(claim)
            return
        say(f"version {claim.version} is evaluated, in {found.time_s - found.began_s:.1f} s")

    async def renew(self) -> None:
        """Keep the round's lease; a round that another actor has by now is dropped."""
        async with self._lease:  # else a lease that has just been given back could be taken again
            if (kept := self._round) is None or await self._store.renew_round(kept.claim):
                return
            if self._round is kept:  # else it was finished meanwhile
                self._end()
                _say_lost(kept.claim)

    async def give_back(self, *, unless_begun: bool = False) -> None:
        """Let another actor have the round; with `unless_begun`, only while not all of it is in the engine."""
        async with self._lease:
            if self._round is None or (unless_begun and not self._round.chunks):
                return
            claim = self._round.claim
            self._end()
            await self._store.give_round_back(claim)
        say(f"gives the evaluation of version {claim.version} back")

    async def over(self) -> None:
        """Wait for the end of the round under way, whatever becomes of it."""
        await self._over.wait()

    def _end(self) -> None:
        self._round = None
        self._over.set()


def share(free: int, training: int, evaluating: int) -> int:
    """How much of the engine's room a round takes before there are tickets for the rest: up to half of what it holds.

    Training has the other half, and the round gets what training has no ticket for. So neither waits for the end of
    the other, however long that is or however fast tickets come.

    Args:
        free: groups that the engine has room for.
        training, evaluating: groups, and chunks, that it was given and has not returned.
    """
    half = -(-(free + training + evaluating) // 2)
    return max(0, min(free, half - evaluating))


def _say_lost(claim: Claim) -> None:
    say(f"the evaluation of version {claim.version} is dropped: its lease ran out, and another actor has begun one")


@dataclass(slots=True)
class _UnderWay:
    """A round, and what was counted of it."""

    claim: Claim
    ids: Sequence[str]
    samples: int
    chunk: int
    began_s: float = field(default_factory=time.time)
    chunks: deque[tuple[int, int]] = field(default_factory=deque)
    """(place of the problem, completions) of those still to be begun."""
    missing: int = 0
    """Completions that are not counted yet."""
    _counts: dict[int, Count] = field(default_factory=dict)
    """Of the problems that are begun and not done."""
    _tallies: dict[int, Tally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [min(self.chunk, self.samples - done) for done in range(0, self.samples, self.chunk)]
        self.chunks.extend((place, size) for place in range(len(self.ids)) for size in sizes)
        self.missing = self.samples * len(self.ids)

    def count(self, place: int, samples: Sequence[Sample], judged: Sequence[Judged]) -> None:
        versions = {span.version for sample in samples for span in sample.spans}
        assert versions <= {self.claim.version}, f"a round at {self.claim.version} has tokens of versions {versions}"
        count = self._counts.setdefault(place, Count(self.ids[place]))
        count.add(samples, judged)
        self.missing -= len(samples)
        if count.completions == self.samples:
            self._tallies[place] = self._counts.pop(place).tally  # which keeps no texts

    def found(self, actor: str) -> Round:
        tallies = tuple(self._tallies[place] for place in range(len(self.ids)))
        claim = self.claim
        return Round(claim.version, claim.step, actor, self.began_s, time.time(), self.samples, tallies)
