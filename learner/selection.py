"""Which tokens of a mini-batch are left out or held back, judged together over all its micro-batches and ranks.

m2po: the second moment of the log-ratio (Zheng et al., arXiv 2510.01161). Clip-Cov and KL-Cov: the covariance of
log-prob and advantage, which is what lowers the entropy (Cui et al., arXiv 2505.22617).
"""

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from learner.batches import BoolArray, Completionwise, DoubleArray, IntArray, TrainGroup
from learner.config import CorrectionConfig, ObjectiveConfig

TRAINED, DROPPED, HELD = 0, 1, 2
"""Marks of a token: as its correction says; without gradient from its advantage; with a KL penalty besides."""
LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±this before exp: e^20 is finite in every dtype in use."""
Gather = Callable[[DoubleArray], DoubleArray]
"""A rank's numbers → those of all ranks."""


def selects(objective: ObjectiveConfig, correction: CorrectionConfig) -> bool:
    """Whether these settings mark tokens."""
    return correction.kind == "m2po" or objective.covariance != "off"


def mark(
    groups: list[TrainGroup],
    logprobs: Completionwise,
    objective: ObjectiveConfig,
    correction: CorrectionConfig,
    step: int,
    gather: Gather,
) -> list[TrainGroup]:
    """A mini-batch's groups with their tokens marked. Collective.

    Args:
        logprobs: log π of the tokens as the mini-batch finds it. step: seeds the lots that Clip-Cov draws.
    """
    answers = [answer for group in groups for answer in group.completions]
    lengths = [len(answer.token_ids) for answer in answers]
    behaviour = np.concatenate([np.zeros(0), *(answer.behaviour for answer in answers)])
    current = np.concatenate([np.zeros(0), *(values for of_group in logprobs for values in of_group)])
    advantage = np.repeat([answer.advantage for answer in answers], lengths)
    lots = np.concatenate([np.zeros(0), *(_lots(group, step) for group in groups)])

    trained = np.isfinite(behaviour)
    marks = np.full(len(trained), TRAINED, np.int64)
    if correction.kind == "m2po":
        squares = np.clip(current - np.where(trained, behaviour, current), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT) ** 2
        extreme = trained & (squares >= second_moment_cut(gather(squares[trained]), correction.m2_threshold))
        marks[extreme] = DROPPED
        trained &= ~extreme
    if objective.covariance != "off":
        covariance = _centred(current, trained, gather) * _centred(advantage, trained, gather)
        count = max(1, int(objective.cov_share * len(gather(covariance[trained]))))
        if objective.covariance == "clip":
            within = trained & (covariance >= objective.cov_low) & (covariance <= objective.cov_high)
            marks[_smallest(lots, within, count, gather)] = DROPPED
        else:
            marks[_smallest(-covariance, trained, count, gather)] = HELD
    return _with_marks(groups, np.split(marks, np.cumsum(lengths)[:-1]))


def second_moment_cut(squares: DoubleArray, threshold: float) -> float:
    """The square from which on tokens are dropped, so that the mean over the others is ≤ threshold; inf: none is.

    The largest go first, and of equal ones all: squares float64[N] ≥ 0, threshold > 0.
    """
    ascending = np.sort(squares)
    kept = int((np.cumsum(ascending) <= threshold * np.arange(1, len(ascending) + 1)).sum())
    return float(ascending[kept]) if kept < len(ascending) else np.inf


def _centred(values: DoubleArray, trained: BoolArray, gather: Gather) -> DoubleArray:
    """Values less their mean over the trained tokens of all ranks, summed in an order that no rank changes."""
    everywhere = np.sort(gather(values[trained]))
    return values - (everywhere.mean() if len(everywhere) else 0.0)


def _smallest(values: DoubleArray, among: BoolArray, count: int, gather: Gather) -> BoolArray:
    """The `count` smallest of all ranks' values (fewer where there are fewer), bool[n]."""
    everywhere = np.sort(gather(values[among]))
    if not len(everywhere):
        return among
    picked: BoolArray = among & (values <= everywhere[min(count, len(everywhere)) - 1])
    return picked


def _lots(group: TrainGroup, step: int) -> DoubleArray:
    """A random number per token in [0, 1), the same wherever and beside whatever the group is trained."""
    tokens = sum(len(answer.token_ids) for answer in group.completions)
    return np.random.default_rng([step, zlib.crc32(group.id.encode())]).random(tokens)


def _with_marks(groups: list[TrainGroup], marks: list[IntArray]) -> list[TrainGroup]:
    left = iter(marks)
    return [
        replace(group, completions=tuple(replace(answer, mark=next(left)) for answer in group.completions))
        for group in groups
    ]
