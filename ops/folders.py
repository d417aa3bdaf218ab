"""Model folders that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import VergeError


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name when the block ends well, and is removed when it does not.

    Raises:
        VergeError: `out` exists already, or cannot be written.
    """
    if out.exists():
        raise VergeError(f"{out} exists already and is something else; remove it or choose another folder")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        temporary.rename(out)
    except OSError as error:
        raise VergeError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
