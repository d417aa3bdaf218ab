"""What several rooms' tests share: one tiny model, built once and kept in models/ as the demo keeps it."""

from pathlib import Path

import pytest

from ops.models import resolve_model


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Folder of the tiny Countdown model."""
    return resolve_model("tiny")
