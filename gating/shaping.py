"""Terms of the reward that are no verdict. They are added to an advantage, and multiply nothing that depends on r."""

import numpy as np
import numpy.typing as npt

from gating.checks import Array, whole


def soft_overlong(lengths: npt.ArrayLike, limit: int, cache: int) -> Array:
    """0 up to limit − cache tokens, from there linearly down to −1 at the limit (DAPO, arXiv 2503.14476, eq. 13).

    Args:
        lengths: tokens of each completion, any shape. limit: the most they may have. cache: ≥ 1, ≤ limit.
    """
    tokens, most = whole("lengths", lengths), int(whole("limit", limit, 1))
    return np.asarray(np.clip((most - int(whole("cache", cache, 1, most)) - tokens) / cache, -1.0, 0.0))
