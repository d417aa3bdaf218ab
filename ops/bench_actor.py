"""`verge bench actor`: an actor with store, verification and commits, against its own vLLM engine driven bare."""

import asyncio
import tempfile
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.engine import Engine
from actors.loop import Actor, ActorSettings, engine_settings
from actors.prompts import encode_prompts
from actors.weights import Snapshots
from learner.publish import Publisher
from learner.store_thread import StoreThread
from ops.config import RunConfig
from ops.figures import check
from ops.prepare import Prepared, enter_store, load_tokenizer, prepare
from store.client import Store
from store.server import EmbeddedServer
from store.wire import Problem

NAME = "bench"
LAG_EVERY_S = 0.005
PUBLISHED = 3
"""Snapshots that are published while the actor generates, to time updates."""
SHARE = 0.95
LAG_MS = 20.0
PAUSE_MS = 500.0
FIRST_TOKEN_MS = 3000.0


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
        timer of 5 ms; update_pause_ms, the median time in which no token was generated; publish_to_first_token_ms, the
        median from the learner's call to the first token of those weights. Beside them the rounds: tokens per second,
        and CPU microseconds of the actor's process (the engine's has its own) per token.
    """
    prepared = prepare(config)
    with tempfile.TemporaryDirectory(prefix="verge-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        import uvloop

        return uvloop.run(_Bench(config, prepared, server, Path(folder), groups).measure(rounds))


class _Bench:
    """One engine, and what it is measured with."""

    def __init__(
        self, config: RunConfig, prepared: Prepared, server: EmbeddedServer, folder: Path, groups: int
    ) -> None:
        self._config, self._prepared, self._server, self._folder = config, prepared, server, folder
        train = prepared.problems.train
        self._problems: Sequence[Problem] = [train[i % len(train)] for i in range(groups)]
        self._tokenizer = load_tokenizer(prepared.model)
        self._prompts = encode_prompts(
            train, self._tokenizer, config.actor.context_tokens, config.sampling.max_completion_tokens
        )
        self._lags: list[float] = []
        self._measured = 0

    async def measure(self, rounds: int) -> dict[str, Any]:
        config, model = self._config, self._prepared.model
        self._engine = await Engine.start(
            engine_settings(model, 0, model, self._tokenizer, config.actor, config.sampling, config.seed)
        )
        try:
            await self._bare()  # the first prompts compile and allocate
            pairs = [(await self._bare(), await self._as_actor()) for _ in range(rounds)]
            pauses, first_tokens = await self._published()
        finally:
            await self._engine.close()
        ratios = [actor["tokens_per_s"] / bare["tokens_per_s"] for bare, actor in pairs]
        ratio, lag = float(np.median(ratios)), 1e3 * float(np.quantile(self._lags, 0.99))
        pause, first = (1e3 * float(np.median(times)) for times in (pauses, first_tokens))
        return {
            "checks": [
                check("throughput_over_bare", ratio, SHARE, ratio >= SHARE),
                check("loop_lag_p99_ms", lag, LAG_MS, lag < LAG_MS),
                check("update_pause_ms", pause, PAUSE_MS, pause <= PAUSE_MS),
                check("publish_to_first_token_ms", first, FIRST_TOKEN_MS, first <= FIRST_TOKEN_MS),
            ],
            "model": str(model),
            "groups": len(self._problems),
            "rounds": [{"bare": bare, "actor": actor} for bare, actor in pairs],
        }

    async def _fresh_weights(self) -> None:
        """A new version of the same weights: prefixes cached for an earlier measurement are not found in this one."""
        self._measured += 1
        await self._engine.update(self._measured, self._prepared.model)

    async def _bare(self) -> dict[str, float]:
        """The engine alone."""
        await self._fresh_weights()

        async def all_prompts() -> int:
            groups = await asyncio.gather(*(self._engine.generate(self._prompts[p.id]) for p in self._problems))
            return sum(len(sample.token_ids) for group in groups for sample in group)

        return await _rates(all_prompts())

    async def _as_actor(self) -> dict[str, float]:
        """From the first ticket to the last commit."""
        await self._fresh_weights()
        async with _Run(self, f"round-{self._measured}") as run:
            watch = asyncio.create_task(self._watch_lag())
            rates = await _rates(run.commit_all(self._problems))
            watch.cancel()
        return rates

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lags.append(max(0.0, loop.time() - due))

    async def _published(self) -> tuple[list[float], list[float]]:
        """Seconds of each pause, and from publishing to the first token, while the actor generates."""
        from transformers import AutoModelForCausalLM

        await self._fresh_weights()
        model = AutoModelForCausalLM.from_pretrained(self._prepared.model, dtype="auto")
        dtype = next(model.parameters()).dtype
        pauses, first_tokens = [], []
        async with _Run(self, "published") as run:
            busy = asyncio.create_task(run.keep_busy([p.id for p in self._problems]))
            where = (self._server.url, "published", self._server.password)
            with await asyncio.to_thread(StoreThread, *where) as line:
                publisher = Publisher(line, self._folder / "weights", self._prepared.model, 2, dtype)
                for _ in range(PUBLISHED):
                    await self._new_token()
                    self._measured += 1
                    moved = {name: value.detach() for name, value in model.named_parameters()}
                    for value in moved.values():
                        value.mul_(1 + 1e-3 * torch.randn_like(value))
                    began = time.perf_counter()
                    await asyncio.to_thread(publisher.begin, self._measured, 0, moved.items())
                    while self._engine.version != self._measured:
                        await asyncio.sleep(1e-3)
                        if busy.done():
                            busy.result()
                    await self._new_token()
                    first_tokens.append(time.perf_counter() - began)
                    pauses.append(self._engine.last_pause_s)
                await asyncio.to_thread(publisher.finish)
                publisher.close()
            busy.cancel()
        return pauses, first_tokens

    async def _new_token(self) -> None:
        load, before = self._engine.load, self._engine.load.tokens
        while load.tokens == before:
            await asyncio.sleep(1e-3)


async def _rates(work: Coroutine[Any, Any, int]) -> dict[str, float]:
    """Completion tokens per second, and CPU microseconds of this process (the engine's has its own) per token."""
    began, cpu = time.perf_counter(), time.process_time()
    tokens = await work
    return {
        "tokens_per_s": tokens / (time.perf_counter() - began),
        "cpu_us_per_token": 1e6 * (time.process_time() - cpu) / tokens,
    }


class _Run:
    """An actor on the bench's engine, and a run of its own in the store."""

    def __init__(self, bench: _Bench, name: str) -> None:
        self._bench, self._name = bench, name

    async def __aenter__(self) -> "_Run":
        bench = self._bench
        config = bench._config.model_copy(update={"name": self._name})
        where = (bench._server.url, self._name, bench._server.password)
        self._store = await Store.connect(*where)
        await enter_store(self._store, config, bench._prepared)
        self._client = await Store.connect(*where)
        settings = ActorSettings(
            name=NAME, run=self._name, store_url=where[0], store_password=where[2], lease_s=config.store.lease_s,
            patience_s=config.store.patience_s, payload_ttl_s=config.store.payload_ttl_s, model=bench._prepared.model,
            actor=config.actor, sampling=config.sampling, verifier=config.verifier, seed=config.seed,
        )  # fmt: skip
        snapshots = Snapshots(self._client, bench._folder / "scratch")
        self._actor = asyncio.create_task(
            Actor(settings, self._client, bench._engine, bench._tokenizer, snapshots).run()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.set_phase("done")
        try:
            await self._actor
        finally:
            await self._client.close()
            await self._store.close()

    async def commit_all(self, problems: Sequence[Problem]) -> int:
        """Issue a ticket per problem; completion tokens once all are committed."""
        await self._store.issue([problem.id for problem in problems], limit=len(problems))
        while (await self._store.counters())["committed"] < len(problems):
            await asyncio.wait([self._actor], timeout=0.02)
            if self._actor.done():
                self._actor.result()
        return sum(entry.tokens for entry in await self._entries())

    async def _entries(self) -> list[Any]:
        found: list[Any] = []
        while more := await self._store.entries(found[-1].stream_id if found else "0-0"):
            found += more
        return found

    async def keep_busy(self, problem_ids: Sequence[str]) -> None:
        """Tickets for as long as there is an actor."""
        issued = 0
        while not self._actor.done():
            counters = await self._store.counters()
            if issued - counters["committed"] < len(problem_ids):
                issued += await self._store.issue(problem_ids, limit=issued + len(problem_ids))
            await asyncio.sleep(0.05)
        self._actor.result()
