"""Rewards that are no verdict, worked out by hand."""

import numpy as np
import pytest

from gating.shaping import soft_overlong


def test_the_overlong_penalty_grows_over_the_cache_and_no_further():
    lengths = [0, 80, 81, 90, 95, 100, 120]  # of at most 100, the last 20 the cache
    np.testing.assert_allclose(soft_overlong(lengths, 100, 20), [0, 0, -0.05, -0.5, -0.75, -1, -1], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: soft_overlong([5], 10, 11), r"cache is 11 but must be a finite number in \[1, 10\]"),
        (lambda: soft_overlong([-1], 10, 2), "lengths is -1"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
