"""From the config to what an engine is started with."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.config import ActorConfig, SamplingConfig, Update
from actors.environment import machine_cores
from store.errors import VergeError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is started with.

    `stop_token_ids` are all the ids that end a completion. The fields named `cpu_` matter on a CPU only; `cpu_cores`
    are the machine's numbers, None for vLLM's choice. With `metrics`, vLLM keeps its own, which takes it some time.
    """

    model: Path
    version: int
    dtype: str
    context_tokens: int
    max_completion_tokens: int
    group_size: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    max_sequences: int
    tensor_parallel: int
    gpu_memory_share: float
    cpu_kv_cache_gib: int
    cpu_cores: tuple[int, ...] | None
    update: Update
    seed: int
    metrics: bool = False


def engine_settings(
    model: Path, version: int, weights: Path, tokenizer: Any, actor: ActorConfig, sampling: SamplingConfig, seed: int
) -> EngineSettings:
    """What an engine is started with to serve `weights`, a version of `model`."""
    return EngineSettings(
        model=weights,
        version=version,
        dtype=actor.dtype,
        context_tokens=actor.context_tokens,
        max_completion_tokens=sampling.max_completion_tokens,
        group_size=sampling.group_size,
        temperature=sampling.temperature,
        stop_token_ids=stop_token_ids(model, tokenizer),
        max_sequences=actor.max_sequences,
        tensor_parallel=actor.tensor_parallel,
        gpu_memory_share=actor.gpu_memory_share,
        cpu_kv_cache_gib=actor.cpu_kv_cache_gib,
        cpu_cores=None if actor.cpu_cores is None else machine_cores(actor.cpu_cores),
        update=actor.update,
        seed=seed,
    )


def stop_token_ids(model: Path, tokenizer: Any) -> tuple[int, ...]:
    """Every end-of-sequence id the model names: its generation config's and its tokenizer's.

    Raises:
        VergeError: it names none, so that no completion could ever be finished.
    """
    from transformers import GenerationConfig

    found: set[int] = set()
    with contextlib.suppress(OSError):  # a model without generation_config.json
        named = GenerationConfig.from_pretrained(model).eos_token_id
        found.update(named if isinstance(named, list) else [named] if named is not None else [])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    if not found:
        raise VergeError(f"model {model} names no end-of-sequence token, so no completion could ever be finished")
    return tuple(sorted(found))
