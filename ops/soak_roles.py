"""The processes that `verge bench soak` watches: the learner as it is, and an actor whose engine follows a script."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.config import ActorConfig, EvaluationConfig, SamplingConfig, VerifierConfig
from actors.engine import Sample
from actors.load import Load
from actors.loop import Actor, ActorSettings
from actors.weights import Snapshots, scratch_folder
from learner.config import LearnerSettings
from learner.loop import run_learner
from ops.prepare import load_tokenizer
from store.client import Store
from store.wire import Span

RUN, MAX_LAG = "soak", 2
ANSWER, OTHER, SOLVE_RATE = "7", "8", 0.3
"""What the script writes: with that rate the right answer of every problem, else another."""
SEQUENCES = 256
"""That the scripted engine is said to run at once."""
_TOKEN_S = 0.001


@dataclass(frozen=True, slots=True)
class Place:
    """Where actor and learner meet."""

    url: str
    password: str
    model: Path
    logs: Path


class ScriptedEngine:
    """One token, then the end: the answer, or another digit. Takes a few milliseconds, and loads no weights."""

    def __init__(self, version: int, group_size: int, tokenizer: object) -> None:
        self.version = version
        self.load = Load(SEQUENCES, group_size)
        self.death: str | None = None
        self._size = group_size
        right, wrong, end = (int(tokenizer.convert_tokens_to_ids(text)) for text in (ANSWER, OTHER, "<end>"))  # type: ignore[attr-defined]
        self._right, self._wrong = (np.array([token, end], np.int32) for token in (right, wrong))
        self._rng = np.random.default_rng(0)

    def room(self, given: int) -> int:
        return self.load.room(self._size * given)

    async def generate(
        self, prompt_ids: NDArray[np.int32], max_tokens: int | None = None, count: int | None = None
    ) -> list[Sample]:
        await asyncio.sleep(_TOKEN_S * self._rng.exponential())
        logprobs, spans = np.full(2, -0.5, np.float32), (Span(self.version, 0, 2),)
        solved = self._rng.random(count or self._size) < SOLVE_RATE
        self.load.tokens += 2 * len(solved)
        return [Sample(self._right if right else self._wrong, logprobs, spans, "stop") for right in solved]

    async def update(self, version: int, weights: Path) -> float:
        self.version = version
        return 0.0


def learner(place: Place, settings: LearnerSettings) -> None:
    """The learner's process."""
    _log_to(place.logs / "learner.log")
    run_learner(settings)


def actor(place: Place, sampling: SamplingConfig) -> None:
    """The actor's process."""
    _log_to(place.logs / "actor.log")
    asyncio.run(_act(place, sampling))


async def _act(place: Place, sampling: SamplingConfig) -> None:
    store = await Store.connect(place.url, RUN, place.password)
    settings = ActorSettings(
        name="actor",
        run=RUN,
        store_url=place.url,
        store_password=place.password,
        lease_s=60.0,
        patience_s=120.0,
        payload_ttl_s=3600,
        max_lag=MAX_LAG,
        model=place.model,
        actor=ActorConfig(max_sequences=SEQUENCES, context_tokens=32),
        sampling=sampling,
        verifier=VerifierConfig(),
        evaluation=EvaluationConfig(),
        seed=0,
    )
    tokenizer = load_tokenizer(place.model)
    try:
        with scratch_folder() as scratch:
            snapshots, first = Snapshots(store, scratch), None
            while first is None:
                first = await snapshots.newest(-1, block_ms=1000)
            engine = ScriptedEngine(first.manifest.version, sampling.group_size, tokenizer)
            await Actor(settings, store, engine, tokenizer, snapshots).run()
    finally:
        await store.close()


def _log_to(file: Path) -> None:
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
