"""The file of an exported run: a stream of msgpack records that ends in a checksum.

[MAGIC, SCHEMA, run, Unix seconds]   [kind, name, value] …   ["end", how many]   SHA-256 of all of that, 32 bytes
"""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgpack

from store.errors import VergeError

MAGIC = "verge state"
SCHEMA = 1
_DIGEST = 32
_BLOCK = 1 << 20
_LARGEST = 512 << 20
"""Bytes of one record: a payload has at most 256 MiB."""


class StateWriter:
    """Writes a state file under a temporary name; it appears under its own only when it is whole and on disk.

    with StateWriter(path, run) as out:
        out.write("hash", "meta", [b"gamma", b"0.9"])
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + ".tmp")
        self._hash = hashlib.sha256()
        self._packer = msgpack.Packer()
        self.records = 0
        try:
            self._file = self._temporary.open("wb")
        except OSError as error:
            raise VergeError(f"{path} cannot be written: {error.strerror}") from None
        self._append([MAGIC, SCHEMA, run, time.time()])

    def write(self, kind: str, name: str, value: Any) -> None:
        """Append one record."""
        self._append([kind, name, value])
        self.records += 1

    def _append(self, record: list[Any]) -> None:
        packed = self._packer.pack(record)
        self._hash.update(packed)
        self._file.write(packed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        with self._file:
            if failed is None:
                self._append(["end", self.records])
                self._file.write(self._hash.digest())
                self._file.flush()
                os.fsync(self._file.fileno())
        if failed is None:
            self._temporary.replace(self._path)
        else:
            self._temporary.unlink()


def check_state(path: Path) -> str:
    """See that a file is a whole state file of a schema that can be read; returns its checksum.

    Raises:
        VergeError: it cannot be read, is no state file, is of a newer schema, or is truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            match next(_records(file), None):
                case [str(magic), int(schema), *_] if magic == MAGIC and schema > SCHEMA:
                    raise VergeError(
                        f"{path} has schema {schema}, this version of Verge reads up to {SCHEMA}; use a newer Verge"
                    )
                case [str(magic), int(), *_] if magic == MAGIC:
                    pass
                case _:
                    raise VergeError(f"{path} is not a file that `verge state export` wrote")
            left = file.seek(0, os.SEEK_END) - _DIGEST
            file.seek(0)
            digest = hashlib.sha256()
            while left > 0:
                block = file.read(min(left, _BLOCK))
                digest.update(block)
                left -= len(block)
            if file.read() != digest.digest():
                raise VergeError(f"{path} is truncated or damaged: its checksum does not match; export it again")
    except OSError as error:
        raise VergeError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def read_state(path: Path) -> Iterator[tuple[str, str, Any]]:
    """The records (kind, name, value) of a file that `check_state` found whole; at most one is in memory."""
    with path.open("rb") as file:
        records = _records(file)
        next(records)
        for record in records:
            if record[0] == "end":
                return
            yield record[0], record[1], record[2]


def _records(file: Any) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(file, max_buffer_size=_LARGEST, use_list=True)
    try:
        yield from unpacker
    except Exception as error:  # msgpack raises ValueError, its own errors, UnicodeDecodeError …
        raise VergeError(f"{file.name} is not a file that `verge state export` wrote") from error
