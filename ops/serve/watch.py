"""What the server knows of its run: facts kept up to date, and the opinions on them, for all who look."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.serve.grouplog import GroupLog
from store.client import Store
from store.errors import VergeError
from store.evaluations import ROUNDS_LOG, Round
from store.mirror import Mirror
from store.queries import Gate, problem_columns, summary_of

TICK_S = 1.0
"""The store is asked at most this often, however many look."""
_RECENT = 100
_ALL = 100_000


class StoreAway(VergeError):
    """The store did not answer, or does not have the run."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The run as it was at one time."""

    facts: int
    """Rises with every change of the problems' facts or of the version."""
    version: int
    columns: dict[str, NDArray[Any]]
    summary: dict[str, Any]
    history: tuple[dict[str, float], ...]
    """The dynamics of every step, oldest first; a step that was taken again after a resume counts once."""
    rounds: tuple[Round, ...]
    """The finished evaluation rounds, oldest first."""
    memory: dict[str, float]
    """`memory_bytes` that Redis takes, its `memory_limit_bytes` (0: none), and `max_payload_bytes` of the run."""


class Watch:
    """Looks at the store when somebody asks, at most once per TICK_S; while nobody asks, the store is not read.

    The opinions are `store.queries`' on a `store.mirror`, both of which the learner's are made with.
    """

    def __init__(self, store: Store, gate: Gate, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.gate = gate
        self.log = GroupLog()
        self.mirror = Mirror(store, pool=False)
        self._clock = clock
        self._lock = asyncio.Lock()
        self._moment: Moment | None = None
        self._unfinished = False
        """Whether the last look took in news and then failed, so that the columns are older than the log."""
        self._looked_s = -np.inf
        self._trouble: StoreAway | None = None
        self._history: list[dict[str, float]] = []
        self._rounds: list[Round] = []

    async def now(self) -> Moment:
        """The run, as it was at most TICK_S ago.

        Raises:
            StoreAway: the store does not answer or has no such run.
        """
        async with self._lock:
            if self._clock() - self._looked_s >= TICK_S:
                self._trouble = None
                try:
                    self._moment = await self._look()
                except VergeError as error:
                    self._trouble = StoreAway(str(error))
                self._looked_s = self._clock()
            if self._trouble is not None:
                raise self._trouble
            assert self._moment is not None
            return self._moment

    async def _look(self) -> Moment:
        before, unfinished, self._unfinished = self._moment, self._unfinished, True
        entries = await self.log.read(self.store)
        manifest = await self.store.manifest()
        version = manifest.version if manifest else 0
        added = await self.store.problem_ids(len(self.mirror.ids), 1)
        if before is None or unfinished or entries or added or version != before.version:
            # After the log was read: whatever problem it names, the mirror then has.
            columns = await problem_columns(self.store, self.gate, mirror=self.mirror)
            self.log.take(entries, self.mirror.index)
        else:
            columns = before.columns
        await self._read_history()
        self._rounds += await self.store.rounds(self._rounds[-1].version if self._rounds else -1)
        del self._rounds[:-ROUNDS_LOG]
        moment = Moment(
            before.facts + (columns is not before.columns) if before else 0,
            version,
            columns,
            await summary_of(self.store, columns),
            tuple(self._history),
            tuple(self._rounds),
            await _memory(self.store),
        )
        self._unfinished = False
        return moment

    async def _read_history(self) -> None:
        recent = await self.store.dynamics_history(_RECENT)
        known = {_key(record) for record in self._history[-_RECENT:]}
        if len(recent) == _RECENT and _key(recent[0]) not in known:
            self._history, known, recent = [], set(), await self.store.dynamics_history(_ALL)
        for record in recent:
            if _key(record) not in known and "step" in record:
                while self._history and self._history[-1]["step"] >= record["step"]:
                    self._history.pop()  # taken back by a resume
                self._history.append(record)


async def _memory(store: Store) -> dict[str, float]:
    info = await store.link.call(lambda redis: redis.info("memory"))
    nodes = [info] if "used_memory" in info else list(info.values())  # a cluster answers node by node
    limit = (await store.meta()).get("max_payload_bytes")
    return {
        "memory_bytes": sum(node["used_memory"] for node in nodes),
        "memory_limit_bytes": sum(node["maxmemory"] for node in nodes),
        **({} if limit is None else {"max_payload_bytes": float(limit)}),
    }


def _key(record: dict[str, float]) -> tuple[float, ...]:
    return tuple(record.get(name, -1.0) for name in ("step", "step_s", "wait_s"))
