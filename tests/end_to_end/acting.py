"""A real actor on a live engine, whose store the test fills and reads."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from actors.config import ActorConfig, EvaluationConfig, SamplingConfig, VerifierConfig
from actors.loop import Actor, ActorSettings
from actors.weights import Snapshots
from store.client import Store
from store.server import EmbeddedServer
from tests.end_to_end.live import LiveEngine

GROUP, LONGEST = 8, 8
META = {"fingerprint": "test", "gamma": "0.97", "group_size": str(GROUP)}


class Acting:
    """A run of `store`, and its actor `tested`, which begins at once and ends by `end` at the latest."""

    def __init__(
        self, live: LiveEngine, server: EmbeddedServer, run: str, store: Store, *,
        grace_s: float, max_lag: int, lease_s: float, patience_s: float, within_s: float, evaluation: EvaluationConfig,
    ) -> None:  # fmt: skip
        """`within_s`: how long `until` waits."""
        self.store = store
        self.where = (server.url, run, server.password)
        self._within_s = within_s
        settings = ActorSettings(
            name="tested", run=run, store_url=server.url, store_password=server.password, lease_s=lease_s,
            patience_s=patience_s, payload_ttl_s=3600, max_lag=max_lag, model=live.model, seed=0, evaluation=evaluation,
            actor=ActorConfig(context_tokens=32, max_sequences=64, drain_grace_s=grace_s),
            sampling=SamplingConfig(group_size=GROUP, max_completion_tokens=LONGEST), verifier=VerifierConfig(),
        )  # fmt: skip
        snapshots = Snapshots(store, live.model.parent / "scratch")  # of deltas, and none is published here
        self.task = asyncio.create_task(Actor(settings, store, live.engine, live.tokenizer, snapshots).run())

    async def until(self, holds: Callable[[], Awaitable[Any]], what: str) -> None:
        """Wait for the store to say so; the actor must not fail meanwhile."""
        async with asyncio.timeout(self._within_s):
            while not await holds():
                assert not self.task.done() or self.task.result() is None, what
                await asyncio.sleep(0.01)


@asynccontextmanager
async def acting(
    live: LiveEngine, server: EmbeddedServer, run: str, store: Store, **settings: Any
) -> AsyncIterator[Acting]:
    """An actor, `settings` as of `Acting`; afterwards it, what it made of signals, and the store are gone."""
    stage = Acting(live, server, run, store, **settings)
    try:
        yield stage
    finally:
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        await store.close()
