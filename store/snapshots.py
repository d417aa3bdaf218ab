"""What the learner that writes a snapshot and the actor that reads it must agree on."""

import hashlib
from pathlib import Path

WEIGHTS_FILE = "model.safetensors"
"""The one file of a snapshot's folder whose bytes a manifest vouches for."""


DELTA_FILE = "weights.delta"
"""The file of a snapshot that is a delta."""

LIVE_BEAT_S = 120.0
"""An actor whose last heartbeat is older does not keep a snapshot on disk."""
STARTING_S = 1800.0
"""The same for one whose engine is starting, which sends one heartbeat before."""


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
