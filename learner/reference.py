"""The frozen reference model: the log-probability of every completion under it, computed once per group."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.batches import DoubleArray, TrainGroup, pack, unpack
from learner.config import LearnerSettings
from learner.loading import DTYPES, attention_for, load_model
from learner.policy import Policy, logprobs_of, shape_of
from store.errors import VergeError


class Reference:
    """A second model on every rank, whole whatever the ZeRO stage: without gradient, in the training dtype.

    Raises:
        VergeError: it has another vocabulary than the policy, or a shorter context.
    """

    def __init__(self, folder: Path, policy: Any, settings: LearnerSettings, device: torch.device) -> None:
        """`policy`: the text config of the model that is trained."""
        model: Any = load_model(
            folder, DTYPES[settings.learner.dtype], attention_for(settings.learner.attention, device)
        )
        own = model.config.get_text_config()
        if own.vocab_size != policy.vocab_size:
            raise VergeError(
                f"reference {folder} has a vocabulary of {own.vocab_size} tokens but must have {policy.vocab_size} (="
                " that of the model): to another tokenizer the same ids are other words; set objective.reference"
            )
        if own.max_position_embeddings < policy.max_position_embeddings:
            raise VergeError(
                f"reference {folder} has a context of {own.max_position_embeddings} tokens but must have ≥"
                f" {policy.max_position_embeddings} (= that of the model); set objective.reference"
            )
        self._policy = Policy(model, settings.temperature).eval().requires_grad_(False).to(device)
        self._shape, self._budget, self._device = shape_of(model), settings.learner.micro_batch_tokens, device

    def sequence_logprobs(self, groups: list[TrainGroup]) -> list[DoubleArray]:
        """Nats at the sampling temperature, float64[completions] of each group."""
        batches = pack(groups, self._shape, self._budget)
        found = unpack(groups, batches, logprobs_of(self._policy, batches, self._device))
        return [np.array([values.sum() for values in of_group]) for of_group in found]
