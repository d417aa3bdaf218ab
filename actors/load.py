"""How full the engine is, by vLLM's own counts, and how much more it should be given."""

import asyncio
from typing import Any


class Load:
    """What vLLM's scheduler says after each step, and how many sequences the engine should hold for it.

    Held are as many as it can run, and a `queue` behind them: at least a group, or a quarter of them. Where that was
    not enough (the batch ran low although the engine had been given all it should hold), because completions are short
    or this process came late, the queue doubles, up to a whole batch; while it is longer than it has to be, it shrinks.
    Every ticket in it is a group that will be older when it is trained on.

    Counted since the start: `tokens` generated; `prompt_tokens`, and of them those `shared`, whose keys and values were
    there already. Every step sets `stepped`; whoever waits for it clears it first.
    """

    def __init__(self, max_sequences: int, group_size: int) -> None:
        self._max_sequences, self._group_size = max_sequences, group_size
        self._running = self._waiting = self.tokens = self.prompt_tokens = self.shared = 0
        self._full = False
        self._queue = 0.0
        self.stepped = asyncio.Event()

    @property
    def capacity(self) -> int:
        """Sequences that the engine can run: while some wait, its memory is full, and it has shown how many."""
        return self._running if self._running and self._waiting else self._max_sequences

    @property
    def queue(self) -> int:
        """Sequences to have waiting."""
        return max(self._group_size, -(-self.capacity // 4), min(int(self._queue), self.capacity))

    def room(self, held: int) -> int:
        """Groups to give the engine now, when it holds so many sequences; 0 or less when it has enough."""
        room = (self.capacity + self.queue - held) // self._group_size
        self._full = self._full or room <= 0
        return room

    def record(self, running: int, waiting: int) -> None:
        """What the scheduler counted after a step."""
        self._running, self._waiting = running, waiting
        if waiting == 0 and running < self._max_sequences and self._full:
            self._queue, self._full = 2.0 * self.queue, False
        elif waiting > self.queue / 2:
            self._queue -= self._queue / 256
        self.stepped.set()

    def stat_logger(self, metrics: bool = False) -> Any:
        """A stat logger for vLLM, which runs in this process and event loop, that keeps this object up to date.

        Args:
            metrics: whether it also keeps vLLM's own metrics, in the default registry of prometheus_client.
        """
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        load = self

        # vLLM adds a Prometheus logger of its own, which takes longer for every step than all that we do with it,
        # unless there is one that is derived from it.
        class Logger(PrometheusStatLogger):
            def __init__(self, *args: Any, **named: Any) -> None:
                if metrics:
                    super().__init__(*args, **named)

            def log_engine_initialized(self) -> None:
                if metrics:
                    super().log_engine_initialized()  # type: ignore[no-untyped-call]

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
            ) -> None:
                if metrics:
                    super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
                if iteration_stats is not None:
                    load.tokens += iteration_stats.num_generation_tokens
                    load.prompt_tokens += iteration_stats.prompt_token_stats.total
                    load.shared += iteration_stats.prompt_token_stats.cached_tokens
                if scheduler_stats is not None:
                    load.record(scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs)

        return Logger
