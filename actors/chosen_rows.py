"""The problems of a file or folder, checked once and then read anew whenever they are needed: no text is kept."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from actors.config import ProblemsConfig
from actors.problem_files import read_entries
from store.errors import VergeError
from store.wire import Problem


@dataclass(frozen=True, slots=True, eq=False)
class FileProblems:
    """Those rows of a source that are chosen, in its order. A million rows take a megabyte.

    `chosen`: bool [rows of the source]. Iterating raises VergeError when the source has changed since it was checked.
    """

    config: ProblemsConfig
    chosen: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(np.count_nonzero(self.chosen))

    def __iter__(self) -> Iterator[Problem]:
        number = 0
        for number, entry in enumerate(read_entries(self.config), start=1):
            if number > len(self.chosen) or entry.problem is None:
                break
            if self.chosen[number - 1]:
                yield entry.problem
        if number != len(self.chosen):
            raise VergeError(f"{self.config.source} has changed while it was read: at row {number}; start again")

    def among(self, picked: NDArray[np.bool_]) -> "FileProblems":
        """Those of these problems that are picked: bool [len(self)]."""
        chosen = self.chosen.copy()
        chosen[np.flatnonzero(chosen)] = picked
        return FileProblems(self.config, chosen)


def read_problems(config: ProblemsConfig) -> FileProblems:
    """The problems of a source that is a file or a folder, those with all of `tags`; every row is checked.

    Raises:
        VergeError: it cannot be read, lacks a mapped column, has no problem, has a bad row, named by its place, or an
            id twice.
    """
    hashes, chosen = array("Q"), bytearray()
    for entry in read_entries(config):
        if entry.why or entry.problem is None:
            raise VergeError(entry.why)
        hashes.append(_hash(entry.problem.id))
        chosen.append(set(config.tags) <= set(entry.problem.tags))
    if not hashes:
        raise VergeError(f"{config.source} has no problems; write one JSON object a line")
    _check_unique(config, np.frombuffer(hashes, np.uint64))
    found = FileProblems(config, np.frombuffer(chosen, np.bool_))
    if not len(found):
        raise VergeError(f"{config.source} has no problem with the tags {', '.join(config.tags)}")
    return found


def _check_unique(config: ProblemsConfig, hashes: NDArray[np.uint64]) -> None:
    """Ids of one hash are compared as texts, in a second reading; one in 4·10⁷ sets of a million needs it in vain."""
    values, counts = np.unique(hashes, return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return
    first: dict[str, str] = {}
    for entry in read_entries(config):
        name = "" if entry.problem is None else entry.problem.id
        if _hash(name) not in suspects:
            continue
        if name in first:
            raise VergeError(f"{entry.place}: the id {name!r} is that of {first[name]} too; ids must be unique")
        first[name] = entry.place.removeprefix(f"{config.source} ")


def _hash(problem_id: str) -> int:
    return int.from_bytes(blake2b(problem_id.encode(errors="surrogatepass"), digest_size=8).digest())
