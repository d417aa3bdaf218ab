"""How the output head has changed since the base model: how far, and in how many directions.

Failures that weigh too much push every wrong token down along one direction, and the change of the head tends to rank
one long before a reward shows it (FADE, its second failure). A change of full rank r has a top share near 1/r.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

_RANK = 6
"""Of the sketch that the top singular value is read from."""
_ITERATIONS = 4


@dataclass(frozen=True, slots=True)
class HeadChange:
    """Of the head after `step` steps: ‖W − W₀‖ / ‖W₀‖ (Frobenius), and σ₁² / Σσᵢ² of W − W₀ (0 where it is 0)."""

    step: int
    norm: float
    top_share: float


def head_change(head: Tensor, base: Tensor, step: int) -> HeadChange:
    """Measure W − W₀, both [vocabulary, width], by a randomised SVD whose random numbers are always the same."""
    change = head.float() - base.float()
    norm = float(change.norm())
    if norm == 0:
        return HeadChange(step, 0.0, 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, values, _ = torch.svd_lowrank(change, min(_RANK, *change.shape), _ITERATIONS)
    return HeadChange(step, norm / float(base.float().norm()), float(values[0]) ** 2 / norm**2)


class HeadWatch:
    """Measures the head every `every` steps in a thread of its own.

    watch(weights) ──step is due──▶ the head is copied as it passes ──thread──▶ `newest`
                   └─it is not, or the last measurement still runs──▶ weights pass untouched
    """

    def __init__(self, name: str, base: Iterable[tuple[str, Tensor]], every: int) -> None:
        """`name` of the head among the weights; `base`: those of the base model."""
        self._name, self._every = name, every
        for key, value in base:  # through to the end: gathering them is collective
            if key == name:
                self._base = value.detach().to("cpu", copy=True)
        self._thread = ThreadPoolExecutor(1, "geometry")
        self._pending: Future[HeadChange] | None = None
        self.newest: HeadChange | None = None

    def watch(self, weights: Iterable[tuple[str, Tensor]], step: int) -> Iterable[tuple[str, Tensor]]:
        """The same weights, to be run through once."""
        self.poll()
        if step % self._every or self._pending is not None:
            return weights
        return self._measured(weights, step)

    def poll(self) -> None:
        """Take in a measurement that is done."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the measurement that runs, if one does."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.newest = pending.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _measured(self, weights: Iterable[tuple[str, Tensor]], step: int) -> Iterator[tuple[str, Tensor]]:
        for name, value in weights:
            if name == self._name:
                copy = value.detach().to("cpu", copy=True)
                self._pending = self._thread.submit(head_change, copy, self._base, step)
            yield name, value
