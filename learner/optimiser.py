"""AdamW for the trained parameters: which implementation takes the step, and how its gradient is clipped."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from learner.config import LearnerConfig
from store.errors import VergeError


def make_optimizer(parameters: Iterable[Parameter], learner: LearnerConfig, device: torch.device) -> Any:
    """The optimiser that `learner.optimiser` names.

    Raises:
        VergeError: `cpu_adam` was asked for and cannot work here.
    """
    options: dict[str, Any] = {"lr": learner.lr, "betas": learner.betas, "weight_decay": learner.weight_decay}
    if learner.optimiser == "torch":
        return torch.optim.AdamW(parameters, fused=True, **options)
    if device.type != "cpu":
        raise VergeError(
            f"learner.optimiser is cpu_adam, which updates weights in CPU memory, but they are on {device}; set it to"
            " torch"
        )
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    try:
        return DeepSpeedCPUAdam(parameters, adamw_mode=True, **options)
    except RuntimeError as error:
        why = str(error.__cause__ or error).splitlines()[0]
        raise VergeError(
            f"learner.optimiser is cpu_adam, and DeepSpeed cannot build that op here ({why}); install a C++ compiler"
            " and ninja, or set it to torch"
        ) from error


def clip(parameters: Iterable[Parameter], longest: float) -> float:
    """Scale gradients longer than `longest` down to it, in place; returns the global norm before."""
    trained = [p for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
    if longest < norm < float("inf"):  # within the limit, a pass over every gradient is saved
        torch.nn.utils.clip_grads_with_norm_(trained, longest, norm)
    return float(norm)
