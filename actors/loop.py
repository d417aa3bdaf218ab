"""The rollout loop of one actor: tickets in, verified rollout groups out."""

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.config import ActorConfig, SamplingConfig, VerifierConfig
from actors.engine import Engine, EngineSettings, Sample
from actors.environment import machine_cores
from actors.generates import Generates
from actors.prompts import encode_prompts
from actors.verifiers import Verifiers
from actors.weights import CannotRead, Snapshots, scratch_folder
from store.client import Store
from store.errors import VergeError
from store.wire import Completion, Problem, RolloutGroup, Ticket, Verdict

SAY_WHY_EVERY_S = 10.0
HEARTBEAT_S = 1.0
TRY_AGAIN_S = 10.0
"""Between attempts to read a snapshot that cannot be read; a newer one is tried at once."""
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
        self, settings: ActorSettings, store: Store, engine: Generates, tokenizer: Any, snapshots: Snapshots
    ) -> None:
        self._settings = settings
        self._store = store
        self._engine = engine
        self._snapshots = snapshots
        self._tokenizer = tokenizer
        self._verifiers = Verifiers(settings.verifier)
        self._problems: dict[str, tuple[Problem, np.ndarray]] = {}
        self._held: dict[str, Ticket] = {}
        self._rollouts: set[asyncio.Task[None]] = set()
        self._verifying = 0
        self._wants_full = False
        self._draining = asyncio.Event()
        self._completions = 0
        self._errors = 0
        self._tokens = 0
        self._update_s = 0.0
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
            tickets = await self._store.take(self._settings.name, free, block_ms=200)
            self._held |= {ticket.id: ticket for ticket in tickets}
            for ticket in tickets:
                task = asyncio.create_task(self._roll_out(ticket))
                task.add_done_callback(lambda _: self._engine.load.stepped.set())
                self._rollouts.add(task)
            self._raise_failures()
            now = time.monotonic()
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
            completions = tuple(await asyncio.gather(*(self._judge(problem, sample) for sample in samples)))
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

    async def _judge(self, problem: Problem, sample: Sample) -> Completion:
        if sample.complete:
            text = self._tokenizer.decode(sample.token_ids, skip_special_tokens=True)
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
        """Load what the learner announces. What cannot be read is said, and the weights that are there go on serving:
        admission bounds how old they may become."""
        while True:
            try:
                snapshot = await self._snapshots.newest(self._engine.version, block_ms=500)
            except CannotRead as error:
                self._wants_full = True
                say(f"goes on with version {self._engine.version}: {error}")
                newest = await self._store.manifest()
                await self._store.wait_manifest(newest.version if newest else -1, block_ms=int(1000 * TRY_AGAIN_S))
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
            await self._store.beat(
                self._settings.name,
                {
                    **({} if reads_from is None else {"reads_from": reads_from}),
                    **({"wants_full": True} if self._wants_full else {}),
                    "engine": "vllm",
                    "version": self._engine.version,
                    "tickets": len(self._held),
                    "tokens_per_s": round((self._tokens - tokens) / (now - at), 1),
                    "completions": self._completions,
                    "errors": self._errors,
                    "update_s": round(self._update_s, 3),
                    "up_s": round(now - self._began, 1),
                },
            )
            tokens, at = self._tokens, now
            if now - renewed > self._settings.lease_s / 3:
                await self._store.renew(self._settings.name, list(self._held.values()))
                renewed = now
            phase, reason = await self._store.phase()
            if phase in ("done", "failed"):
                say(f"the run is {phase}{': ' + reason if reason else ''}")
                self._draining.set()


def _stop_starting(*_: object) -> None:
    """End an engine that is starting as an error would: ended by the signal itself, it would leave its processes."""
    raise VergeError("stopped on request, while its engine was starting")


async def run_actor(settings: ActorSettings) -> None:
    """Connect, wait for the weights to serve, start the engine on them, and roll out until the run ends."""
    where = (settings.store_url, settings.run, settings.store_password, settings.lease_s)
    store = await Store.connect(*where, patience_s=settings.patience_s, payload_ttl_s=settings.payload_ttl_s)
    try:
        with scratch_folder() as scratch:
            await _serve(settings, store, Snapshots(store, scratch))
    finally:
        await store.close()


async def _serve(settings: ActorSettings, store: Store, snapshots: Snapshots) -> None:
    from transformers import AutoTokenizer

    snapshot = None
    began = said = time.monotonic()
    while snapshot is None:
        snapshot = await snapshots.newest(-1, block_ms=1000)
        if time.monotonic() - said > SAY_WHY_EVERY_S:
            said = time.monotonic()
            say(f"waiting for {said - began:.0f} s for the learner to announce its first weights")
    version, folder = snapshot.manifest.version, snapshot.folder
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    signal.signal(signal.SIGTERM, _stop_starting)
    # The learner keeps what an engine that starts, for minutes perhaps, is going to read.
    await store.beat(settings.name, {"engine": "starting", "reads_from": snapshots.reads_from})
    engine = await Engine.start(
        engine_settings(settings.model, version, folder, tokenizer, settings.actor, settings.sampling, settings.seed)
    )
    say(f"generating with version {version} from {folder}")
    try:
        await Actor(settings, store, engine, tokenizer, snapshots).run()
    finally:
        await engine.close()


def engine_settings(
    model: Path, version: int, weights: Path, tokenizer: Any, actor: ActorConfig, sampling: SamplingConfig, seed: int
) -> EngineSettings:
    """What an engine is started with to serve `weights`, a version of `model`."""
    return EngineSettings(
        model=weights,
        version=version,
        dtype=actor.dtype,
        context_tokens=actor.context_tokens,
        max_completion_tokens=sampling.max_completion_tokens,
        group_size=sampling.group_size,
        temperature=sampling.temperature,
        stop_token_ids=stop_token_ids(model, tokenizer),
        max_sequences=actor.max_sequences,
        tensor_parallel=actor.tensor_parallel,
        gpu_memory_share=actor.gpu_memory_share,
        cpu_kv_cache_gib=actor.cpu_kv_cache_gib,
        cpu_cores=None if actor.cpu_cores is None else machine_cores(actor.cpu_cores),
        update=actor.update,
        seed=seed,
    )


def stop_token_ids(model: Path, tokenizer: Any) -> tuple[int, ...]:
    """Every end-of-sequence id the model names: its generation config's and its tokenizer's.

    Raises:
        VergeError: it names none, so that no completion could ever be finished.
    """
    from transformers import GenerationConfig

    found: set[int] = set()
    with contextlib.suppress(OSError):  # a model without generation_config.json
        named = GenerationConfig.from_pretrained(model).eos_token_id
        found.update(named if isinstance(named, list) else [named] if named is not None else [])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    if not found:
        raise VergeError(f"model {model} names no end-of-sequence token, so no completion could ever be finished")
    return tuple(sorted(found))


def say(message: str) -> None:
    """One line to the log of this process."""
    print(f"actor: {message}", file=sys.stderr, flush=True)
