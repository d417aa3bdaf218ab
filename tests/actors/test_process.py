"""When an actor starts its engine."""

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from actors.process import weights_to_serve
from actors.weights import Snapshots, Whole
from store.client import Store
from store.server import EmbeddedServer
from store.snapshots import WEIGHTS_FILE, sha256_of
from store.wire import Manifest
from tests.store.scripted import META


def test_no_engine_is_started_for_a_run_that_is_over_until_a_learner_continues_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"weight": torch.zeros(4)}, tmp_path / WEIGHTS_FILE)
    size = (tmp_path / WEIGHTS_FILE).stat().st_size
    announced = Manifest(7, str(tmp_path), sha256_of(tmp_path / WEIGHTS_FILE), size, 7, 0.0)

    async def play(url: str, password: str | None) -> tuple[Whole, list[str]]:
        store = await Store.connect(url, "demo", password)
        try:
            await store.open_run(META)
            await store.announce(announced)
            await store.set_phase("done", "all 7 steps are taken")
            actor = asyncio.create_task(weights_to_serve(store, Snapshots(store, tmp_path / "scratch")))
            said: list[str] = []
            while not said:
                await asyncio.sleep(0.01)
                assert not actor.done()
                said = capsys.readouterr().err.splitlines()
            await store.set_phase("running")
            return await asyncio.wait_for(actor, 60), said
        finally:
            await store.close()

    with EmbeddedServer(tmp_path) as server:
        found, said = asyncio.run(play(server.url, server.password))
    assert said == ["actor: the run is done: all 7 steps are taken; waiting for a learner that continues it"]
    assert (found.manifest.version, found.folder) == (7, tmp_path)
