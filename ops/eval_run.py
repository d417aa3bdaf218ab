"""`verge eval`: any model on any problems, with the run's verifier and sampling, stopped and continued at will."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.config import SamplingConfig
from actors.engine import Engine
from actors.judging import Count, Judge
from actors.prompts import encode_prompts
from actors.settings import engine_settings
from actors.verifiers import Verifiers
from ops.config import RunConfig
from ops.models import resolve_model
from ops.prepare import load_tokenizer
from ops.tally import Subject, TallyFile, problems_digest
from store.errors import VergeError
from store.evaluations import Tally
from store.snapshots import sha256_of
from store.wire import Problem


def evaluate_model(
    config: RunConfig,
    model: str,
    problems: Sequence[Problem],
    samples: int,
    out: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Subject, list[Tally]]:
    """Sample every problem that `out` does not have yet, and keep each there as soon as it is judged.

    Args:
        model: as `model.path`; its own tokenizer is used.
        progress: told how many problems are done.

    Returns:
        tallies in the order of `problems`.

    Raises:
        VergeError: what a person must change; what was sampled is in `out` and is not sampled again.
    """
    folder = resolve_model(model)
    sampling = config.sampling.model_copy(update={"group_size": samples})
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise VergeError(f"model {folder} has no safetensors file")
    subject = Subject(
        model=str(folder),
        weights="+".join(map(sha256_of, files)),
        problems=problems_digest(problems),
        count=len(problems),
        samples=samples,
        temperature=sampling.temperature,
        max_completion_tokens=sampling.max_completion_tokens,
    )
    file = TallyFile(out, subject)
    try:
        left = [problem for problem in problems if problem.id not in file.done]
        progress(len(file.done))
        if left:
            asyncio.run(_sample(config, sampling, folder, left, file, progress))
        return subject, [file.done[problem.id] for problem in problems]
    finally:
        file.close()


async def _sample(
    config: RunConfig,
    sampling: SamplingConfig,
    folder: Path,
    problems: Sequence[Problem],
    file: TallyFile,
    progress: Callable[[int], None],
) -> None:
    tokenizer = load_tokenizer(folder)
    prompts = encode_prompts(problems, tokenizer, config.actor.context_tokens, sampling.max_completion_tokens)
    verifiers = Verifiers(config.verifier)
    verifiers.check(problems)
    judge = Judge(verifiers, tokenizer)
    engine = await Engine.start(engine_settings(folder, 0, folder, tokenizer, config.actor, sampling, config.seed))
    # Enough problems at once to fill the engine, and one to queue: what is stopped loses no more than these.
    at_once = asyncio.Semaphore(1 + -(-config.actor.max_sequences // sampling.group_size))

    async def one(problem: Problem) -> None:
        async with at_once:
            file.add(await sampled(engine, problem, prompts[problem.id], judge))
            progress(len(file.done))

    try:
        async with asyncio.TaskGroup() as group:
            for problem in problems:
                group.create_task(one(problem))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        verifiers.close()
        await engine.close()


async def sampled(engine: Engine, problem: Problem, prompt_ids: NDArray[np.int32], judge: Judge) -> Tally:
    """Sample and judge one problem's completions, within its own limits where it has any. prompt_ids: int32 [P]."""
    samples = await engine.generate(prompt_ids, problem.max_completion_tokens)
    count = Count(problem.id)
    count.add(samples, await judge.judge(problem, samples))
    return count.tally
