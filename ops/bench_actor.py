"""`verge bench actor`: an actor with store, verification and commits, against its own vLLM engine driven bare."""

import asyncio
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.engine import Engine
from actors.loop import Actor, ActorSettings
from actors.prompts import encode_prompts
from actors.settings import engine_settings
from actors.weights import Snapshots
from learner.publish import Publisher
from learner.store_thread import StoreThread
from ops.config import RunConfig
from ops.figures import at_most, check
from ops.measured import Measured, measured
from ops.prepare import Prepared, enter_store, load_tokenizer, prepare
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer

PUBLISHED = 3
"""Snapshots that are published while the actor generates, to time updates."""
SHARE = 0.95
LAG_MS = 20.0
PAUSE_MS = 1000.0
FIRST_TOKEN_MS = 10_000.0


def run(config: RunConfig, groups: int, rounds: int) -> dict[str, Any]:
    """Measure one engine on this machine, with the store beside it; bare and as an actor in turn, `rounds` times each.

    Bare: every prompt is sent to vLLM at once, and what comes back is dropped. As an actor: tickets of the same prompts
    are issued, and time ends with the last commit. Which of the two comes first changes from round to round. Both
    sample at new weights each time, so that no prefix is cached. Then weights are published while the actor generates.

    Args:
        config: model, problems, sampling and actor are used.
        groups: rollout groups of one measurement.

    Returns:
        What `figures` makes of it.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="verge-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        import uvloop

        return uvloop.run(_Bench(config, prepared, server, Path(folder), groups).measure(rounds))


@dataclass(frozen=True, slots=True)
class Update:
    """One publication, in seconds: how long no token was generated, and from the learner's call to a new token."""

    paused_s: float
    first_token_s: float


def figures(pairs: Sequence[tuple[Measured, Measured]], updates: Sequence[Update]) -> dict[str, Any]:
    """What the measurements amount to.

    Args:
        pairs: of each round, the engine bare and as an actor.

    Returns:
        `checks`: throughput_over_bare, the median of the rounds' ratios of tokens per second; loop_lag_p99_ms of the
        actor's event loop; update_pause_ms and publish_to_first_token_ms, medians. Beside them the same lag of the bare
        engine's loop, and of either the part in which the loop itself was computing (the rest is a machine that was
        busy with others); what the actor's own work costs of CPU, in microseconds per token; throughput_over_bare as it
        would be if CPU were all that counted, which the machine's other work changes least; and the rounds.
    """
    ratio = _median(actor.tokens / actor.seconds * bare.seconds / bare.tokens for bare, actor in pairs)
    (bare_lag, bare_own), (lag, own) = (
        1e3 * np.quantile([lags for each in kind for lags in each.lags], 0.99, axis=0)
        for kind in zip(*pairs, strict=True)
    )
    pause, first = 1e3 * _median(u.paused_s for u in updates), 1e3 * _median(u.first_token_s for u in updates)
    return {
        "checks": [
            check("throughput_over_bare", ratio, SHARE, ratio >= SHARE),
            check("loop_lag_p99_ms", float(lag), LAG_MS, bool(lag < LAG_MS)),
            at_most("update_pause_ms", pause, PAUSE_MS),
            at_most("publish_to_first_token_ms", first, FIRST_TOKEN_MS),
        ],
        "loop_lag_of_own_work_p99_ms": float(own),
        "bare_loop_lag_p99_ms": float(bare_lag),
        "bare_loop_lag_of_own_work_p99_ms": float(bare_own),
        "own_cpu_us_per_token": 1e6 * _median(a.cpu_s / a.tokens - b.cpu_s / b.tokens for b, a in pairs),
        "cpu_over_bare": _median(b.all_cpu_s / b.tokens * a.tokens / a.all_cpu_s for b, a in pairs),
        "rounds": [{"bare": bare.shown, "actor": actor.shown} for bare, actor in pairs],
    }


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


class _Bench:
    """One engine and the actor on it, in one run of the store. While no ticket is out, the actor waits."""

    def __init__(
        self, config: RunConfig, prepared: Prepared, server: EmbeddedServer, folder: Path, groups: int
    ) -> None:
        self._config, self._prepared, self._folder = config, prepared, folder
        self._where = (server.url, config.name, server.password)
        train = list(prepared.problems.train)
        self._ids = [train[i % len(train)].id for i in range(groups)]
        self._tokenizer = load_tokenizer(prepared.model)
        context, completion = config.actor.context_tokens, config.sampling.max_completion_tokens
        self._prompts = encode_prompts(train, self._tokenizer, context, completion)
        self._longest = {problem.id: problem.max_completion_tokens or completion for problem in train}
        self._version = self._issued = 0
        self._read = "0-0"

    async def measure(self, rounds: int) -> dict[str, Any]:
        config, model = self._config, self._prepared.model
        self._store = await Store.connect(*self._where)
        client = await Store.connect(*self._where)
        await enter_store(self._store, config, self._prepared)
        self._engine = await Engine.start(
            engine_settings(model, 0, model, self._tokenizer, config.actor, config.sampling, config.seed)
        )
        try:
            snapshots = Snapshots(client, self._folder / "scratch")
            actor = Actor(self._settings(), client, self._engine, self._tokenizer, snapshots)
            self._actor = asyncio.create_task(actor.run())
            await self._bare()
            await self._as_actor()  # what is done once is done: problems fetched, prompts encoded, connections made
            pairs = [await self._pair(bare_first=number % 2 == 0) for number in range(rounds)]
            updates = await self._publish()
            await self._store.set_phase("done")
            await self._actor
        finally:
            await self._engine.close()
            await client.close()
            await self._store.close()
        load = self._engine.load
        facts = {
            "model": str(model),
            "groups": len(self._ids),
            "queued_sequences": load.queue,
            "prompt_tokens_shared": load.shared / load.prompt_tokens,
        }
        return facts | figures(pairs, updates)

    async def _pair(self, bare_first: bool) -> tuple[Measured, Measured]:
        if bare_first:
            return await self._bare(), await self._as_actor()
        actor = await self._as_actor()
        return await self._bare(), actor

    def _settings(self) -> ActorSettings:
        config, (url, run, password) = self._config, self._where
        return ActorSettings(
            name="bench",
            run=run,
            store_url=url,
            store_password=password,
            lease_s=config.store.lease_s,
            patience_s=config.store.patience_s,
            payload_ttl_s=config.store.payload_ttl_s,
            max_lag=config.admission.max_lag,
            model=self._prepared.model,
            actor=config.actor,
            sampling=config.sampling,
            verifier=config.verifier,
            seed=config.seed,
        )

    async def _fresh_weights(self) -> None:
        """A new version of the same weights: prefixes cached for an earlier measurement are not found in this one."""
        self._version += 1
        await self._engine.update(self._version, self._prepared.model)

    async def _bare(self) -> Measured:
        """The engine alone."""
        await self._fresh_weights()
        size = self._config.sampling.group_size

        async def tokens_of(name: str) -> int:
            request = self._engine.request(self._prompts[name], size, self._longest[name])
            outputs = [output async for output in request]
            return sum(len(completion.token_ids) for completion in outputs[-1].outputs)

        async def all_prompts() -> tuple[int, float]:
            return sum(await asyncio.gather(*map(tokens_of, self._ids))), time.time()

        return await measured(all_prompts())

    async def _as_actor(self) -> Measured:
        """From the first ticket to the last commit."""
        await self._fresh_weights()

        async def all_tickets() -> tuple[int, float]:
            await self._issue()
            while (await self._store.counters())["committed"] < self._issued:
                await self._pause(0.5)
            tokens, ended = 0, 0.0
            while entries := await self._store.entries(self._read):
                tokens, ended = tokens + sum(entry.tokens for entry in entries), entries[-1].time_s
                self._read = entries[-1].stream_id
            return tokens, ended

        return await measured(all_tickets())

    async def _issue(self) -> None:
        """A ticket for every prompt."""
        self._issued += await self._store.issue(self._ids, limit=self._issued + len(self._ids))

    async def _pause(self, seconds: float) -> None:
        """Sleep; raise what ended the actor, if anything did: its own error, or SIGTERM or Ctrl-C, which it hears."""
        await asyncio.wait([self._actor], timeout=seconds)
        if self._actor.done():
            self._actor.result()
            raise VergeError("stopped on request, before everything was measured")

    async def _publish(self) -> list[Update]:
        """New weights, while the actor generates."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self._prepared.model, dtype="auto")
        weights = {name: value.detach() for name, value in model.named_parameters()}
        dtype = next(iter(weights.values())).dtype
        updates = []
        busy = asyncio.create_task(self._keep_busy())
        with await asyncio.to_thread(StoreThread, *self._where) as line:
            publisher = Publisher(line, self._folder / "weights", self._prepared.model, 2, dtype)
            for _ in range(PUBLISHED):
                await self._new_token()
                self._version += 1
                for value in weights.values():
                    value.mul_(1 + 1e-3 * torch.randn_like(value))
                began = time.perf_counter()
                await asyncio.to_thread(publisher.begin, self._version, 0, weights.items())
                while self._engine.version != self._version:
                    await self._pause(1e-3)
                await self._new_token()
                updates.append(Update(self._engine.last_pause_s, time.perf_counter() - began))
            await asyncio.to_thread(publisher.finish)
            publisher.close()
        busy.cancel()
        return updates

    async def _keep_busy(self) -> None:
        """Tickets without end."""
        while True:
            if self._issued - (await self._store.counters())["committed"] < len(self._ids):
                await self._issue()
            await asyncio.sleep(0.05)

    async def _new_token(self) -> None:
        before = self._engine.load.tokens
        while self._engine.load.tokens == before:
            await self._pause(1e-3)
