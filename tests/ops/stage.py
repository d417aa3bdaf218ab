"""What a user's machine has: the command `verge`, and the run `demo` as the documents speak of it, with scripted groups
in place of hours of training."""

import asyncio
import os
import shlex
import sys
from itertools import cycle, islice
from pathlib import Path

from actors.problems import load_problems
from ops.config import fingerprint, load_config
from ops.runfolder import enter_run_folder
from store.client import Store
from store.server import EmbeddedServer
from store.wire import Manifest
from tests.ops.documents import ROOT
from tests.ops.serving import said_group

PROBLEM = "countdown-2215=21"
SUCCESSES = (0, 0, 1, 0, 4)


def demo_run(folder: Path, model: Path) -> None:
    """The run of ops/configs/demo.toml in a folder: four groups of each of its first problems, none of them live."""
    config = load_config(ROOT / "ops" / "configs" / "demo.toml", [f"folder={folder}", f"model.path={model}"])
    enter_run_folder(config)
    problems = list(load_problems(config.problems).train)[:10]

    async def fill(url: str, password: str | None) -> None:
        store = await Store.connect(url, config.name, password)
        try:
            await store.open_run({"fingerprint": fingerprint(config), "gamma": "0.97", "group_size": "4"})
            await store.add_problems(problems)
            await store.announce(Manifest(0, str(model), "00", 1, 0, 0.0))
            correct = {problem.id: count for problem, count in zip(problems, cycle(SUCCESSES), strict=False)}
            for problem in islice(cycle(problems), 4 * len(problems)):
                await store.issue([problem.id], limit=10**6)
                (ticket,) = await store.take("a", 1)
                assert await store.commit("a", said_group(ticket, [1] * 8, correct[problem.id], 0)) == "committed"
        finally:
            await store.close()

    with EmbeddedServer(folder) as server:
        asyncio.run(fill(server.url, server.password))


def with_verge(folder: Path) -> dict[str, str]:
    """An environment in which `verge`, from `folder`/bin, and the programs of this Python are commands."""
    verge = folder / "bin" / "verge"
    verge.parent.mkdir()
    verge.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ops.cli "$@"\n')
    verge.chmod(0o755)
    path = os.pathsep.join([str(verge.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PATH": path, "PYTHONPATH": python_path}
