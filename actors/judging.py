"""From samples to verdicts, and to the counts of an evaluation."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.engine import Sample
from actors.verifiers import Verifiers
from actors.verifiers.registry import answers_at_once
from store.errors import VergeError
from store.evaluations import Tally
from store.wire import Problem, Verdict

_BEFORE_BELIEVED = 64
"""Completions after which the share of errors says something."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one sample. `text` has no special tokens, and is empty where the engine gave no whole sample."""

    text: str
    reward: float
    verdict: Verdict


class Judge:
    """Judges groups of samples, and counts `completions`, their `tokens` and the `errors` among them.

    Not to be believed is a verifier, or an engine, that fails on more than `max_error_share` of all.
    """

    def __init__(self, verifiers: Verifiers, tokenizer: Any, max_error_share: float = 1.0) -> None:
        self._verifiers = verifiers
        self._tokenizer = tokenizer
        self._max_error_share = max_error_share
        self._turn = asyncio.Lock()
        self.completions = self.tokens = self.errors = 0

    async def judge(self, problem: Problem, samples: Sequence[Sample]) -> list[Judged]:
        """The verdict of each sample.

        Raises:
            VergeError: too many have ended in an error.
        """
        async with self._turn:  # one group in a round of the event loop: short completions end many at once
            await asyncio.sleep(0)
        if answers_at_once(problem.verifier):  # tasks that never wait would cost more than what they do
            judged = [await self._one(problem, sample) for sample in samples]
        else:
            judged = list(await asyncio.gather(*(self._one(problem, sample) for sample in samples)))
        self.completions += len(samples)
        self.tokens += sum(len(sample.token_ids) for sample in samples)
        self.errors += sum(one.verdict is Verdict.ERROR for one in judged)
        if self.completions >= _BEFORE_BELIEVED and self.errors / self.completions > self._max_error_share:
            raise VergeError(
                f"{self.errors} of {self.completions} completions ended in an error of the verifier or the engine,"
                f" more than actor.max_error_share = {self._max_error_share:g}; the last:"
                f" {self._verifiers.last_error or 'abort'}"
            )
        return judged

    async def _one(self, problem: Problem, sample: Sample) -> Judged:
        if not sample.complete:
            return Judged("", 0.0, Verdict.ERROR)
        text = str(self._tokenizer.decode(sample.token_ids.tolist(), skip_special_tokens=True))
        reward, verdict = await self._verifiers.verify(problem, text, sample.finish_reason)
        return Judged(text, reward, verdict)


class Count:
    """One problem's completions, counted as they are judged."""

    def __init__(self, problem_id: str) -> None:
        self._id = problem_id
        self._right: set[str] = set()
        self._n = self._correct = self._truncated = self._errors = self._tokens = 0
        self._surprisal = 0.0

    def add(self, samples: Sequence[Sample], judged: Sequence[Judged]) -> None:
        """Count some of them."""
        for sample, one in zip(samples, judged, strict=True):
            if one.verdict is Verdict.ERROR:
                self._errors += 1
                continue
            self._n += 1
            self._tokens += len(sample.token_ids)
            self._surprisal -= float(sample.logprobs.sum(dtype="float64"))
            self._truncated += one.verdict is Verdict.TRUNCATED
            if one.verdict is Verdict.CORRECT:
                self._correct += 1
                self._right.add(one.text)

    @property
    def completions(self) -> int:
        """How many were counted."""
        return self._n + self._errors

    @property
    def tally(self) -> Tally:
        """What was counted so far."""
        return Tally(
            self._id, self._n, self._correct, len(self._right), self._truncated, self._errors, self._tokens,
            self._surprisal,
        )  # fmt: skip
