"""A Hugging Face folder to the model that the learner computes with."""

from pathlib import Path
from typing import Literal

import torch

from store.errors import VergeError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Attention = Literal["sdpa", "flex_attention"]
"""What transformers calls them."""


def attention_for(wanted: Literal["auto", "sdpa", "flex"], device: torch.device) -> Attention:
    """The attention of the config on a device. VergeError for flex without a GPU: it has no backward on a CPU."""
    if wanted == "flex" and device.type == "cpu":
        raise VergeError(
            "learner.attention is flex, but PyTorch's flex attention has no backward on a CPU; set it to auto or sdpa"
        )
    return "flex_attention" if wanted == "flex" or (wanted == "auto" and device.type == "cuda") else "sdpa"


def load_model(path: Path, dtype: torch.dtype, attention: Attention = "sdpa") -> torch.nn.Module:
    """The causal LM of a Hugging Face folder. VergeError where there is none, or none with that attention."""
    if not (path / "config.json").is_file():
        raise VergeError(f"model folder {path} has no config.json; give a Hugging Face folder")
    from transformers import AutoModelForCausalLM  # imports DeepSpeed, so only after `import_deepspeed`
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=attention)
    except (OSError, ValueError) as error:
        raise VergeError(f"model folder {path} cannot be loaded: {str(error).splitlines()[0]}") from error
    return model
