"""The settings of one run, and the sections of a config that they become."""

from pathlib import Path
from typing import Any

from pydantic import Field

from learner.config import (
    AdmissionConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from ops.labs.bases import Task
from store.section import Section

BASE = "base"
"""The method of a line that only measures the base."""


class RunSettings(Section):
    """One run. What is not here is a default of the learner's config: that is what the laboratory is to judge."""

    method: str = "fade_bbg"
    """Name in the registry of advantages, or `package.module:Class`; `base` measures the base and trains nothing."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the advantage."""
    lr: float = Field(1e-4, gt=0)
    """Learning rate."""
    mini_batches: int = Field(1, ge=1)
    """Optimiser steps that a step's groups are shared out to."""
    lag: int = Field(0, ge=0)
    """Age of every rollout, in versions."""
    steps: int = Field(150, ge=0)
    """Optimiser steps."""
    groups: int = Field(64, ge=1)
    """Rollout groups that are sampled for a step."""
    size: int = Field(8, ge=2)
    """Completions of a group."""
    seed: int = Field(0, ge=0)
    """Of the order of problems and of sampling."""
    base: int = Field(0, ge=0)
    """Seed with which the base was pre-trained."""
    task: Task = "all"
    """Which problems: `all`, or the `easy` ones."""
    gating: dict[str, Any] = Field(default_factory=dict)
    """Fields of [gating] that differ from its defaults."""
    correction: dict[str, Any] = Field(default_factory=dict)
    """Fields of [correction] that differ from its defaults."""
    objective: dict[str, Any] = Field(default_factory=dict)
    """Further fields of [objective] that differ from its defaults."""

    @property
    def rollouts(self) -> int:
        """Completions of the whole run."""
        return self.steps * self.groups * self.size

    def learner_settings(
        self, model: Path, run_dir: Path, store_url: str, store_password: str | None
    ) -> LearnerSettings:
        """What the learner's own parts are given. ValueError where a section refuses its fields."""
        return LearnerSettings(
            # A model this small is fastest in micro-batches that the cache holds, on one thread.
            LearnerConfig(
                steps=max(self.steps, 1),
                groups_per_step=self.groups,
                mini_batches=self.mini_batches,
                lr=self.lr,
                threads=1,
                micro_batch_tokens=2048,
            ),
            ObjectiveConfig(advantage=self.method, params=self.params, **self.objective),
            CorrectionConfig(**self.correction),
            GatingConfig(**self.gating),
            DrawConfig(),
            # As many rollouts for every method: what teaches nothing is not replaced within the step.
            AdmissionConfig(max_lag=self.lag, fruitless_limit=1),
            model=model,
            run_dir=run_dir,
            store_url=store_url,
            store_password=store_password,
            run="lab",
            temperature=1.0,
            group_size=self.size,
            seed=self.seed,
        )
