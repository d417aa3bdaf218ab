"""Low-rank adapters (2106.09685): only they are trained, and what is published is the model with them merged in."""

from typing import Any

import torch
from torch import Tensor, nn

from learner.config import LoraConfig
from store.errors import VergeError

_NAME = "default"
_FACTORS = (f".lora_A.{_NAME}.", f".lora_B.{_NAME}.")


def add_adapters(model: Any, config: LoraConfig) -> None:
    """Put an adapter, which changes nothing yet, beside each target in place, and freeze all else.

    Raises:
        VergeError: peft is not installed, or a target is not there or cannot be adapted.
    """
    try:
        import peft
    except ImportError as error:
        raise VergeError(f"learner.lora needs the package peft ({error}); install verge-rl[learner]") from error
    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    adapters = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            peft.inject_adapter_in_model(adapters, model)
        except ValueError as error:
            raise VergeError(f"learner.lora.targets is {config.targets!r}: {str(error).splitlines()[0]}") from error
    for layer in adapted(model).values():
        if not isinstance(layer.base_layer, nn.Linear):
            raise VergeError(
                f"learner.lora.targets is {config.targets!r}, but one of them is a {type(layer.base_layer).__name__};"
                " name linear layers only"
            )
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise VergeError(
            f"learner.lora.targets is {config.targets!r}, but the output head cannot be adapted: its log-probs are"
            " computed in chunks from its weight; leave it out"
        )


def is_factor(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return any(factor in name for factor in _FACTORS)


def plain_name(name: str) -> str:
    """The name that a parameter had before there were adapters."""
    return name.replace(".base_layer.", ".")


def adapted(model: nn.Module) -> dict[str, Any]:
    """Name of each weight that has an adapter → the layer that holds both."""
    return {f"{name}.base_layer.weight": layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}


def factors(layer: Any) -> list[nn.Parameter]:
    """A [r, in] and B [out, r] of an adapted layer."""
    return [layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight]


def merged(weight: Tensor, layer: Any) -> Tensor:
    """W + (α/r)·B·A, summed in float32, in the weight's dtype."""
    a, b = (factor.detach().float() for factor in factors(layer))
    whole: Tensor = weight.detach().float() + layer.scaling[_NAME] * (b @ a)
    return whole.to(weight.dtype)
