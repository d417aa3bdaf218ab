"""What the learner that writes a snapshot and the actor that reads it must agree on."""

import hashlib
from pathlib import Path

WEIGHTS_FILE = "model.safetensors"
"""The one file of a snapshot's folder whose bytes a manifest vouches for."""


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
