"""A scripted engine (groups with given outcomes), and scenarios played on a run of a real server."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from store.client import Store
from store.runs import CONSUMERS
from store.server import EmbeddedServer
from store.wire import Completion, Problem, RolloutGroup, Span, Ticket, Verdict
from tests.store.cluster import Cluster

META = {"fingerprint": "f00", "gamma": "0.9", "group_size": "4"}
_RUNS = itertools.count()


def problems(*ids: str) -> list[Problem]:
    return [Problem(problem_id, f"what is {problem_id}?", "exact", "42", ("test",)) for problem_id in ids]


def completion(outcome: int | Verdict, version: int = 0, tokens: int = 3) -> Completion:
    """A completion whose verdict is 1 correct, 0 wrong, or as given."""
    verdict = outcome if isinstance(outcome, Verdict) else Verdict.CORRECT if outcome else Verdict.WRONG
    return Completion(
        np.arange(tokens, dtype=np.int32),
        np.full(tokens, -0.5, np.float32),
        (Span(version, 0, tokens),) if tokens else (),
        float(verdict is Verdict.CORRECT),
        verdict,
    )


def group(ticket: Ticket, outcomes: Sequence[int | Verdict], version: int = 0, tokens: int = 3) -> RolloutGroup:
    """A rollout group for a ticket: one completion per outcome."""
    completions = tuple(completion(outcome, version, tokens) for outcome in outcomes)
    return RolloutGroup(ticket.id, ticket.problem_id, np.arange(5, dtype=np.int32), completions)


async def let_pass(store: Store, seconds: float) -> None:
    """Make every lease `seconds` older, as the server would if they passed."""
    redis, key = store.link.redis, store.keys.tickets
    for lease in await redis.xpending_range(key, CONSUMERS, "-", "+", 1000):
        idle_ms = lease["time_since_delivered"] + int(1000 * seconds)
        await redis.xclaim(key, CONSUMERS, lease["consumer"], 0, [lease["message_id"]], idle=idle_ms, justid=True)


async def stored_keys(store: Store, pattern: str) -> list[bytes]:
    """The keys of a pattern, on whatever node they are."""
    return list(await store.link.redis.keys(pattern, **everywhere(store, "primaries")))


def everywhere(store: Store, nodes: str = "all") -> dict[str, Any]:
    """What makes a command go to all nodes, where there are several."""
    return {"target_nodes": nodes} if store.link.is_cluster else {}


class Opened:
    """Connects further clients to the run of a scenario, and closes them at its end."""

    def __init__(self, server: EmbeddedServer | Cluster, run: str, stack: AsyncExitStack) -> None:
        self.server = server
        self.run = run
        self._stack = stack

    async def connect(self, **settings: Any) -> Store:
        settings = {"patience_s": 20.0, **settings}
        store = await Store.connect(self.server.url, self.run, self.server.password, **settings)
        self._stack.push_async_callback(store.close)
        return store


def play(server: EmbeddedServer | Cluster, body: Callable[[Store, Opened], Awaitable[None]], **settings: Any) -> None:
    """Run the async body of a test on a new run of the server; `settings` are Store.connect's."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            opened = Opened(server, f"run{next(_RUNS)}", stack)
            store = await opened.connect(**settings)
            await store.open_run(META)
            await body(store, opened)

    asyncio.run(run())
