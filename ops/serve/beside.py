"""The page beside a run."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ops.beside import Beside
from ops.children import Child
from ops.config import RunConfig
from ops.serve.process import URL_FILE

_GRACE_S = 3.0


class PageBeside(Beside):
    """`verge serve` as a child (off with serve.enabled = false), with its address said once it is known."""

    def __init__(self, config: RunConfig, folder: Path, say: Callable[[str], None]) -> None:
        serve = Child("serve", ["serve", str(folder)], folder / "logs" / "serve.log")
        super().__init__("the page", serve if config.serve.enabled else None, _GRACE_S, say)
        self._folder = folder
        self._said = ""

    def _running(self, pid: int) -> None:
        found = {}
        with suppress(OSError, ValueError):
            found = json.loads((self._folder / URL_FILE).read_text(encoding="utf-8"))
        if found.get("pid") == pid and found["url"] != self._said:
            self._said = found["url"]
            self._say(f"page: {self._said}")
