"""The processes that `verge bench chaos` kills: a scripted actor and a learner's loop, on the real store."""

import asyncio
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from store.client import Store
from store.mirror import Mirror
from store.wire import Completion, Manifest, RolloutGroup, Span, Ticket, Verdict

RUN = "chaos"
META = {"fingerprint": "chaos", "gamma": "0.95", "group_size": "8"}
LEASE_S = 0.5
LOCK_TTL_S = 0.5
GROUPS_PER_STEP = 8
MAX_LAG = 3
GROUP_SIZE = 8
IN_FLIGHT = 4
CHECKPOINT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Where the roles of one chaos run meet."""

    url: str
    password: str
    folder: Path

    @property
    def acknowledged(self) -> Path:
        """Group ids, one per line, each appended by its actor after the store acknowledged it."""
        return self.folder / "acknowledged"

    @property
    def checkpoint(self) -> Path:
        """The last step that the learner saved."""
        return self.folder / "checkpoint"

    async def connect(self) -> Store:
        """A client of the run, as patient as the outages are long."""
        return await Store.connect(self.url, RUN, self.password, lease_s=LEASE_S, max_deliveries=1000)


def actor(place: Place, name: str, seed: int) -> None:
    """Take tickets, think for a few milliseconds, commit, write down what was acknowledged. Never returns."""
    asyncio.run(_act(place, name, random.Random(seed)))  # noqa: S311 - not a secret


async def _act(place: Place, name: str, chance: random.Random) -> None:
    store = await place.connect()
    log = os.open(place.acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    version = 0

    async def roll_out(ticket: Ticket) -> None:
        # Now and then so slow that the lease runs out, and another actor commits first.
        await asyncio.sleep(1.5 * LEASE_S if chance.random() < 0.02 else chance.expovariate(1 / 0.005))
        if chance.random() < 0.03:
            await store.refuse(name, ticket, "scripted refusal", errors=GROUP_SIZE)
        elif await store.commit(name, scripted_group(ticket, version, chance)) == "committed":
            os.write(log, f"{ticket.id}\n".encode())

    async def work() -> None:
        nonlocal version
        while True:
            manifest = await store.manifest()
            version = manifest.version if manifest else 0
            for ticket in await store.take(name, 1, block_ms=100):
                await roll_out(ticket)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def scripted_group(ticket: Ticket, version: int, chance: random.Random) -> RolloutGroup:
    """A group whose verdicts are a coin's, sometimes begun on an older version."""
    versions = (max(0, version - chance.randrange(3)), version)

    def completion() -> Completion:
        length = chance.randint(2, 40)
        correct = chance.random() < 0.4
        verdict = Verdict.ERROR if chance.random() < 0.05 else Verdict.CORRECT if correct else Verdict.WRONG
        return Completion(
            np.arange(length, dtype=np.int32),
            np.full(length, -0.7, np.float32),
            (Span(versions[0], 0, 1), Span(versions[1], 1, length)),
            float(verdict is Verdict.CORRECT),
            verdict,
        )

    prompt = np.arange(12, dtype=np.int32)
    return RolloutGroup(ticket.id, ticket.problem_id, prompt, tuple(completion() for _ in range(GROUP_SIZE)))


def learner(place: Place, name: str, seed: int) -> None:
    """Issue, draw, use, retire, publish, checkpoint; resume from the checkpoint. Ends when it lost its lock."""
    asyncio.run(_learn(place, name, random.Random(seed)))  # noqa: S311 - not a secret


async def _learn(place: Place, name: str, chance: random.Random) -> None:
    store = await place.connect()
    while not await store.acquire_learner(name, LOCK_TTL_S):
        await asyncio.sleep(0.05)
    holding = asyncio.create_task(_hold_lock(store, name))
    step = int(place.checkpoint.read_text()) if place.checkpoint.exists() else 0
    await store.rollback(step)
    mirror = Mirror(store)
    await mirror.sync()
    while not holding.done():
        limit = (step + MAX_LAG + 1) * GROUPS_PER_STEP
        await store.issue(chance.choices(mirror.ids, k=2 * GROUPS_PER_STEP), limit)
        await mirror.sync()
        if len(mirror.pool) < GROUPS_PER_STEP:
            await asyncio.sleep(0.005)
            continue
        drawn = chance.sample(list(mirror.pool), GROUPS_PER_STEP)
        step += 1
        await store.use(drawn, step)
        found = await store.fetch(drawn)
        lost = [group_id for group_id, group in found.items() if group is None]
        await store.retire(lost, "lost_payload")
        kept = [group_id for group_id in drawn if group_id not in lost]
        await store.retire(kept[:-1], "used")
        await store.retire(kept[-1:], chance.choice(["used", "expired", "zero_mass"]))
        mirror.remove(drawn)
        manifest = await store.manifest()
        version = manifest.version + 1 if manifest else 0
        await store.announce(Manifest(version, f"/none/{version}", f"{version:064x}", 1, step, time.time()))
        await store.record_dynamics({"step": step, "version": version})
        if step % CHECKPOINT_EVERY == 0:
            temporary = place.checkpoint.with_suffix(".tmp")
            temporary.write_text(str(step))
            temporary.replace(place.checkpoint)


async def _hold_lock(store: Store, name: str) -> None:
    while True:
        await asyncio.sleep(LOCK_TTL_S / 4)
        if not await store.renew_learner(name, LOCK_TTL_S):
            return
