"""Train and held-out problems of one seed, from a fixed reserve: no seed meets another's demonstrations."""

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np

from store.errors import VergeError

Split = Literal["train", "held_out"]

HELD_OUT_SHARE = 0.25
"""Most of a reserve that a held-out split can take; the rest is for training."""

T = TypeVar("T")


def take_split(reserve: Sequence[T], split: Split, count: int, seed: int, family: str) -> list[T]:
    """The first `count` of the reserve shuffled by `seed` for training, the last `count` for held-out.

    A longer split begins with the shorter one of the same seed, and the two never meet.

    Raises:
        VergeError: `count` is not in 1 … the room of the split.
    """
    room = {"held_out": int(len(reserve) * HELD_OUT_SHARE)}
    room["train"] = len(reserve) - room["held_out"]
    if not 1 <= count <= room[split]:
        raise VergeError(f"{count} {split} problems of {family} asked for, must be 1 to {room[split]}")
    order = np.random.default_rng(seed).permutation(len(reserve))
    chosen = order[:count] if split == "train" else order[::-1][:count]
    return [reserve[i] for i in chosen]
