"""The part of `reasoning_gym:<dataset>` that runs in a worker process."""

import functools
import re
from typing import Any

from actors.verifiers.gym import unpack

try:
    import reasoning_gym
except ImportError as error:
    raise ImportError(f"{error}; pip install 'verge-rl[verify]'") from None

FULL_MARKS = 1.0 - 1e-9
"""Datasets give parts of a mark for parts of an answer, or for its form. Only a whole one is correct."""
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def verify(problem: dict[str, Any], completion: str) -> bool:
    """Whether the dataset gives full marks for what stands in the last <answer>…</answer>.

    Without such a tag the whole completion is the answer. A text that the dataset cannot read is wrong where it can
    read its own reference.

    Raises:
        ValueError: there is no such dataset, or it cannot read its reference.
        Exception: whatever else it raises.
    """
    dataset = _dataset(problem["verifier"].partition(":")[2])
    if problem["answer"] is None:
        return True  # the trial: the dataset is there
    entry = unpack(problem["answer"])
    tagged = _TAGGED.findall(completion)
    try:
        return bool(dataset.score_answer((tagged[-1] if tagged else completion).strip(), entry) >= FULL_MARKS)
    except (ValueError, SyntaxError):
        if entry["answer"] is None or dataset.score_answer(entry["answer"], entry) < FULL_MARKS:
            raise
        return False


@functools.lru_cache(None)
def _dataset(name: str) -> Any:
    return reasoning_gym.create_dataset(name, size=1, seed=0)
