"""A process and all it has started: their memory, threads and open files, from /proc."""

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

SAMPLE_EVERY_S = 0.25


def tree(root: int) -> list[int]:
    """Process ids of `root` and of what descends from it, those that have not ended."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def rss_kib(pid: int) -> int:
    """Resident memory of one process in KiB; 0 once it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def open_files(pid: int) -> int:
    """File descriptors that a process holds, sockets among them; 0 once it has ended."""
    with suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


class PeakMemory:
    """While the block runs, the largest sum of resident memory over a process and its descendants, in `kib`.

    Pages that they share count once for each.

        with PeakMemory(process.pid) as peak: ...
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        self.kib = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.kib = max(self.kib, sum(map(rss_kib, tree(self._root))))
            if self._over.wait(SAMPLE_EVERY_S):
                return
