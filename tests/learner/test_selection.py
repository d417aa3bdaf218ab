"""M2PO, Clip-Cov and KL-Cov: which tokens they mark, on examples worked out by hand."""

from typing import Any

import numpy as np
import pytest

from learner.batches import Completionwise, DoubleArray, TrainCompletion, TrainGroup
from learner.config import CorrectionConfig, ObjectiveConfig
from learner.selection import DROPPED, HELD, TRAINED, mark, second_moment_cut
from tests.learner.scripted import random_groups

UNMARKED = CorrectionConfig()
# A right and a wrong completion of three tokens each. The mean of the log-probs is −3, that of the advantages 1 and −1
# is 0, so the covariances are 2, 1, −3 and −2, −1, 3.
LOGPROBS: Completionwise = [[np.array([-1.0, -2.0, -6.0]), np.array([-1.0, -2.0, -6.0])]]


def group(behaviour: list[list[float]], advantages: tuple[float, float] = (1.0, -1.0)) -> TrainGroup:
    completions = tuple(
        TrainCompletion(np.array([1, 2, 3]), np.array(mu, np.float32), advantage)
        for mu, advantage in zip(behaviour, advantages, strict=True)
    )
    return TrainGroup("1-0", np.array([4, 5]), completions, 1.0, 2, 6)


AS_SAMPLED = group([[-1.0, -2.0, -6.0]] * 2)


def alone(values: DoubleArray) -> DoubleArray:
    return values


def marks(groups: list[TrainGroup]) -> list[list[int]]:
    return [completion.mark.tolist() for g in groups for completion in g.completions]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("squares", "threshold", "cut"),
    [
        ([0.01, 0.04, 0.09], 0.05, np.inf),  # the mean of all is .0467
        ([0.09, 0.01, 0.04], 0.04, 0.09),  # without the largest it is .025
        ([0.04, 0.01, 0.04], 0.025, 0.04),  # .025 with one of the two equal ones, but they go together
        ([1.0, 2.0], 0.5, 1.0),
        ([], 0.5, np.inf),
    ],
)
def test_the_largest_squares_go_until_the_mean_of_the_others_is_small_enough(
    squares: list[float], threshold: float, cut: float
) -> None:
    assert second_moment_cut(np.array(squares), threshold) == cut


def test_m2po_drops_the_tokens_of_the_largest_log_ratio_over_the_whole_mini_batch() -> None:
    # Squared log-ratios: .01, .16, 0 and missing, .01, .0625. Their mean is .0485; without .16 it is .0206.
    given = group([[-1.1, -1.6, -6.0], [np.nan, -2.1, -6.25]])
    found = mark([given], LOGPROBS, ObjectiveConfig(), CorrectionConfig(kind="m2po"), 0, alone)
    assert marks(found) == [[TRAINED, DROPPED, TRAINED], [TRAINED] * 3]
    tight = CorrectionConfig(kind="m2po", m2_threshold=0.01)
    found = mark([given], LOGPROBS, ObjectiveConfig(), tight, 0, alone)
    assert marks(found) == [[TRAINED, DROPPED, TRAINED], [TRAINED, TRAINED, DROPPED]]


def test_kl_cov_holds_the_tokens_of_the_highest_covariance() -> None:
    chosen = ObjectiveConfig(covariance="kl", cov_share=0.34)  # int(.34 · 6) = 2
    found = mark([AS_SAMPLED], LOGPROBS, chosen, UNMARKED, 0, alone)
    assert marks(found) == [[HELD, TRAINED, TRAINED], [TRAINED, TRAINED, HELD]]
    one = ObjectiveConfig(covariance="kl")
    assert marks(mark([AS_SAMPLED], LOGPROBS, one, UNMARKED, 0, alone)) == [[TRAINED] * 3, [TRAINED, TRAINED, HELD]]


def test_clip_cov_leaves_out_a_share_of_the_tokens_within_its_bounds_at_random() -> None:
    chosen = ObjectiveConfig(covariance="clip", cov_low=1.0, cov_high=2.5, cov_share=0.2)  # int(.2 · 6) = 1 of 2, 1
    seen = {tuple(marks(mark([AS_SAMPLED], LOGPROBS, chosen, UNMARKED, step, alone))[0]) for step in range(20)}
    assert seen == {(DROPPED, TRAINED, TRAINED), (TRAINED, DROPPED, TRAINED)}
    both = ObjectiveConfig(covariance="clip", cov_low=1.0, cov_high=2.5, cov_share=0.5)
    assert marks(mark([AS_SAMPLED], LOGPROBS, both, UNMARKED, 0, alone)) == [[DROPPED, DROPPED, TRAINED], [TRAINED] * 3]
    none = ObjectiveConfig(covariance="clip", cov_low=3.5, cov_high=5.0)
    assert marks(mark([AS_SAMPLED], LOGPROBS, none, UNMARKED, 0, alone)) == [[TRAINED] * 3] * 2


@pytest.mark.parametrize(
    ("objective", "correction"),
    [
        ({}, {"kind": "m2po", "m2_threshold": 0.02}),
        ({"covariance": "clip", "cov_low": 0.01, "cov_share": 0.1}, {}),
        ({"covariance": "kl", "cov_share": 0.1}, {"kind": "m2po", "m2_threshold": 0.05}),
    ],
)
def test_two_ranks_mark_what_one_would(objective: dict[str, Any], correction: dict[str, Any]) -> None:
    settings = ObjectiveConfig(**objective), CorrectionConfig(**correction)
    groups, rng = random_groups(8), np.random.default_rng(1)
    logprobs = [[c.behaviour + rng.normal(0, 0.2, len(c.behaviour)) for c in g.completions] for g in groups]
    expected = [marks([g]) for g in mark(groups, logprobs, *settings, 3, alone)]
    assert any(TRAINED not in {*of_completion} or len({*of_completion}) > 1 for g in expected for of_completion in g)
    shares = [[0, 3, 5], [1, 2, 4, 6, 7]]
    assert _on_two_ranks(groups, logprobs, settings, shares) == [[expected[i] for i in share] for share in shares]


def _on_two_ranks(
    groups: list[TrainGroup], logprobs: Completionwise, settings: Any, shares: list[list[int]]
) -> list[list[list[list[int]]]]:
    """The marks by rank: each gather is played until both ranks have given their part."""
    parts: list[list[DoubleArray]] = [[], []]

    class Waits(Exception):
        """The other rank has not come as far."""

    def gather_of(rank: int) -> Any:
        calls = iter(range(99))

        def gather(values: DoubleArray) -> DoubleArray:
            call = next(calls)
            if call == len(parts[rank]):
                parts[rank].append(values)
            if call >= len(parts[1 - rank]):
                raise Waits
            return np.concatenate([parts[0][call], parts[1][call]])

        return gather

    while True:
        found = []
        for rank, share in enumerate(shares):
            try:
                mine, values = [groups[i] for i in share], [logprobs[i] for i in share]
                found.append([marks([g]) for g in mark(mine, values, *settings, 3, gather_of(rank))])
            except Waits:
                continue
        if len(found) == 2:
            return found
