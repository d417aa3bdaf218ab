"""What the rollout loop asks of an engine: vLLM's, or in a soak one that only writes a script."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.engine import Sample
from actors.load import Load


class Generates(Protocol):
    """An engine as `actors.engine.Engine` is one."""

    version: int
    load: Load

    @property
    def death(self) -> str | None:
        """Why it can no longer generate, or None while it can."""

    def room(self, given: int) -> int:
        """Groups to give it now, when it was given so many and has not returned them; 0 or less: enough."""

    async def generate(
        self, prompt_ids: NDArray[np.int32], max_tokens: int | None = None, count: int | None = None
    ) -> list[Sample]:
        """Completions of one prompt: a group, or `count`, which is no more."""

    async def update(self, version: int, weights: Path) -> float:
        """Go on with the weights of a folder; returns the seconds in which nothing was generated."""
