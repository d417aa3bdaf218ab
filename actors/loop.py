"""The rollout loop of one actor: tickets in, verified rollout groups out."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.config import ActorConfig, EvaluationConfig, SamplingConfig, VerifierConfig
from actors.generates import Generates
from actors.judging import Judge
from actors.log import SAY_WHY_EVERY_S, over, say
from actors.prompts import EncodedProblems
from actors.rounds import Rounds, share
from actors.verifiers import Verifiers
from actors.weights import CannotRead, Snapshots
from store.client import Store
from store.errors import VergeError
from store.wire import Completion, Problem, RolloutGroup, Ticket

HEARTBEAT_S = 1.0
TRY_AGAIN_S = 10.0
"""Between attempts to read a snapshot that cannot be read; a newer one is tried at once."""
Observe = Callable[[Mapping[str, object]], None]
"""Told each heartbeat as it is sent."""


@dataclass(frozen=True, slots=True)
class ActorSettings:
    """All an actor needs to know; everything else it learns from the store."""

    name: str
    run: str
    store_url: str
    store_password: str | None
    lease_s: float
    patience_s: float
    payload_ttl_s: int
    max_lag: int
    model: Path
    actor: ActorConfig
    sampling: SamplingConfig
    verifier: VerifierConfig
    evaluation: EvaluationConfig
    seed: int


class Actor:
    """One engine, its tickets, and what became of them.

    waiting for weights ──▶ running ──SIGTERM / run done──▶ draining ──▶ stopped
                               └──engine dead, errors above the limit──▶ failed

    Invariant: each ticket taken is held in exactly one rollout task, and leaves by a commit, by a refusal, or by
    being given back. A kill −9 leaves it leased, and the lease runs out.

    While it has an evaluation round (actors/rounds.py), it loads no newer weights; once there are any, it takes no
    ticket either, so that what it writes is never older than admission allows for. A run that is done waits for it.
    """

    def __init__(
        self,
        settings: ActorSettings,
        store: Store,
        engine: Generates,
        tokenizer: Any,
        snapshots: Snapshots,
        observe: Observe | None = None,
    ) -> None:
        self._settings = settings
        self._observe = observe
        self._store = store
        self._engine = engine
        self._snapshots = snapshots
        self._verifiers = Verifiers(settings.verifier)
        self._judge = Judge(self._verifiers, tokenizer, settings.actor.max_error_share)
        limits = (tokenizer, settings.actor.context_tokens, settings.sampling.max_completion_tokens)
        self._problems = EncodedProblems(self._find, *limits)
        held_out = EncodedProblems(store.held_out_problem, *limits)
        how = (settings.evaluation, settings.sampling.group_size)
        self._rounds = Rounds(settings.name, store, engine, held_out, self._judge, *how)
        self._held: dict[str, Ticket] = {}
        self._rollouts: set[asyncio.Task[None]] = set()
        self._verifying = 0
        self._wants_full = False
        self._behind = False
        self._draining = asyncio.Event()
        self._update_s = 0.0
        self._idle_s = 0.0
        self._began = time.monotonic()

    async def run(self) -> None:
        """Roll out until the run is done or the process is asked to stop.

        Raises:
            VergeError: the engine died, or the verifier fails too often to be believed.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        services = [
            asyncio.create_task(service)
            for service in (self._take_tickets(), self._follow_weights(), self._keep_alive())
        ]
        try:
            await self._drained_or_failed(services)
        except Exception as error:
            if self._engine.death is not None:  # whoever noticed it first
                raise VergeError(f"the vLLM engine died: {self._engine.death}") from error
            raise
        finally:
            for task in (*services, *self._rollouts):
                task.cancel()
            await asyncio.gather(*services, *self._rollouts, return_exceptions=True)
            with contextlib.suppress(VergeError):  # the store may be what failed; the leases then run out
                await self._store.give_back(self._settings.name, list(self._held.values()))
                await self._rounds.give_back()
            self._verifiers.close()

    async def _drained_or_failed(self, services: list[asyncio.Task[None]]) -> None:
        draining = asyncio.create_task(self._draining.wait())
        done, _ = await asyncio.wait([draining, *services], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        for task in done - {draining}:
            task.result()
        with contextlib.suppress(VergeError):
            await self._rounds.give_back(unless_begun=True)
        if self._rollouts:
            say(f"draining {len(self._rollouts)} groups, at most {self._settings.actor.drain_grace_s:g} s")
            await asyncio.wait(self._rollouts, timeout=self._settings.actor.drain_grace_s)

    def _asked_to_stop(self) -> None:
        self._draining.set()
        self._store.link.hurry(self._settings.actor.drain_grace_s)

    async def _take_tickets(self) -> None:
        waiting_since = time.monotonic()
        said = waiting_since
        while not self._draining.is_set():
            self._engine.load.stepped.clear()
            if (free := self._free()) <= 0 or self._behind:
                self._begin(self._rounds.chunks(free))
                await self._engine.load.stepped.wait()
                self._raise_failures()
                continue
            idle_since = None if self._rollouts else time.monotonic()
            training = len(self._held) - self._verifying
            free -= self._begin(self._rounds.chunks(share(free, training, self._rounds.sampling)))
            tickets = await self._store.take(self._settings.name, free, block_ms=0 if self._rounds.left else 200)
            self._held |= {ticket.id: ticket for ticket in tickets}
            free -= self._begin([self._roll_out(ticket) for ticket in tickets])
            self._begin(self._rounds.chunks(free))
            self._raise_failures()
            now = time.monotonic()
            if idle_since is not None:
                self._idle_s += now - idle_since
            if tickets or self._rollouts:
                waiting_since = now
            elif now - max(said, waiting_since) > SAY_WHY_EVERY_S:
                said = now
                say(f"idle for {now - waiting_since:.0f} s: the learner has issued no ticket that is not taken")

    def _begin(self, work: list[Coroutine[Any, Any, None]]) -> int:
        """Run each of these in a task; returns how many they are."""
        for one in work:
            task = asyncio.create_task(one)
            task.add_done_callback(lambda _: self._engine.load.stepped.set())
            self._rollouts.add(task)
        return len(work)

    def _free(self) -> int:
        """Groups to begin now: what the engine has room for, unless a whole batch of it waits to be verified."""
        limit = max(1, self._settings.actor.max_sequences // self._settings.sampling.group_size)
        given = len(self._held) - self._verifying + self._rounds.sampling
        return min(self._engine.room(given), limit - self._verifying - self._rounds.verifying)

    def _raise_failures(self) -> None:
        for task in [task for task in self._rollouts if task.done()]:
            self._rollouts.discard(task)
            task.result()

    async def _roll_out(self, ticket: Ticket) -> None:
        problem, prompt_ids = await self._problems.get(ticket.problem_id)
        samples = await self._engine.generate(prompt_ids, problem.max_completion_tokens)
        self._verifying += 1
        try:
            judged = await self._judge.judge(problem, samples)
            completions = tuple(
                Completion(made.token_ids, made.logprobs, made.spans, one.reward, one.verdict, made.finish_reason)
                for made, one in zip(samples, judged, strict=True)
            )
            await self._store.commit(self._settings.name, RolloutGroup(ticket.id, problem.id, prompt_ids, completions))
        finally:
            self._verifying -= 1
        del self._held[ticket.id]

    async def _find(self, problem_id: str) -> Problem | None:
        found = await self._store.problem(problem_id)
        return None if found is None else found[0]

    async def _follow_weights(self) -> None:
        """Load what the learner announces. What cannot be read is said, and the weights that are there go on serving,
        as long as what they write is not too old to be trained on.

        Raises:
            VergeError: it is.
        """
        await self._evaluate_if_due()
        while True:
            await self._stay_for_evaluation()
            try:
                snapshot = await self._snapshots.newest(self._engine.version, block_ms=500)
            except CannotRead as error:
                self._wants_full = True
                newest = await self._store.manifest()
                version, limit = newest.version if newest else -1, self._settings.max_lag
                if (lag := version - self._engine.version) > limit:
                    raise VergeError(
                        f"{error}; version {self._engine.version}, which is loaded, is {lag} behind, more than"
                        f" admission.max_lag = {limit}: nothing that it generates would be trained on"
                    ) from None
                say(f"goes on with version {self._engine.version}: {error}")
                self._catch_up()
                await self._store.wait_manifest(version, block_ms=int(1000 * TRY_AGAIN_S))
                continue
            if snapshot is not None:
                self._wants_full = False
                manifest = snapshot.manifest
                paused_s = await self._engine.update(manifest.version, snapshot.folder)
                self._update_s += paused_s
                say(
                    f"version {manifest.version} ({manifest.format}, {manifest.bytes / 1e6:.3g} MB) loaded "
                    f"{time.time() - manifest.time_s:.1f} s after it was written; paused for {1e3 * paused_s:.0f} ms"
                )
                self._catch_up()
                await self._evaluate_if_due()

    async def _evaluate_if_due(self) -> None:
        if not self._draining.is_set():
            await self._rounds.begin_if_due(self._engine.version)

    async def _stay_for_evaluation(self) -> None:
        """Return once there are newer weights and no round under way."""
        while self._rounds.version is not None:
            self._snapshots.reads_from = None  # all is loaded: the learner need not keep it for us
            newer = await self._store.wait_manifest(self._engine.version, block_ms=500)
            if newer is not None and self._rounds.version is not None:
                self._behind = True
                await self._rounds.over()

    def _catch_up(self) -> None:
        """Take tickets again, with the weights that are loaded now."""
        self._behind = False
        self._engine.load.stepped.set()

    async def _keep_alive(self) -> None:
        """Heartbeat, leases, the engine's pulse, and the end of the run."""
        renewed = time.monotonic()
        tokens, at = 0, renewed
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._engine.death is not None:
                raise VergeError("the vLLM engine does not answer")
            now = time.monotonic()
            reads_from = self._snapshots.reads_from
            beat = {
                **({} if reads_from is None else {"reads_from": reads_from}),
                **({"wants_full": True} if self._wants_full else {}),
                **({} if self._rounds.version is None else {"evaluating": self._rounds.version}),
                "engine": "vllm",
                "version": self._engine.version,
                "tickets": len(self._held),
                "verifying": self._verifying,
                "tokens_per_s": round((self._judge.tokens - tokens) / (now - at), 1),
                "tokens": self._judge.tokens,
                "completions": self._judge.completions,
                "errors": self._judge.errors,
                "update_s": round(self._update_s, 3),
                "idle_s": round(self._idle_s, 1),
                "up_s": round(now - self._began, 1),
                "time_s": time.time(),
            }
            await self._store.beat(self._settings.name, beat)
            if self._observe is not None:
                self._observe(beat)
            tokens, at = self._judge.tokens, now
            if now - renewed > self._settings.lease_s / 3:
                await self._store.renew(self._settings.name, list(self._held.values()))
                await self._rounds.renew()
                renewed = now
            phase, reason = await self._store.phase()
            if phase == "done" and self._rounds.version is not None:
                self._behind = True  # nobody trains any more: the round is all that there is to do
            elif phase in ("done", "failed"):
                say(over(phase, reason))
                self._draining.set()
