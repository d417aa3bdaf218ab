"""Processes that load a store for `verge bench store`: commits, and the raw SETs they are held against."""

import asyncio
import gc
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from store.client import Store
from store.mirror import Mirror
from store.queries import Gate, list_problems
from store.wire import Completion, RolloutGroup, Span, Ticket, Verdict

GROUP_SIZE = 8
PIPELINE = 16
"""Requests that a raw producer and a committing one keep in flight, as `redis-benchmark -P 16` does."""
TICKETS = 2000
"""Groups that a committing producer has ready; it ends early when they are all committed."""
FILL = 1000
META = {"fingerprint": "bench", "gamma": "0.97", "group_size": str(GROUP_SIZE)}


@dataclass(frozen=True, slots=True)
class Load:
    """The server under test."""

    port: int
    password: str
    pid: int

    async def connect(self, run: str) -> Store:
        """A client of one run, which it opens."""
        store = await Store.connect(f"redis://127.0.0.1:{self.port}", run, self.password, lease_s=3600)
        await store.open_run(META)
        return store


def payload_group(ticket: Ticket, payload_bytes: int, version: int = 0) -> RolloutGroup:
    """A group of 8 whose payload has about `payload_bytes` bytes (8 a token)."""
    length = max(1, (payload_bytes - 60 * GROUP_SIZE - 100) // (8 * GROUP_SIZE))
    tokens, logprobs = np.arange(length, dtype=np.int32), np.full(length, -0.7, np.float32)
    spans = (Span(version, 0, length),)
    completions = tuple(
        Completion(tokens, logprobs, spans, float(i < 3), Verdict.CORRECT if i < 3 else Verdict.WRONG)
        for i in range(GROUP_SIZE)
    )
    return RolloutGroup(ticket.id, ticket.problem_id, np.arange(8, dtype=np.int32), completions)


def raw_producer(load: Load, _run: str, payload_bytes: int, seconds: float, pipe: Connection) -> None:
    """SET the same bytes as fast as the server answers, PIPELINE at a time, with nothing else to do per request."""
    value = bytes(payload_bytes)
    request = b"".join(_command(b"SET", b"raw:%d:%d" % (os.getpid(), i), value) for i in range(PIPELINE))
    with socket.create_connection(("127.0.0.1", load.port)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(_command(b"AUTH", load.password.encode()))
        server.recv(64)
        pipe.send("ready")
        pipe.recv()
        began, done, latencies = time.monotonic(), 0, []
        while (now := time.monotonic()) < began + seconds:
            server.sendall(request)
            answered = 0
            while answered < 5 * PIPELINE:  # each answer is +OK\\r\\n
                answered += len(server.recv(1 << 16))
            done += PIPELINE
            latencies.append(time.monotonic() - now)
    pipe.send((done, time.monotonic() - began, latencies))


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def commit_producer(load: Load, run: str, payload_bytes: int, seconds: float, pipe: Connection) -> None:
    """Commit groups, PIPELINE at a time; taking tickets and making groups is not part of the time."""
    asyncio.run(_commit(load, run, payload_bytes, seconds, pipe))


async def _commit(load: Load, run: str, payload_bytes: int, seconds: float, pipe: Connection) -> None:
    store = await load.connect(run)
    name = f"producer-{os.getpid()}"
    tickets: list[Ticket] = []
    while len(tickets) < TICKETS:
        tickets.extend(await store.take(name, 250, block_ms=1000))
    groups = iter([payload_group(ticket, payload_bytes) for ticket in tickets])
    latencies: list[float] = []
    gc.collect()
    gc.freeze()  # as an actor does: no collection goes through what was made before
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    began = time.monotonic()

    async def some() -> None:
        for group in groups:
            start = time.monotonic()
            await store.commit(name, group)
            latencies.append(time.monotonic() - start)
            if time.monotonic() > began + seconds:
                return

    await asyncio.gather(*(some() for _ in range(PIPELINE)))
    pipe.send((len(latencies), time.monotonic() - began, latencies))
    await store.close()


def asking(load: Load, run: str, _payload_bytes: int, seconds: float, pipe: Connection) -> None:
    """Ask about all problems once a second, of a mirror that is kept, as the live page does."""
    asyncio.run(_ask(load, run, seconds, pipe, keep=True))


def asking_cold(load: Load, run: str, _payload_bytes: int, seconds: float, pipe: Connection) -> None:
    """The same, but every time from cold, as `verge state list` does once."""
    asyncio.run(_ask(load, run, seconds, pipe, keep=False))


async def _ask(load: Load, run: str, seconds: float, pipe: Connection, keep: bool) -> None:
    store = await load.connect(run)
    mirror = Mirror(store, pool=False) if keep else None
    if mirror:
        await mirror.sync()
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        await list_problems(store, Gate(), where="posterior_mean < 0.7", sort="-gate", limit=20, mirror=mirror)
        await asyncio.sleep(max(0.0, now + 1.0 - time.monotonic()))


async def fill(store: Store, problem_ids: Sequence[str], groups: int) -> None:
    """Commit groups with small payloads as fast as the scripts run."""
    actor = f"fill-{groups}"
    for start in range(0, groups, FILL):
        chosen = [problem_ids[i % len(problem_ids)] for i in range(start, min(groups, start + FILL))]
        await store.issue(chosen, 10**9)
        tickets = await store.take(actor, FILL)
        await asyncio.gather(*(store.commit(actor, payload_group(ticket, 600)) for ticket in tickets))
