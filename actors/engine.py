"""One vLLM engine in this process: token-in, token-out, with weights that change while it generates."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from actors.config import Update
from actors.environment import one_process, prepare_environment
from actors.load import Load
from actors.settings import EngineSettings
from actors.vllm_plugin import Worker
from store.errors import VergeError
from store.snapshots import WEIGHTS_FILE
from store.wire import Span


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion as the engine returned it.

    `token_ids` int32 [T] with the end token; `logprobs` float32 [T], log μ(token) after temperature, NaN where vLLM
    gave none; `spans` say which version wrote which tokens; `finish_reason` is `stop`, `length`, or what is not a
    sample: `abort`, `error`.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    spans: tuple[Span, ...]
    finish_reason: str

    @property
    def complete(self) -> bool:
        """Whether this is a sample of the policy at all."""
        return self.finish_reason in ("stop", "length")


CPU_BLOCK_TOKENS = 32
"""Prompts share whole blocks of their keys and values. vLLM's own choice on a CPU, 128 tokens, is longer than many a
prompt, each of which it would then compute once for every completion."""
_PAUSE: Final[dict[Update, Literal["keep", "wait", "abort"]]] = {"keep": "keep", "drain": "wait", "restart": "abort"}


class Engine:
    """An AsyncLLM whose weights are replaced in flight.

    generating ──update()──▶ paused ──load──▶ tagged with the version ──▶ generating

    Invariant: every token is sampled by one whole set of weights, and its span names that set. What becomes of
    completions that are in flight is the config's choice. `keep`: they are frozen, and go on under the new weights over
    their old keys and values; the behaviour log-probs are vLLM's own, so the ratio is exact. `drain`: they end first.
    `restart`: they are dropped, and sampled again from their prompt. New requests wait while the engine is paused, and
    never read a prefix that old weights cached: the cache is salted with the version.
    """

    def __init__(self, llm: Any, settings: EngineSettings, load: Load) -> None:
        self._llm = llm
        self._settings = settings
        self._updates = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._sampling = 0
        self.version = settings.version
        self.update_mode = settings.update
        self.requests = 0
        self.load = load
        self.last_pause_s = 0.0

    @classmethod
    async def start(cls, settings: EngineSettings) -> "Engine":
        """Load the model into a new engine and tag it with `settings.version`.

        Raises:
            VergeError: vLLM is not installed, or refuses the model; the message ends with vLLM's own reason.
        """
        prepare_environment(settings.cpu_kv_cache_gib)
        try:
            from vllm import AsyncEngineArgs
            from vllm.envs import disable_envs_cache, enable_envs_cache
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise VergeError(
                f"vLLM cannot be imported ({error}); install the extra `actor` on a GPU or `actor-cpu` on a CPU"
            ) from error
        disable_envs_cache()  # of an engine before this one
        load = Load(settings.max_sequences, settings.group_size)
        args = AsyncEngineArgs(
            model=str(settings.model),
            dtype=settings.dtype,  # type: ignore[arg-type]
            max_model_len=settings.context_tokens,
            max_num_seqs=settings.max_sequences,
            tensor_parallel_size=settings.tensor_parallel,
            gpu_memory_utilization=settings.gpu_memory_share,
            enforce_eager=current_platform.is_cpu(),
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            block_size=CPU_BLOCK_TOKENS if current_platform.is_cpu() else None,
            generation_config="vllm",  # the model's own defaults (top-p, penalties) would bias the ratio
            seed=settings.seed,
            worker_extension_cls=f"{Worker.__module__}.{Worker.__qualname__}",
            disable_log_stats=True,  # no loggers of vLLM's own
            use_tqdm_on_load=False,
        )
        try:
            own_cores = settings.cpu_cores if current_platform.is_cpu() else None
            with one_process(own_cores) if own_cores else contextlib.nullcontext():
                llm = AsyncLLM.from_engine_args(args, stat_loggers=[load.stat_logger(settings.metrics)])
        except (ValueError, RuntimeError, OSError) as error:
            raise VergeError(f"vLLM could not start with model {settings.model}: {error}") from error
        engine = cls(llm, settings, load)
        del llm  # a frame of an import inside vLLM outlives this call and would keep it beyond `close`
        await engine._llm.update_weight_version(str(settings.version))
        enable_envs_cache()  # vLLM asks for one at every token; its own processes do the same
        gc.collect()
        gc.freeze()  # a collection of all that has been imported would hold up the event loop for half a second
        return engine

    def room(self, given: int) -> int:
        """Groups to give the engine now, so that its batch stays full; 0 or less when it has enough.

        Args:
            given: groups it was given and has not returned, or soon will be.
        """
        unfinished = int(self._llm.output_processor.get_num_unfinished_requests())
        return self.load.room(unfinished + self._settings.group_size * (given - self._sampling))

    async def generate(self, prompt_ids: NDArray[np.int32], max_tokens: int | None = None) -> list[Sample]:
        """Sample `group_size` completions of one prompt.

        Args:
            prompt_ids: int32 [P], sent as they are.
            max_tokens: of a completion; None: `max_completion_tokens` of the settings.

        Returns:
            The samples, incomplete ones included.
        """
        done: list[Sample] = []
        while (missing := self._settings.group_size - len(done)) > 0:
            async with self._turn:  # one group in a round of the event loop: many at once would hold it up
                await asyncio.sleep(0)
                await self._open.wait()
            version = self.version  # and until the request is sent, nothing is awaited: it precedes any update
            self._sampling += 1
            try:
                samples = await self._sample(prompt_ids, missing, max_tokens or self._settings.max_completion_tokens)
            finally:
                self._sampling -= 1
            updated = version != self.version or not self._open.is_set()
            restart = updated and self.update_mode == "restart"
            done += [sample for sample in samples if not (restart and sample.finish_reason == "abort")]
        return done

    async def _sample(self, prompt_ids: NDArray[np.int32], count: int, max_tokens: int) -> list[Sample]:
        final = None
        async for output in self.request(prompt_ids, count, max_tokens):
            final = output
        if final is None or list(final.prompt_token_ids) != prompt_ids.tolist():
            raise VergeError("vLLM returned other prompt tokens than it was sent; this version of vLLM cannot be used")
        return [_sample(completion) for completion in final.outputs]

    def request(self, prompt_ids: NDArray[np.int32], count: int, max_tokens: int) -> AsyncIterator[Any]:
        """vLLM's own outputs for `count` completions of a prompt: one, when all have ended.

        It neither waits while the engine is paused nor asks again for what an update dropped.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.requests += 1
        params = SamplingParams(
            n=count,
            temperature=self._settings.temperature,
            max_tokens=max_tokens,
            stop_token_ids=list(self._settings.stop_token_ids),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # With its type, a prompt is one that needs no rendering: vLLM would send any other to a thread and back.
        prompt: Any = {
            "type": "token", "prompt_token_ids": prompt_ids.tolist(), "cache_salt": f"version-{self.version}",
        }  # fmt: skip
        outputs: AsyncIterator[Any] = self._llm.generate(prompt, params, request_id=f"group-{self.requests}")
        return outputs

    async def update(self, version: int, weights: Path) -> float:
        """Replace the weights by those of the folder `weights`.

        Returns:
            Seconds for which new requests waited: generation stood still, or with `drain` ran out.

        Raises:
            VergeError: the weights could not be loaded; the engine stays paused and must be closed.
        """
        async with self._updates:
            begin = time.monotonic()
            self._open.clear()
            await self._llm.pause_generation(
                mode=_PAUSE[self.update_mode],
                # With `keep`, what is in flight goes on reading what it cached. Else nothing runs, and what vLLM still
                # queues under the old salt must not find keys and values of the old weights.
                clear_cache=self.update_mode != "keep",
            )
            try:
                await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(weights)})
                if differing := await self.differing(weights):
                    raise ValueError(f"afterwards {differing[0]} was not the file's, and {len(differing) - 1} others")
                await self._llm.update_weight_version(str(version))
            except Exception as error:
                # The weights may be half replaced: stay paused, so that nothing is sampled from them, and end.
                raise VergeError(f"vLLM could not load version {version} from {weights}: {error}") from error
            self.version = version
            await self._llm.resume_generation()
            self._open.set()
            self.last_pause_s = time.monotonic() - begin
            return self.last_pause_s

    async def differing(self, weights: Path) -> list[str]:
        """Parameters of the engine that are not, bit for bit, those of the folder `weights`; see `Worker.differing`."""
        found = await self._llm.collective_rpc("differing", args=(str(weights / WEIGHTS_FILE),))
        return sorted({name for of_worker in found for name in of_worker})

    @property
    def death(self) -> str | None:
        """Why the engine can no longer generate, or None while it can."""
        return str(self._llm.dead_error) if self._llm.errored else None

    async def close(self) -> None:
        """Stop the engine's processes."""
        self._llm.shutdown(timeout=1.0)  # its workers hold nothing that is worth waiting for
        await asyncio.sleep(0.1)  # its output task ends, which refers to it …
        self._llm = None
        gc.unfreeze()
        gc.collect()  # … and it is part of a cycle: its own clean-up fails at the interpreter's end


def _sample(completion: Any) -> Sample:
    token_ids = np.asarray(completion.token_ids, dtype=np.int32)
    flat = completion.logprobs
    if flat.token_ids == list(completion.token_ids):  # each token's own and no other: nothing to look for
        logprobs = np.asarray(flat.logprobs, dtype=np.float32)
    else:
        logprobs = np.full(len(token_ids), np.nan, dtype=np.float32)
        for position, (start, end) in enumerate(zip(flat.start_indices, flat.end_indices, strict=True)):
            if end > start and flat.token_ids[start] == token_ids[position]:
                logprobs[position] = flat.logprobs[start]
    spans = tuple(Span(int(span.version), span.start, span.end) for span in completion.weight_versions or ())
    return Sample(token_ids, logprobs, spans, completion.finish_reason or "abort")
