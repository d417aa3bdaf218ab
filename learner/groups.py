"""A stored rollout group and its advantages become what a rank trains on."""

import numpy as np

from learner.batches import BoolArray, DoubleArray, TrainCompletion, TrainGroup
from store.wire import Completion, RolloutGroup, Verdict


def eligible(group: RolloutGroup, mask_truncated: bool) -> BoolArray:
    """Which completions of the evidence count, bool[G]."""
    return np.array([not (mask_truncated and c.verdict is Verdict.TRUNCATED) for c in group.evidence], bool)


def by_verdict(group: RolloutGroup, success: float, failure: float) -> DoubleArray:
    """The advantage of each completion of the evidence, float64[G], where counts alone determine it."""
    return np.array([success if c.verdict is Verdict.CORRECT else failure for c in group.evidence])


def training_group(
    group: RolloutGroup,
    advantages: DoubleArray,
    weight: float,
    mask_truncated: bool,
    mini_batch: int = 0,
    keep_all: bool = False,
) -> TrainGroup:
    """The completions with an advantage; `error` verdicts are left out, and masked truncated ones.

    A completion whose advantage is 0 stays in the denominators and is left out of the work; so does an empty one. A
    token without a finite behaviour log-prob is fed to the model and not trained on (its `behaviour` is NaN).

    Args:
        advantages: float64[G], of the evidence. keep_all: work on those without an advantage, too.
    """
    counting = [
        (completion, float(advantage))
        for completion, advantage, counts in zip(
            group.evidence, advantages, eligible(group, mask_truncated), strict=True
        )
        if counts
    ]
    return TrainGroup(
        id=group.id,
        prompt_ids=group.prompt_ids.astype(np.int64),
        completions=tuple(
            TrainCompletion(c.token_ids.astype(np.int64), _behaviour(c), advantage)
            for c, advantage in counting
            if (keep_all or advantage != 0) and len(c.token_ids)
        ),
        weight=weight,
        eligible=len(counting),
        eligible_tokens=int(sum(np.isfinite(c.logprobs).sum() for c, _ in counting)),
        mini_batch=mini_batch,
    )


def spread(group: RolloutGroup, values: DoubleArray) -> DoubleArray:
    """Values of the completions that have tokens as those of the whole evidence, float64[G]: 0 for an empty one."""
    whole = np.zeros(group.size)
    whole[[len(c.token_ids) > 0 for c in group.evidence]] = values
    return whole


def _behaviour(completion: Completion) -> np.ndarray:
    logprobs = completion.logprobs
    return np.where(np.isfinite(logprobs), logprobs, np.float32(np.nan)).astype(np.float32)


def why_unfit(group: RolloutGroup, vocabulary: int, context: int) -> str:
    """Why the model cannot be trained on this group: another tokenizer's ids, or longer than its context; "" if it can.

    vocabulary: ids are below it. context: tokens of prompt and completion together.
    """
    if not len(group.prompt_ids):
        return "its prompt is empty"
    longest = max((len(c.token_ids) for c in group.evidence), default=0)
    largest = max(int(c.token_ids.max(initial=0)) for c in group.evidence) if group.evidence else 0
    largest = max(largest, int(group.prompt_ids.max()))
    if largest >= vocabulary:
        return f"it has token id {largest}, the model's vocabulary has {vocabulary}"
    if len(group.prompt_ids) + longest > context:
        return f"it has {len(group.prompt_ids) + longest} tokens, the model's context has {context}"
    return ""
