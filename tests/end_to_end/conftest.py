"""One real vLLM engine per session: starting it takes longer than any test that uses it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.live import LiveEngine


@pytest.fixture(scope="session")
def live(tiny_model: Path) -> Iterator[LiveEngine]:
    with asyncio.Runner() as runner:
        engine = LiveEngine(tiny_model, runner)
        yield engine
        runner.run(engine.engine.close())
