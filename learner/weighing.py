"""Stored groups and the plan of a step → what a rank trains on: an advantage for every completion.

Advantages of counts come with the plan. Those that read how likely a completion is are made here: from the behaviour
log-probs, or, where a reference is read too, from those of the weights at the step's start. The reference's are kept in
the store beside the group, so that its next use does not need them computed again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gating import advantages
from gating.filtered import leave_one_out
from gating.history import LikelihoodAdvantage
from gating.reference import ReferenceAdvantage
from gating.shaping import soft_overlong
from learner.batches import DoubleArray, TrainGroup
from learner.config import LearnerSettings
from learner.groups import by_verdict, eligible, spread, training_group
from learner.reference import Reference
from learner.steps import TakesSteps
from learner.store_thread import StoreThread
from store.wire import RolloutGroup, Verdict

Groups = Mapping[int, RolloutGroup]
"""This rank's groups, by their place in the plan."""


class Weigher:
    """What `objective` makes of the groups of a plan."""

    def __init__(self, settings: LearnerSettings, trainer: TakesSteps, line: StoreThread) -> None:
        self._settings, self._trainer, self._line = settings, trainer, line
        self._objective = settings.objective
        kind = advantages.find(self._objective.advantage)
        self._by_likelihood = issubclass(kind, LikelihoodAdvantage)
        self._reference: Reference | None = None
        if issubclass(kind, ReferenceAdvantage):
            folder = settings.reference or settings.model
            self._reference = Reference(folder, trainer.config, settings, trainer.device)

    def weigh(self, groups: Groups, plan: Mapping[str, Any]) -> list[TrainGroup]:
        """The groups with advantages. Collective."""
        found = self._from_likelihood(groups, plan) if self._by_likelihood else _from_counts(groups, plan)
        minis, bonus = self._settings.learner.mini_batches, self._objective.entropy_bonus > 0
        return [
            training_group(
                group,
                found[place] + self._overlong(group),
                plan["weight"][place],
                self._objective.truncated == "mask",
                place % minis,
                keep_all=bonus,
            )
            for place, group in groups.items()
        ]

    def _overlong(self, group: RolloutGroup) -> DoubleArray:
        """What the soft overlong penalty adds to each advantage of the evidence: it less that of the others."""
        added, judged = np.zeros(group.size), eligible(group, self._objective.truncated == "mask")
        if self._objective.overlong_cache and judged.sum() > 1:
            limit = self._settings.completion_limit
            assert limit is not None, "overlong_cache needs completion_limit"
            lengths = np.array([len(item.token_ids) for item in group.evidence])[judged]
            added[judged] = leave_one_out(soft_overlong(lengths, limit, self._objective.overlong_cache))
        return added

    def _from_likelihood(self, groups: Groups, plan: Mapping[str, Any]) -> dict[int, DoubleArray]:
        logprobs, references = self._logprobs(groups), self._references(groups, plan["ids"])
        found = {}
        for place, group in groups.items():
            a, b = plan["base"][place]
            advantage = advantages.bind(self._objective.advantage, self._objective.params, base_a=a, base_b=b)
            judged = eligible(group, self._objective.truncated == "mask")
            rewards = np.array([[item.verdict is Verdict.CORRECT for item in group.evidence]], np.float64)[:, judged]
            inputs = [values[place][None, judged] for values in (logprobs, references) if values]
            found[place] = np.zeros(group.size)
            if not all(np.isfinite(values).all() for values in inputs):
                found[place][judged] = np.nan  # the model has diverged: the step is skipped, and says so
            elif judged.any() and advantage.teaches(rewards.sum(), rewards.size):
                found[place][judged] = advantage.completions(rewards, *inputs)[0]
        return found

    def _logprobs(self, groups: Groups) -> dict[int, DoubleArray]:
        """log π of each completion of the evidence, nats. Collective where a reference is compared with it."""
        if self._reference is None:
            return {place: _behaviour(group) for place, group in groups.items()}
        minis = self._settings.learner.mini_batches
        whole = [training_group(group, np.ones(group.size), 1.0, False, i % minis) for i, group in groups.items()]
        found = self._trainer.logprobs(whole)
        sums = [np.array([values.sum() for values in of_group]) for of_group in found]
        return {place: spread(groups[place], values) for place, values in zip(groups, sums, strict=True)}

    def _references(self, groups: Groups, ids: list[str]) -> dict[int, DoubleArray]:
        """log a of each completion of the evidence, nats: from the store, or computed and kept there."""
        if self._reference is None:
            return {}
        store = self._line.store
        kept = self._line.call(store.reference_logprobs([ids[place] for place in groups]))
        found = {
            place: values
            for place, group in groups.items()
            if (values := kept[ids[place]]) is not None and len(values) == group.size
        }
        missing = {place: group for place, group in groups.items() if place not in found}
        whole = [training_group(group, np.ones(group.size), 1.0, False) for group in missing.values()]
        for place, values in zip(missing, self._reference.sequence_logprobs(whole), strict=True):
            found[place] = spread(groups[place], values)
        if missing:
            self._line.call(store.keep_reference_logprobs({ids[place]: found[place] for place in missing}))
        return found


def _from_counts(groups: Groups, plan: Mapping[str, Any]) -> dict[int, DoubleArray]:
    return {place: by_verdict(group, plan["success"][place], plan["failure"][place]) for place, group in groups.items()}


def _behaviour(group: RolloutGroup) -> DoubleArray:
    """log μ of each completion; a missing token counts as the mean of the others."""
    sums = []
    for item in group.evidence:
        present = item.logprobs[np.isfinite(item.logprobs)].astype(np.float64)
        sums.append(present.mean() * len(item.logprobs) if len(present) else 0.0)
    return np.array(sums)
