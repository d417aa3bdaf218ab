"""How often the base model solved each problem: the groups that version 0 wrote alone, read from the groups log."""

from collections.abc import Sequence

from store.client import Store
from store.wire import GroupEntry


class BaseEvidence:
    """Counts as of the last `sync`, which reads only what is new."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor = "0-0"
        self._counts: dict[str, tuple[int, int]] = {}

    async def sync(self) -> None:
        """Take in what was committed since the last call."""
        while entries := await self._store.entries(self._cursor):
            self._cursor = entries[-1].stream_id
            for entry in entries:
                (a, b), (right, wrong) = self._of(entry), _written_by_base(entry)
                self._counts[entry.problem_id] = (a + right, b + wrong)

    def without(self, entries: Sequence[GroupEntry]) -> list[tuple[int, int]]:
        """(successes, failures) of each group's problem, this group's own left out: they must not judge themselves."""
        found = []
        for entry in entries:
            (a, b), (right, wrong) = self._of(entry), _written_by_base(entry)
            found.append((a - right, b - wrong))
        return found

    def _of(self, entry: GroupEntry) -> tuple[int, int]:
        return self._counts.get(entry.problem_id, (0, 0))


def _written_by_base(entry: GroupEntry) -> tuple[int, int]:
    return (entry.c, entry.G - entry.c) if entry.version_max == 0 else (0, 0)
