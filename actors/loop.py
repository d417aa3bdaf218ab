"""The rollout loop of one actor: tickets in, verified rollout groups out."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.config import ActorConfig, SamplingConfig, VerifierConfig
from actors.engine import Sample
from actors.generates import Generates
from actors.prompts import encode_prompts
from actors.verifiers import Verifiers
from actors.verifiers.registry import answers_at_once
from actors.weights import CannotRead, Snapshots
from store.client import Store
from store.errors import VergeError
from store.wire import Completion, Problem, RolloutGroup, Ticket, Verdict

SAY_WHY_EVERY_S = 10.0
HEARTBEAT_S = 1.0
TRY_AGAIN_S = 10.0
"""Between attempts to read a snapshot that cannot be read; a newer one is tried at once."""
Observe = Callable[[Mapping[str, object]], None]
"""Told each heartbeat as it is sent."""
KEPT_PROBLEMS = 4096
"""Problems whose text an actor keeps, encoded; another comes from the store again."""


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
    seed: int


class Actor:
    """One engine, its tickets, and what became of them.

    waiting for weights ──▶ running ──SIGTERM / run done──▶ draining ──▶ stopped
                               └──engine dead, errors above the limit──▶ failed

    Invariant: each ticket taken is held in exactly one rollout task, and leaves by a commit, by a refusal, or by
    being given back. A kill −9 leaves it leased, and the lease runs out.
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
        self._tokenizer = tokenizer
        self._verifiers = Verifiers(settings.verifier)
        self._problems: dict[str, tuple[Problem, np.ndarray]] = {}
        self._held: dict[str, Ticket] = {}
        self._rollouts: set[asyncio.Task[None]] = set()
        self._verifying = 0
        self._turn = asyncio.Lock()
        self._wants_full = False
        self._draining = asyncio.Event()
        self._completions = 0
        self._errors = 0
        self._tokens = 0
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
            self._verifiers.close()

    async def _drained_or_failed(self, services: list[asyncio.Task[None]]) -> None:
        draining = asyncio.create_task(self._draining.wait())
        done, _ = await asyncio.wait([draining, *services], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        for task in done - {draining}:
            task.result()
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
            if (free := self._free()) <= 0:
                await self._engine.load.stepped.wait()
                self._raise_failures()
                continue
            idle_since = None if self._rollouts else time.monotonic()
            tickets = await self._store.take(self._settings.name, free, block_ms=200)
            self._held |= {ticket.id: ticket for ticket in tickets}
            for ticket in tickets:
                task = asyncio.create_task(self._roll_out(ticket))
                task.add_done_callback(lambda _: self._engine.load.stepped.set())
                self._rollouts.add(task)
            self._raise_failures()
            now = time.monotonic()
            if idle_since is not None:
                self._idle_s += now - idle_since
            if tickets or self._rollouts:
                waiting_since = now
            elif now - max(said, waiting_since) > SAY_WHY_EVERY_S:
                said = now
                say(f"idle for {now - waiting_since:.0f} s: the learner has issued no ticket that is not taken")

    def _free(self) -> int:
        """Tickets to take now: what the engine has room for, unless a whole batch of it waits to be verified."""
        limit = max(1, self._settings.actor.max_sequences // self._settings.sampling.group_size)
        return min(self._engine.room(len(self._held) - self._verifying), limit - self._verifying)

    def _raise_failures(self) -> None:
        for task in [task for task in self._rollouts if task.done()]:
            self._rollouts.discard(task)
            task.result()

    async def _roll_out(self, ticket: Ticket) -> None:
        problem, prompt_ids = await self._problem(ticket.problem_id)
        samples = await self._engine.generate(prompt_ids, problem.max_completion_tokens)
        self._verifying += 1
        try:
            completions = await self._judged(problem, samples)
            group = RolloutGroup(ticket.id, problem.id, prompt_ids, completions)
            self._check_errors(completions)
            await self._store.commit(self._settings.name, group)
        finally:
            self._verifying -= 1
        del self._held[ticket.id]

    async def _problem(self, problem_id: str) -> tuple[Problem, np.ndarray]:
        if problem_id not in self._problems:
            found = await self._store.problem(problem_id)
            if found is None:
                raise VergeError(f"a ticket names problem {problem_id!r}, which the store does not have")
            sampling, actor = self._settings.sampling, self._settings.actor
            prompts = encode_prompts([found[0]], self._tokenizer, actor.context_tokens, sampling.max_completion_tokens)
            self._problems[problem_id] = found[0], prompts[problem_id]
            if len(self._problems) > KEPT_PROBLEMS:
                del self._problems[next(iter(self._problems))]
            return found[0], prompts[problem_id]
        return self._problems[problem_id]

    async def _judged(self, problem: Problem, samples: list[Sample]) -> tuple[Completion, ...]:
        async with self._turn:  # one group in a round of the event loop: short completions end many at once
            await asyncio.sleep(0)
        if answers_at_once(problem.verifier):  # tasks that never wait would cost more than what they do
            return tuple([await self._judge(problem, sample) for sample in samples])
        return tuple(await asyncio.gather(*(self._judge(problem, sample) for sample in samples)))

    async def _judge(self, problem: Problem, sample: Sample) -> Completion:
        if sample.complete:
            text = self._tokenizer.decode(sample.token_ids.tolist(), skip_special_tokens=True)
            reward, verdict = await self._verifiers.verify(problem, text, sample.finish_reason)
        else:
            reward, verdict = 0.0, Verdict.ERROR
        return Completion(sample.token_ids, sample.logprobs, sample.spans, reward, verdict, sample.finish_reason)

    def _check_errors(self, completions: tuple[Completion, ...]) -> None:
        self._completions += len(completions)
        self._tokens += sum(len(completion.token_ids) for completion in completions)
        self._errors += sum(completion.verdict is Verdict.ERROR for completion in completions)
        share, limit = self._errors / self._completions, self._settings.actor.max_error_share
        if self._completions >= 64 and share > limit:
            raise VergeError(
                f"{self._errors} of {self._completions} completions ended in an error of the verifier or the engine,"
                f" more than actor.max_error_share = {limit:g}; the last: {self._verifiers.last_error or 'abort'}"
            )

    async def _follow_weights(self) -> None:
        """Load what the learner announces. What cannot be read is said, and the weights that are there go on serving,
        as long as what they write is not too old to be trained on.

        Raises:
            VergeError: it is.
        """
        while True:
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
                "engine": "vllm",
                "version": self._engine.version,
                "tickets": len(self._held),
                "verifying": self._verifying,
                "tokens_per_s": round((self._tokens - tokens) / (now - at), 1),
                "tokens": self._tokens,
                "completions": self._completions,
                "errors": self._errors,
                "update_s": round(self._update_s, 3),
                "idle_s": round(self._idle_s, 1),
                "up_s": round(now - self._began, 1),
                "time_s": time.time(),
            }
            await self._store.beat(self._settings.name, beat)
            if self._observe is not None:
                self._observe(beat)
            tokens, at = self._tokens, now
            if now - renewed > self._settings.lease_s / 3:
                await self._store.renew(self._settings.name, list(self._held.values()))
                renewed = now
            phase, reason = await self._store.phase()
            if phase in ("done", "failed"):
                say(f"the run is {phase}{': ' + reason if reason else ''}")
                self._draining.set()


def say(message: str) -> None:
    """One line to the log of this process."""
    print(f"actor: {message}", file=sys.stderr, flush=True)
