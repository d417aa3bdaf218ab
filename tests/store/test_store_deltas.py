"""Weights as what changed: what is rebuilt is the learner's file, bit for bit, or it is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from store.deltas import BLOCK, apply_deltas, encode_delta
from store.errors import VergeError

Words = np.ndarray


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def changed(words: Words, where: object) -> Words:
    """The words with those at `where` replaced by others."""
    after = words.copy()
    after[where] ^= 0x0101
    return after


def write_chain(folder: Path, versions: list[Words]) -> list[Path]:
    """The first version's file, and a delta's for every other."""
    data = [words.tobytes() for words in versions]
    paths = [folder / f"{number}" for number in range(len(data))]
    paths[0].write_bytes(data[0])
    for path, before, after in zip(paths[1:], data, data[1:], strict=False):
        delta = encode_delta(before, sha256(before), after, sha256(after))
        assert delta is not None
        path.write_bytes(delta)
    return paths


@pytest.fixture(scope="module")
def words() -> Words:
    """Weights that take a block and a bit."""
    return np.random.default_rng(0).integers(0, 1 << 16, BLOCK + 5000, dtype=np.uint16)


@pytest.mark.parametrize(
    "where",
    [
        [],
        [0],
        [-1],
        [BLOCK - 1, BLOCK],
        [0, 255, 256, 511, 512 + 255, 2000, 2000 + 511, 2000 + 512],  # gaps on both sides of 255 and of twice that
        slice(0, 600_000),
    ],
)
def test_a_delta_rebuilds_every_bit(words: Words, where: object, tmp_path: Path) -> None:
    after = changed(words, where)
    base, delta = write_chain(tmp_path, [words, after])
    assert apply_deltas(base, [delta], tmp_path / "out") == sha256(after.tobytes())
    assert (tmp_path / "out").read_bytes() == after.tobytes()


def test_a_chain_rebuilds_the_last_and_takes_three_bytes_a_change(words: Words, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    versions = [words]
    for _ in range(3):
        versions.append(changed(versions[-1], rng.choice(len(words), len(words) // 100, replace=False)))
    base, *deltas = write_chain(tmp_path, versions)
    apply_deltas(base, deltas, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == versions[-1].tobytes()
    for delta in deltas:  # one word in a hundred: two bytes of it, one of the gap, and 8 % of gaps are above 254
        assert 3.0 < delta.stat().st_size / (len(words) // 100) < 3.2


def test_there_is_no_delta_that_is_larger_than_the_weights_or_of_another_layout(words: Words) -> None:
    data = words[:10_000].tobytes()
    assert encode_delta(data, "a", changed(words[:10_000], slice(None)).tobytes(), "b") is None
    assert encode_delta(data, "a", data + b"\0\0", "b") is None


def test_a_chain_that_is_broken_or_damaged_is_refused(words: Words, tmp_path: Path) -> None:
    versions = [words, changed(words, [5]), changed(words, [5, 70_000]), changed(words, [9])]
    base, first, second, third = write_chain(tmp_path, versions)
    with pytest.raises(VergeError, match="does not follow the one before it"):
        apply_deltas(base, [first, third], tmp_path / "out")
    with pytest.raises(VergeError, match="are not those that"):
        apply_deltas(base, [second], tmp_path / "out")
    whole = second.read_bytes()
    for damaged in (b"", b"x", whole[: len(whole) // 2], whole[:-3], whole[:-2] + b"\xff\xff"):
        second.write_bytes(damaged)
        with pytest.raises(VergeError):
            apply_deltas(base, [first, second], tmp_path / "out")
    second.write_bytes(whole.replace(b"verge delta\x01", b"verge delta\x02"))
    with pytest.raises(VergeError, match="has schema 2, this version of Verge reads 1"):
        apply_deltas(base, [first, second], tmp_path / "out")
    first.unlink()
    with pytest.raises(FileNotFoundError):
        apply_deltas(base, [first, second], tmp_path / "out")
