"""The facts of every problem and of the pool as numpy columns, kept up to date from the groups log."""

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gating import posterior
from store.client import Store
from store.errors import VergeError
from store.groups import stream_order
from store.wire import GroupEntry

_BATCH = 10_000
_COLUMNS: dict[str, tuple[str, type[np.generic]]] = {
    "attempts": ("n", np.int64),
    "successes": ("s", np.int64),
    "evidence_a": ("a", np.float64),
    "evidence_b": ("b", np.float64),
    "version": ("version", np.int64),
    "groups": ("groups", np.int64),
}
"""Column → its field in the problem's hash, and its type."""


@dataclass(slots=True)
class PoolGroup:
    """A group that can be drawn. `last_step` is −1 before its first use."""

    entry: GroupEntry
    uses: int = 0
    last_step: int = -1


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """A mirror makes many objects and no garbage: looking for it, again and again, would be a third of the work."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Mirror:
    """Facts as of the last `sync`, which reads only what is new.

    empty ──sync──▶ loaded ──sync──▶ loaded …
                       └──the log is not where it was (the server lost its last second)──▶ loaded anew

    Invariants: row i of every column is problem `ids[i]`; each entry of the log counts exactly once, because the
    cursor is taken before the problems are read, and an entry that a problem's `last_seen` covers is passed over.
    """

    def __init__(self, store: Store, pool: bool = True) -> None:
        """`pool` False: only the problems, for questions about them."""
        self._store = store
        self._with_pool = pool
        self._forget()

    def _forget(self) -> None:
        self.ids: list[str] = []
        self.index: dict[str, int] = {}
        self.pool: dict[str, PoolGroup] = {}
        self.gamma = float("nan")
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(0, dtype) for name, (_, dtype) in _COLUMNS.items()}
        self._cursor = ""
        self._ahead: dict[int, tuple[int, int]] = {}

    def _column(self, name: str) -> NDArray[Any]:
        return self._columns[name][: len(self.ids)]

    @property
    def attempts(self) -> NDArray[np.int64]:
        """[problems] lifetime attempts n."""
        return self._column("attempts")

    @property
    def successes(self) -> NDArray[np.int64]:
        """[problems] lifetime successes s."""
        return self._column("successes")

    @property
    def evidence_a(self) -> NDArray[np.float64]:
        """[problems] successes discounted to `version`, without the prior."""
        return self._column("evidence_a")

    @property
    def evidence_b(self) -> NDArray[np.float64]:
        """[problems] failures discounted to `version`, without the prior."""
        return self._column("evidence_b")

    @property
    def version(self) -> NDArray[np.int64]:
        """[problems] the version to which the evidence is discounted."""
        return self._column("version")

    @property
    def groups(self) -> NDArray[np.int64]:
        """[problems] committed groups."""
        return self._column("groups")

    def evidence_at(self, now_version: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(a, b) of every problem as they are worth at `now_version`."""
        return posterior.evidence_at(self.evidence_a, self.evidence_b, self.version, now_version, self.gamma)

    def remove(self, ids: Iterable[str]) -> None:
        """Groups that the caller retired leave the pool."""
        for group_id in ids:
            self.pool.pop(group_id, None)

    def used(self, ids: Iterable[str], step: int) -> None:
        """Groups that the caller recorded as drawn at `step`, as `Store.use` counts them."""
        for group_id in ids:
            group = self.pool.get(group_id)
            if group is not None and group.last_step < step:
                group.uses += 1
                group.last_step = step

    async def sync(self) -> list[GroupEntry]:
        """Take in what happened since the last call; returns the entries of the groups that joined the pool.

        Raises:
            VergeError: the run does not exist.
        """
        with _nothing_collected():
            return await self._sync()

    async def _sync(self) -> list[GroupEntry]:
        if not self._cursor:
            await self._load()
        fresh: list[GroupEntry] = []
        while True:
            read = await self._store.entries(self._cursor, _BATCH, inclusive=True)
            if self._cursor != "0-0":
                if not read or read[0].stream_id != self._cursor:
                    self._forget()
                    return await self._sync()
                del read[0]
            await self._load_new_problems()
            fresh.extend(self._take_in(read))
            if read:
                self._cursor = read[-1].stream_id
            if len(read) < _BATCH - 1:
                return fresh

    async def _load(self) -> None:
        meta = await self._store.meta()
        if "gamma" not in meta:
            raise VergeError(f"run {self._store.keys.run!r} does not exist in this store")
        self.gamma = float(meta["gamma"])
        self._cursor = await self._store.last_entry()
        await self._load_new_problems()
        if self._with_pool:
            for entry, uses, last_step in await self._store.live_groups():
                self.pool[entry.id] = PoolGroup(entry, uses, last_step)

    async def _load_new_problems(self) -> None:
        fields = [field for field, _ in _COLUMNS.values()]
        cursor = stream_order(self._cursor)
        while True:
            start = len(self.ids)
            ids, facts, late = await self._store.problem_table(start, fields, self._cursor)
            if not ids:
                return
            self._grow(start + len(ids))
            self.ids.extend(ids)
            self.index.update(zip(ids, range(start, start + len(ids)), strict=True))
            for (name, (_, dtype)), numbers in zip(_COLUMNS.items(), facts, strict=True):
                self._column(name)[start:] = np.fromstring(numbers, dtype, sep=" ")
            orders = ((start + place, stream_order(seen)) for place, seen in late)
            self._ahead.update((row, order) for row, order in orders if order > cursor)

    def _grow(self, rows: int) -> None:
        capacity = len(self._columns["attempts"])
        if rows > capacity:
            more = max(rows - capacity, capacity)
            self._columns = {
                name: np.concatenate([column, np.zeros(more, column.dtype)]) for name, column in self._columns.items()
            }

    def _take_in(self, entries: Sequence[GroupEntry]) -> list[GroupEntry]:
        counted = [entry for entry in entries if not self._covered(entry)]
        if counted:
            self._count(counted)
        joined = [entry for entry in entries if entry.id not in self.pool]
        if self._with_pool:
            self.pool.update((entry.id, PoolGroup(entry)) for entry in joined)
        return joined

    def _covered(self, entry: GroupEntry) -> bool:
        row = self.index[entry.problem_id]
        if row not in self._ahead:
            return False
        if stream_order(entry.stream_id) <= self._ahead[row]:
            return True
        del self._ahead[row]
        return False

    def _count(self, entries: Sequence[GroupEntry]) -> None:
        """Lazy discount of many groups at once: it commutes, so all move to the newest version of their problem."""
        row = np.array([self.index[entry.problem_id] for entry in entries])
        size, correct, written = (
            np.array([getattr(entry, name) for entry in entries]) for name in ("G", "c", "version_min")
        )
        a, b, version = self.evidence_a, self.evidence_b, self.version
        touched = np.unique(row)
        before = version[touched]
        np.maximum.at(version, row, written)
        a[touched], b[touched] = posterior.evidence_at(a[touched], b[touched], before, version[touched], self.gamma)
        more_a, more_b = posterior.evidence_at(correct, size - correct, written, version[row], self.gamma)
        np.add.at(a, row, more_a)
        np.add.at(b, row, more_b)
        np.add.at(self.attempts, row, size)
        np.add.at(self.successes, row, correct)
        np.add.at(self.groups, row, 1)
