"""The scripted actors of a simulation: real tickets, leases and commits; what they generate is drawn, not sampled."""

import asyncio
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from actors.loop import HEARTBEAT_S
from ops.sim_scene import Scene
from store.client import Store
from store.wire import Completion, RolloutGroup, Span, Ticket, Verdict

RUN = "sim"
_PER_CLIENT = 16
"""Actors that share a client of the store, as those of one machine might share a proxy."""
_NEVER = 1 << 40
"""A version after which none comes."""
_PROMPT = np.arange(16, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Place:
    """Where fleet and learner meet."""

    url: str
    password: str


def play(scene: Scene, place: Place, pipe: Connection) -> None:
    """Run a whole fleet in this process until the run has ended; says `ready`, and at the end what became of it."""
    asyncio.run(_play(scene, place, pipe))


async def _play(scene: Scene, place: Place, pipe: Connection) -> None:
    clients = [
        await Store.connect(place.url, RUN, place.password, scene.lease_s) for _ in range(0, scene.actors, _PER_CLIENT)
    ]
    try:
        for store in clients:  # a thousand connections that are made at once time out
            await asyncio.gather(*(store.wait_manifest(_NEVER, block_ms=50) for _ in range(_PER_CLIENT)))
        fleet = Fleet(scene, clients)
        pipe.send("ready")
        await fleet.run()
    finally:
        for store in clients:
            await store.close()
    pipe.send({"crashes": fleet.crashes, "commit_s": fleet.commit_s})


class Fleet:
    """The actors, each a task; those that crash are replaced under another name.

        take ──▶ generate for as long as the longest completion takes ──▶ commit ──▶ take
                    └── crash: the ticket stays leased until the lease ends

    Weights are new for all at once, in the moment they are announced; a group's spans name all that wrote it.
    """

    def __init__(self, scene: Scene, clients: list[Store]) -> None:
        self._scene, self._clients = scene, clients
        self._rng = np.random.default_rng([scene.seed, 3])
        self._logits = problem_logits(scene)
        self._changes: list[tuple[float, int]] = []
        """When each version came, ascending."""
        self._held: list[dict[str, Ticket]] = [{} for _ in clients]
        """Per client: the ticket of each of its actors that holds one."""
        self.crashes = 0
        self.commit_s: list[float] = []

    async def run(self) -> None:
        """Until the phase of the run is over."""
        await self._learn_version(block_ms=10_000)
        names = [f"actor-{number}" for number in range(self._scene.actors)]
        tasks = [asyncio.create_task(self._act(name, index // _PER_CLIENT)) for index, name in enumerate(names)]
        tasks += [asyncio.create_task(self._follow()), asyncio.create_task(self._keep_alive(names))]
        over = asyncio.create_task(self._until_over())
        try:
            done, _ = await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (over, *tasks):
                task.cancel()
            await asyncio.gather(over, *tasks, return_exceptions=True)
        for store, held in zip(self._clients, self._held, strict=True):
            for consumer, ticket in held.items():
                await store.give_back(consumer, [ticket])

    async def _act(self, name: str, client: int) -> None:
        store, held, lives = self._clients[client], self._held[client], 0
        while True:
            consumer = f"{name}.{lives}"
            for ticket in await store.take(consumer, 1, block_ms=1000):
                held[consumer] = ticket
                group, seconds = self._generate(ticket)
                if self._rng.random() < self._scene.crash_rate:
                    await asyncio.sleep(seconds * self._rng.random())
                    self.crashes, lives = self.crashes + 1, lives + 1
                else:
                    await asyncio.sleep(seconds)
                    began = time.monotonic()
                    await store.commit(consumer, self._written(group, began - seconds))
                    self.commit_s.append(time.monotonic() - began)
                del held[consumer]

    def _generate(self, ticket: Ticket) -> tuple[RolloutGroup, float]:
        """A group, its spans still to be filled in, and the seconds that it takes."""
        scene, rng, version = self._scene, self._rng, self._changes[-1][1]
        drawn = scene.median_tokens * np.exp(scene.sigma * rng.standard_normal(scene.group_size))
        lengths = np.minimum(np.ceil(drawn), scene.longest_tokens).astype(int)
        p = 1 / (1 + np.exp(-(self._logits[int(ticket.problem_id)] + scene.drift * version)))
        solved, failed = rng.random(scene.group_size) < p, rng.random(scene.group_size) < scene.error_rate
        completions = []
        for length, right, error in zip(lengths.tolist(), solved.tolist(), failed.tolist(), strict=True):
            cut = length == scene.longest_tokens
            verdict = Verdict.ERROR if error else Verdict.TRUNCATED if cut else Verdict("correct" if right else "wrong")
            tokens, logprobs = np.zeros(length, np.int32), np.full(length, -0.7, np.float32)
            reward = float(verdict is Verdict.CORRECT)
            completions.append(Completion(tokens, logprobs, (), reward, verdict, "length" if cut else "stop"))
        group = RolloutGroup(ticket.id, ticket.problem_id, _PROMPT, tuple(completions))
        return group, scene.token_s * int(lengths.max())

    def _written(self, group: RolloutGroup, began: float) -> RolloutGroup:
        """The group with the versions that wrote its tokens, the first of which began at `began`."""
        starts = [(max(0, int((at - began) / self._scene.token_s)), version) for at, version in self._changes]
        completions = tuple(
            Completion(
                item.token_ids, item.logprobs, spans_of(starts, len(item.token_ids)), item.reward, item.verdict,
                item.finish_reason,
            )
            for item in group.completions
        )  # fmt: skip
        return RolloutGroup(group.id, group.problem_id, group.prompt_ids, completions)

    async def _follow(self) -> None:
        while True:
            await self._learn_version(block_ms=1000)

    async def _learn_version(self, block_ms: int) -> None:
        known = self._changes[-1][1] if self._changes else -1
        manifest = await self._clients[0].wait_manifest(known, block_ms)
        if manifest is not None:
            self._changes.append((time.monotonic(), manifest.version))

    async def _keep_alive(self, names: list[str]) -> None:
        """The heartbeats and renewals of actors that live."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            version = self._changes[-1][1]
            for index, name in enumerate(names):
                await self._clients[index // _PER_CLIENT].beat(name, {"engine": "scripted", "version": version})
            if time.monotonic() - renewed > self._scene.lease_s / 3:
                renewed = time.monotonic()
                for store, held in zip(self._clients, self._held, strict=True):
                    for consumer, ticket in list(held.items()):
                        await store.renew(consumer, [ticket])

    async def _until_over(self) -> None:
        while (await self._clients[0].phase())[0] == "running":
            await asyncio.sleep(0.2)


def problem_logits(scene: Scene) -> NDArray[np.float64]:
    """[problems] log-odds of the solve rates at version 0."""
    rng = np.random.default_rng([scene.seed, 4])
    return np.log(scene.solve_rate / (1 - scene.solve_rate)) + scene.spread * rng.standard_normal(scene.problems)


def spans_of(starts: list[tuple[int, int]], length: int) -> tuple[Span, ...]:
    """Spans of `length` tokens, given the first token that each version wrote, ascending.

    >>> spans_of([(0, 1), (0, 2), (5, 3), (9, 4)], 7)
    (Span(version=2, start=0, end=5), Span(version=3, start=5, end=7))
    """
    ends = [start for start, _ in starts[1:]] + [length]
    return tuple(
        Span(version, start, min(end, length))
        for (start, version), end in zip(starts, ends, strict=True)
        if start < min(end, length)
    )
