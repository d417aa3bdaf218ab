"""What a run of the laboratory starts from: a pre-trained base, and problems that none was pre-trained on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from actors.families.countdown import problems
from ops.models import MODELS, resolve_model
from ops.tiny import build_tiny
from store.wire import Problem

Task = Literal["all", "easy"]
TRAIN = {"all": 512, "easy": 256}
HELD_OUT = {"all": 500, "easy": 120}
EASY_TAG = "many-answers"
LONGEST = 8
"""Tokens of a completion: seven characters and the end."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Problems that are trained on, those a choice is made on, and those it is reported on: none is in two."""

    train: tuple[Problem, ...]
    choose: tuple[Problem, ...]
    report: tuple[Problem, ...]


def splits(task: Task) -> Splits:
    """The same problems for every base and seed. `easy`: only those with many answers, of which a base solves more."""
    train, held_out = problems("train", 1500, 0), problems("held_out", 500, 0)
    if task == "easy":
        train, held_out = ([p for p in given if EASY_TAG in p.tags] for given in (train, held_out))
    held_out = held_out[: HELD_OUT[task]]
    return Splits(tuple(train[: TRAIN[task]]), tuple(held_out[0::2]), tuple(held_out[1::2]))


def base_folder(base: int) -> Path:
    """The tiny model that was pre-trained with this seed, built on first use; base 0 is the demo's."""
    if base == 0:
        return resolve_model("tiny")
    folder = (MODELS / f"tiny-countdown-seed{base}").absolute()
    build_tiny(folder, seed=base)
    return folder
