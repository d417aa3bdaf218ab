"""How full the engine is, by vLLM's own counts, and how much more it should be given."""

import asyncio
from typing import Any


class Load:
    """What vLLM's scheduler said after its last step: sequences `running` and `waiting`; `tokens` since the start.

    `stepped` is set by every step; whoever waits for it clears it first.
    """

    def __init__(self) -> None:
        self.running = self.waiting = self.tokens = 0
        self.stepped = asyncio.Event()

    def stat_logger(self) -> Any:
        """A stat logger for vLLM, which runs in this process and event loop, that keeps this object up to date."""
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        load = self

        # vLLM adds a Prometheus logger of its own, which takes longer for every step than all that we do with it,
        # unless there is one that is derived from it.
        class Logger(PrometheusStatLogger):
            def __init__(self, *_: object, **__: object) -> None: ...

            def log_engine_initialized(self) -> None: ...

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
            ) -> None:
                if scheduler_stats is not None:
                    load.running, load.waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
                if iteration_stats is not None:
                    load.tokens += iteration_stats.num_generation_tokens
                load.stepped.set()

        return Logger


def sequences_wanted(running: int, waiting: int, max_sequences: int, group_size: int) -> int:
    """Sequences the engine should hold, so that its batch is full after the next step, too, and no more.

    While none waits, it may run `max_sequences`. When some wait, its keys and values are full: it has shown how many
    it can run. Behind those a group, or a quarter of them, queues: what may end before we hear of it.
    """
    capacity = running if waiting and running else max_sequences
    return capacity + max(group_size, -(-capacity // 4))
