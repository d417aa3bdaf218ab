"""A real engine and the event loop that it belongs to."""

import asyncio
import gc
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from actors.engine import Engine
from actors.settings import EngineSettings, stop_token_ids

Result = TypeVar("Result")


class LiveEngine:
    """The engine, and the event loop that it belongs to."""

    def __init__(self, model: Path, runner: asyncio.Runner) -> None:
        from transformers import AutoTokenizer

        self.model = model
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self._runner = runner
        settings = EngineSettings(
            model=model,
            version=0,
            dtype="float32",
            context_tokens=64,
            max_completion_tokens=8,
            group_size=8,
            temperature=1.0,
            stop_token_ids=stop_token_ids(model, self.tokenizer),
            max_sequences=64,
            tensor_parallel=1,
            gpu_memory_share=0.5,
            cpu_kv_cache_gib=1,
            cpu_cores=None,
            update="keep",
            seed=0,
        )
        self.engine = self.run(Engine.start(settings))
        self.frozen = gc.get_freeze_count()  # of objects, until any engine of this process is closed

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)
