"""A scripted run on an embedded store, and the server over it, for all tests of `verge serve`."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.acl import rules
from store.client import Store
from store.server import EmbeddedServer
from tests.ops.serving import Served, fill, make_run, serving, write_tokenizer

READER = ("reading", "the reader's password")


@dataclass(frozen=True, slots=True)
class Scripted:
    """A run whose store runs; `groups` in the order in which they were committed."""

    folder: Path
    model: Path
    store: EmbeddedServer
    groups: list[str]

    async def connect(self, name: str = "served") -> Store:
        return await Store.connect(self.store.url, name, self.store.password, patience_s=20)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    folder = tmp_path_factory.mktemp("served")
    model = write_tokenizer(tmp_path_factory.mktemp("model"))
    make_run(folder, model)
    with EmbeddedServer(folder) as server:

        async def filled() -> list[str]:
            store = await Store.connect(server.url, "served", server.password)
            try:
                return await fill(store, model)
            finally:
                await store.close()

        yield Scripted(folder, model, server, asyncio.run(filled()))


@pytest.fixture(scope="session")
def served(scripted: Scripted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server over the scripted run, with the rights of a reader of the store and no others."""
    folder = tmp_path_factory.mktemp("reading")
    (folder / "password").write_text(READER[1] + "\n")
    url = scripted.store.url.replace("redis://", f"redis://{READER[0]}@")
    make_run(folder, scripted.model, store={"url": url, "password_file": str(folder / "password")})

    async def allow() -> None:
        store = await scripted.connect()
        try:
            name, password = READER
            await store.link.redis.execute_command(
                "ACL SETUSER", name, "on", f">{password}", *rules(store.keys, "reader")
            )
        finally:
            await store.close()

    asyncio.run(allow())
    with serving(folder) as server:
        yield server
