"""Weights as what changed since an earlier version: which 16-bit words of the weights file, and their new bits.

At a small learning rate most bfloat16 weights keep every bit from one step to the next. A file is msgpack records:

    [MAGIC, SCHEMA, SHA-256 of the base, SHA-256 of the result, bytes of both]   then [gaps, words] per BLOCK words

`gaps` is one byte per changed word, how many unchanged ones precede it (255: 255 of them, and more follow in the next
byte); `words` are the new words, little-endian. The weights file is taken whole, its header included, so a result that
has the announced SHA-256 is the learner's file, bit for bit.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from store.errors import VergeError

MAGIC = "verge delta"
SCHEMA = 1
BLOCK = 1 << 22
"""Words of a block: what writing and reading hold in memory at once."""
_MORE = 255
_LARGEST = 16 * BLOCK

Words = NDArray[np.uint16]


def encode_delta(base: bytes, base_sha256: str, new: bytes, sha256: str) -> bytes | None:
    """The delta from one weights file's bytes to another's; None where too much changed for it to be smaller."""
    if len(base) != len(new) or len(new) % 2:
        return None
    before, after = (np.frombuffer(data, "<u2") for data in (base, new))
    pack = msgpack.Packer().pack
    records = [pack([MAGIC, SCHEMA, base_sha256, sha256, len(new)])]
    left = len(new) - len(records[0])
    for at in range(0, len(after), BLOCK):
        records.append(pack(_encode(before[at : at + BLOCK], after[at : at + BLOCK])))
        left -= len(records[-1])
        if left <= 0:
            return None
    return b"".join(records)


def apply_deltas(base: Path, deltas: Sequence[Path], out: Path) -> str:
    """Write to `out` what `base` becomes by a chain of deltas, oldest first; at most a block of each is in memory.

    Returns:
        The SHA-256 of the result, which is the one the last delta promises.

    Raises:
        FileNotFoundError: base or a delta is gone.
        OSError: the disk refuses.
        VergeError: a delta is damaged, or the chain has a gap.
    """
    digest = hashlib.sha256()
    streams = [_blocks(path) for path in deltas]
    heads = [next(stream, ("", "")) for stream in streams]
    for path, earlier, later in zip(deltas[1:], heads, heads[1:], strict=False):
        if later[0] != earlier[1]:
            raise VergeError(f"weights delta {path} does not follow the one before it")
    with base.open("rb") as source, out.open("wb") as target:
        while data := source.read(2 * BLOCK):
            words = np.frombuffer(bytearray(data), "<u2")
            for path, stream in zip(deltas, streams, strict=True):
                if not _apply(words, *next(stream, (b"", b"\0"))):
                    raise _damaged(path)
            block = words.tobytes()
            digest.update(block)
            target.write(block)
    if digest.hexdigest() != heads[-1][1]:
        raise VergeError(
            f"weights rebuilt from {base} by {len(deltas)} deltas are not those that {deltas[-1]} promises"
        )
    return digest.hexdigest()


def _encode(before: Words, after: Words) -> tuple[bytes, bytes]:
    changed = np.flatnonzero(before != after)
    gaps = np.diff(changed, prepend=-1) - 1
    ends = np.cumsum(gaps // _MORE + 1) - 1
    coded = np.full(ends[-1] + 1 if len(ends) else 0, _MORE, np.uint8)
    coded[ends] = gaps % _MORE
    return coded.tobytes(), after[changed].tobytes()


def _apply(block: Words, gaps: bytes, words: bytes) -> bool:
    """Change a block in place; False when the record cannot be of this block."""
    coded, new = np.frombuffer(gaps, np.uint8), words
    ends = np.flatnonzero(coded != _MORE)
    index = np.cumsum(coded, dtype=np.int64)[ends] + np.arange(len(ends))
    if 2 * len(index) != len(new) or (len(index) and index[-1] >= len(block)):
        return False
    block[index] = np.frombuffer(new, "<u2")
    return True


def _blocks(path: Path) -> Iterator[Any]:
    """(SHA-256 of the base, of the result), then (gaps, words) of every block."""
    with path.open("rb") as file:
        records = msgpack.Unpacker(file, max_buffer_size=_LARGEST, use_list=True)
        try:
            for number, record in enumerate(records):
                match record:
                    case [str(magic), int(schema), *_] if number == 0 and magic == MAGIC and schema != SCHEMA:
                        raise VergeError(
                            f"weights delta {path} has schema {schema}, this version of Verge reads {SCHEMA}"
                        )
                    case [str(magic), int(), str(base), str(result), int()] if number == 0 and magic == MAGIC:
                        yield base, result
                    case [bytes(gaps), bytes(words)] if number:
                        yield gaps, words
                    case _:
                        raise _damaged(path)
        except VergeError:
            raise
        except Exception as error:  # msgpack raises ValueError, its own errors, UnicodeDecodeError …
            raise _damaged(path) from error


def _damaged(path: Path) -> VergeError:
    return VergeError(f"weights delta {path} is damaged")
