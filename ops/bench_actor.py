"""`verge bench actor`: an actor with store, verification and commits, against its own vLLM engine driven bare."""

import asyncio
import tempfile
import time
from collections.abc import Coroutine
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
from ops.figures import check
from ops.prepare import Prepared, enter_store, load_tokenizer, prepare
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import GroupEntry

LAG_EVERY_S = 0.01
PUBLISHED = 3
"""Snapshots that are published while the actor generates, to time updates."""
SHARE = 0.95
LAG_MS = 20.0
PAUSE_MS = 1000.0
FIRST_TOKEN_MS = 10_000.0


def run(config: RunConfig, groups: int, rounds: int) -> dict[str, Any]:
    """Measure one engine on this machine, with the store beside it; bare and as an actor in turn, `rounds` times each.

    Bare: every prompt is sent to vLLM at once, and what comes back is dropped. As an actor: tickets of the same prompts
    are issued, and time ends with the last commit. Both samples are at new weights each time, so that no prefix is
    cached. Then weights are published while the actor generates.

    Args:
        config: model, problems, sampling and actor are used.
        groups: rollout groups of one measurement.

    Returns:
        `checks`: throughput_over_bare, the median of the rounds; loop_lag_p99_ms, how late the actor's event loop ran a
        timer of 10 ms; update_pause_ms, the median time in which no token was generated; publish_to_first_token_ms, the
        median from the learner's call to the first token of those weights. Beside them the part of the lag in which the
        loop itself was computing (the rest is a machine that was busy with others), and the rounds: tokens per second,
        and CPU microseconds of the actor's process (the engine's has its own) per token.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="verge-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        import uvloop

        return uvloop.run(_Bench(config, prepared, server, Path(folder), groups).measure(rounds))


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
        self._lags: list[tuple[float, float]] = []
        self._version = self._issued = 0

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
            self._lags.clear()
            pairs = [(await self._bare(), await self._as_actor()) for _ in range(rounds)]
            pauses, first_tokens = await self._publish()
            await self._store.set_phase("done")
            await self._actor
        finally:
            await self._engine.close()
            await client.close()
            await self._store.close()
        ratio = float(np.median([actor["tokens_per_s"] / bare["tokens_per_s"] for bare, actor in pairs]))
        lag, own = 1e3 * np.quantile(np.array(self._lags), 0.99, axis=0)
        pause, first = (1e3 * float(np.median(times)) for times in (pauses, first_tokens))
        return {
            "checks": [
                check("throughput_over_bare", ratio, SHARE, ratio >= SHARE),
                check("loop_lag_p99_ms", float(lag), LAG_MS, bool(lag < LAG_MS)),
                check("update_pause_ms", pause, PAUSE_MS, pause <= PAUSE_MS),
                check("publish_to_first_token_ms", first, FIRST_TOKEN_MS, first <= FIRST_TOKEN_MS),
            ],
            "model": str(model),
            "groups": len(self._ids),
            "queued_sequences": self._engine.load.queue,
            "loop_lag_of_own_work_p99_ms": float(own),
            "rounds": [{"bare": bare, "actor": actor} for bare, actor in pairs],
        }

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

    async def _bare(self) -> dict[str, float]:
        """The engine alone."""
        await self._fresh_weights()

        async def all_prompts() -> tuple[int, float]:
            groups = await asyncio.gather(*(self._engine.generate(self._prompts[name]) for name in self._ids))
            return sum(len(sample.token_ids) for group in groups for sample in group), time.time()

        return await _rates(all_prompts())

    async def _as_actor(self) -> dict[str, float]:
        """From the first ticket to the last commit."""
        await self._fresh_weights()

        async def all_tickets() -> tuple[int, float]:
            await self._issue()
            while (await self._store.counters())["committed"] < self._issued:
                await self._pause(0.1)
            entries: list[GroupEntry] = []
            while more := await self._store.entries(entries[-1].stream_id if entries else "0-0"):
                entries += more
            return sum(entry.tokens for entry in entries[-len(self._ids) :]), entries[-1].time_s

        watch = asyncio.create_task(self._watch_lag())
        rates = await _rates(all_tickets())
        watch.cancel()
        return rates

    async def _issue(self) -> None:
        """A ticket for every prompt."""
        self._issued += await self._store.issue(self._ids, limit=self._issued + len(self._ids))

    async def _pause(self, seconds: float) -> None:
        """Sleep; raise what ended the actor, if anything did: its own error, or SIGTERM or Ctrl-C, which it hears."""
        await asyncio.wait([self._actor], timeout=seconds)
        if self._actor.done():
            self._actor.result()
            raise VergeError("stopped on request, before everything was measured")

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, cpu = loop.time() + LAG_EVERY_S, time.thread_time()
            await asyncio.sleep(LAG_EVERY_S)
            lag = max(0.0, loop.time() - due)
            self._lags.append((lag, min(lag, time.thread_time() - cpu)))

    async def _publish(self) -> tuple[list[float], list[float]]:
        """Seconds of each pause, and from publishing to the first token, while the actor generates."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self._prepared.model, dtype="auto")
        weights = {name: value.detach() for name, value in model.named_parameters()}
        dtype = next(iter(weights.values())).dtype
        pauses, first_tokens = [], []
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
                first_tokens.append(time.perf_counter() - began)
                pauses.append(self._engine.last_pause_s)
            await asyncio.to_thread(publisher.finish)
            publisher.close()
        busy.cancel()
        return pauses, first_tokens

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


async def _rates(work: Coroutine[Any, Any, tuple[int, float]]) -> dict[str, float]:
    """Completion tokens per second, and CPU microseconds of this process (the engine's has its own) per token.

    `work` returns its tokens, and when it was done, in Unix seconds: the store has this machine's clock.
    """
    began, cpu = time.time(), time.process_time()
    tokens, ended = await work
    return {
        "tokens_per_s": tokens / (ended - began),
        "cpu_us_per_token": 1e6 * (time.process_time() - cpu) / tokens,
    }
