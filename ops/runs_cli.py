"""`verge ps`, `verge logs`, `verge down`: the runs of this machine."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from ops.options import AsJson
from ops.runfolder import CONFIG_FILE, holder, open_config, store_endpoint
from store.client import Store
from store.errors import VergeError

LOOK_EVERY_S = 0.2
_STORE_WITHIN_S = 3.0

RunFolder = Annotated[Path, typer.Argument(help="A run's folder, or its TOML file.", show_default=False)]


def ps(
    folder: Annotated[Path, typer.Argument(help="Where the run folders are.")] = Path("runs"), as_json: AsJson = False
) -> None:
    """List the runs in a folder: which are running, and how far each is."""
    rows = [_row(path.parent) for path in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
    if as_json:
        print(json.dumps({"runs": rows}, indent=2))
        return
    if not rows:
        print(f"no runs in {folder}; `verge up` starts one")
        return
    table = Table("run", "process", "phase", "step", "version", "reward", "actors")
    for row in rows:
        reward = row["reward"]
        step = "–" if row["step"] is None else row["step"]
        cells = (row["process"], row["phase"], f"{step}/{row['steps']}", row["version"],
                 None if reward is None else f"{reward:.3f}", row["actors"])  # fmt: skip
        table.add_row(row["folder"], *("–" if cell is None else str(cell) for cell in cells))
    Console(file=sys.stdout).print(table)


def _row(folder: Path) -> dict[str, Any]:
    """What is known of a run without starting anything: from its live store, else from its summary."""
    row: dict[str, Any] = {"folder": str(folder), "process": holder(folder), "phase": None, "step": None}
    row |= {"steps": None, "version": None, "reward": None, "actors": None}
    try:
        config = open_config(folder)
        row["steps"] = config.learner.steps
        if row["process"] is None and config.store.url is None:
            return row | _afterwards(folder)
        url, password = store_endpoint(config)
        return row | asyncio.run(_asked(url, config.name, password))
    except VergeError as error:
        return row | {"phase": str(error)}


async def _asked(url: str, run: str, password: str | None) -> dict[str, Any]:
    store = await Store.connect(url, run, password, patience_s=_STORE_WITHIN_S)
    try:
        dynamics, beats = await store.dynamics(), await store.actors()
        phase, _ = await store.phase()
    finally:
        await store.close()
    heard = [beat for beat in beats.values() if time.time() - float(str(beat["time_s"])) < 30]
    values = {name: dynamics[name] for name in ("step", "version", "reward") if name in dynamics}
    whole = {name: int(value) for name, value in values.items() if name != "reward"}
    return {"phase": phase, "actors": len(heard)} | values | whole


def _afterwards(folder: Path) -> dict[str, Any]:
    """Of a run that is not running: whether it has a summary, and the step of its last checkpoint."""
    pointer = folder / "checkpoints" / "latest"
    step = int(pointer.read_text().removeprefix("step-")) if pointer.is_file() else None
    return {"phase": "done" if (folder / "summary.json").is_file() else "stopped", "step": step}


def logs(
    run: RunFolder,
    name: Annotated[
        str | None, typer.Argument(help="learner, actor-0 …, evaluation; all of them by default.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each log to begin with.")] = 40,
) -> None:
    """Print what the processes of a run wrote, the name of each before its lines."""
    folder = open_config(run).run_folder / "logs"
    files = sorted(folder.glob("*.log"))
    if name is not None:
        chosen = [file for file in files if _is_of(file, name)]
        if not chosen:
            known = ", ".join(file.stem for file in files) or "none yet"
            raise VergeError(f"{folder} has no log of {name!r}; there are: {known}")
        files = chosen
    width = max((len(file.stem) for file in files), default=len("evaluation"))
    opened = {file: file.open(encoding="utf-8", errors="replace") for file in files}
    for path, file in opened.items():
        for line in deque(file, maxlen=lines):
            print(f"{path.stem:{width}} | " + line.rstrip("\n"))
    while follow:
        for path in sorted(folder.glob("*.log")):  # one that a process begins meanwhile belongs to them
            if path not in opened and (name is None or _is_of(path, name)):
                opened[path] = path.open(encoding="utf-8", errors="replace")
        for path, file in opened.items():
            for line in _whole_lines(file):
                print(f"{path.stem:{width}} | {line}", flush=True)
        time.sleep(LOOK_EVERY_S)


def _is_of(log: Path, name: str) -> bool:
    return log.stem == name or log.stem.startswith(f"{name}-")


def _whole_lines(file: TextIO) -> Iterator[str]:
    """The lines written since the last call; one that is not finished stays for the next."""
    while True:
        began = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(began)
            return
        yield line.rstrip("\n")


def down(
    run: RunFolder,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds in which it may drain and checkpoint.")] = 180,
) -> None:
    """Stop a run as Ctrl-C does: actors drain, the learner checkpoints, the store saves. `verge up` continues it."""
    folder = open_config(run).run_folder
    process = holder(folder)
    if process is None:
        print(f"{folder} is not running")
        return
    try:
        os.kill(process, signal.SIGTERM)
    except OSError as error:
        raise VergeError(f"process {process}, which has {folder}, cannot be stopped: {error.strerror}") from None
    if not _within(wait_s, lambda: holder(folder) != process):
        raise VergeError(f"{folder} is still in use by process {process} after {wait_s:g} s; `verge logs {folder}`")
    print(f"{folder} is stopped; `verge up` continues it")


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
