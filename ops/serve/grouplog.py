"""The log of all groups as numpy columns, for questions about a run's whole past: about 50 bytes a group."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.client import Store
from store.groups import stream_order
from store.wire import GroupEntry

_BATCH = 10_000
_COLUMNS: dict[str, type[np.generic]] = {
    "row": np.int32,
    "size": np.int32,
    "correct": np.int32,
    "version_min": np.int32,
    "version_max": np.int32,
    "tokens": np.int64,
    "ms": np.int64,
    "sequence": np.int64,
}


class GroupLog:
    """Every committed group: its problem's row in the mirror, G, c, versions, tokens, and its id in the log.

    empty ──read, take──▶ as the log ──read, take──▶ …
                             └──the log is not where it was (the server lost its last second)──▶ read anew
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(0, dtype) for name, dtype in _COLUMNS.items()}
        self._count = 0
        self._cursor = "0-0"

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in _COLUMNS:
            raise AttributeError(name)
        return self._columns[name][: self._count]

    async def read(self, store: Store) -> list[GroupEntry]:
        """The entries that are new; the caller makes sure that it knows their problems, and lets `take` have them."""
        fresh: list[GroupEntry] = []
        cursor = self._cursor
        while True:
            read = await store.entries(cursor, _BATCH, inclusive=True)
            if cursor != "0-0":
                if not read or read[0].stream_id != cursor:
                    self._forget()
                    return await self.read(store)
                del read[0]
            fresh.extend(read)
            if read:
                cursor = read[-1].stream_id
            if len(read) < _BATCH - 1:
                return fresh

    def take(self, entries: Sequence[GroupEntry], index: Mapping[str, int]) -> None:
        """Append entries that `read` returned. `index`: the row of each problem."""
        if not entries:
            return
        rows = [
            (
                index[entry.problem_id], entry.G, entry.c, entry.version_min, entry.version_max, entry.tokens,
                *stream_order(entry.stream_id),
            )
            for entry in entries
        ]  # fmt: skip
        end = self._count + len(rows)
        for (name, dtype), values in zip(_COLUMNS.items(), zip(*rows, strict=True), strict=True):
            column = self._columns[name]
            if end > len(column):
                column = np.concatenate([column[: self._count], np.zeros(max(end, 1024), dtype)])
            column[self._count : end] = values
            self._columns[name] = column
        self._count, self._cursor = end, entries[-1].stream_id

    async def of_problem(self, store: Store, row: int) -> list[GroupEntry]:
        """The groups of the problem in a row, oldest first, with their ids."""
        found = np.flatnonzero(self.row == row)
        ids = [f"{ms}-{sequence}" for ms, sequence in zip(self.ms[found], self.sequence[found], strict=True)]
        read = await asyncio.gather(*(store.entries(stream_id, 1, inclusive=True) for stream_id in ids))
        return [entry for entries in read for entry in entries]

    async def page(self, store: Store, offset: int, limit: int) -> list[GroupEntry]:
        """`limit` groups from number `offset` on, oldest first, with their ids."""
        if offset >= self._count:
            return []
        first = f"{self.ms[offset]}-{self.sequence[offset]}"
        return await store.entries(first, min(limit, self._count - offset), inclusive=True)

    def counts(self, among: NDArray[np.bool_], problems: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """(G, c) summed over some of the groups, of every problem: two float64[problems]."""
        row = self.row[among]
        return np.bincount(row, self.size[among], problems), np.bincount(row, self.correct[among], problems)

    def changes(self, problems: int, after_version: int, to_version: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows of the problems newly solved and newly lost between two versions, as `store.queries.changes` defines
        them."""
        before = self.version_max <= after_version
        later = ~before & (self.version_max <= to_version)
        tried, solved = (counts > 0 for counts in self.counts(before, problems))
        tried_later, solved_later = (counts > 0 for counts in self.counts(later, problems))
        return np.flatnonzero(tried & ~solved & solved_later), np.flatnonzero(solved & tried_later & ~solved_later)
