"""`verge problems check`: what a run would meet in its problems, before it starts."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from actors.config import GENERATED
from actors.families.registry import valid_answers
from actors.problem_files import Entry, read_entries
from actors.problems import load_problems
from actors.prompts import encode_prompts
from actors.verifiers import Verifiers
from ops.config import RunConfig
from ops.models import resolve_model
from ops.prepare import load_tokenizer
from store.errors import VergeError
from store.wire import Problem, Verdict

NAMED = 5
"""Most problems that a finding names."""
MOST_TAGS = 20
AT_ONCE = 64
STOPS_A_RUN = ("bad", "duplicate_ids", "unfit_prompts", "failed_references")
"""The findings with which no run should start."""


@dataclass(slots=True)
class Finding:
    """How many there are of something, and the first few of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(what)

    def as_json(self) -> dict[str, Any]:
        """The finding for people and programs."""
        return {"count": self.count, "first": self.first}


class Census:
    """What has been seen of the rows so far."""

    def __init__(self) -> None:
        self.usable: list[Entry] = []
        self.bad, self.missing_answers = Finding(), Finding()
        self.duplicate_ids, self.duplicate_prompts = Finding(), Finding()
        self._ids: dict[str, str] = {}
        self._prompts: dict[str, str] = {}

    def see(self, entry: Entry) -> None:
        """Count a row."""
        if entry.why:
            self.bad.add(entry.why)
        else:
            self.usable.append(entry)
        if entry.problem is None:
            return
        problem, place, asked = entry.problem, entry.place, str(entry.problem.prompt)
        if problem.answer in (None, "", [], {}):
            self.missing_answers.add(place)
        if problem.id in self._ids:
            self.duplicate_ids.add(f"{place}: the id {problem.id!r} is that of {self._ids[problem.id]} too")
        if asked in self._prompts:
            self.duplicate_prompts.add(f"{place}: the prompt is that of {self._prompts[asked]} too")
        self._ids.setdefault(problem.id, place)
        self._prompts.setdefault(asked, place)

    @property
    def problems(self) -> list[Problem]:
        """The problems that can be used."""
        return [entry.problem for entry in self.usable if entry.problem is not None]


def check_problems(config: RunConfig, with_model: bool, dry_run: bool) -> dict[str, Any]:
    """What the problems of a config are like, as JSON; `ok` when a run could start on them.

    Args:
        with_model: also encode every prompt with the config's model, and count its tokens.
        dry_run: also verify a correct completion of each problem that has one, with the config's limits.

    Raises:
        VergeError: the source or the model cannot be read at all, or a verifier does not work here.
    """
    census = Census()
    for entry in _entries(config):
        census.see(entry)
    problems = census.problems
    findings = {
        name: getattr(census, name) for name in ("bad", "duplicate_ids", "duplicate_prompts", "missing_answers")
    }
    found: dict[str, Any] = {
        "source": config.problems.source,
        "problems": len(problems),
        "verifiers": dict(Counter(problem.verifier for problem in problems).most_common()),
        "tags": dict(Counter(tag for problem in problems for tag in problem.tags).most_common(MOST_TAGS)),
        "prompt_characters": _spread([len(_text(problem)) for problem in problems]),
    }
    if with_model:
        found["prompt_tokens"], findings["unfit_prompts"] = _tokens(config, problems)
    if dry_run:
        checked, findings["failed_references"] = _dry_run(config, census.usable)
        found["references"] = {"checked": checked, "problems_without": len(problems) - checked}
    found |= {name: finding.as_json() for name, finding in findings.items()}
    found["ok"] = bool(problems) and not any(findings[name].count for name in STOPS_A_RUN if name in findings)
    return found


def reference_of(problem: Problem) -> str | None:
    """A completion that the problem's verifier must accept, made from its answer; None where that holds none."""
    kind, answer = problem.verifier.partition(":")[0], problem.answer
    if kind in ("exact", "number"):
        return str(answer)
    if kind == "math":
        text = str(answer).rpartition("####")[2].strip()
        return text if "$" in text or r"\boxed" in text else rf"\boxed{{{text}}}"
    if kind == "countdown":
        return next(iter(valid_answers(problem)), None)
    if kind == "reasoning_gym" and isinstance(answer["answer"], str):
        return f"<answer>{answer['answer']}</answer>"
    return None


def _entries(config: RunConfig) -> Iterable[Entry]:
    if not config.problems.source.startswith(GENERATED):
        return read_entries(config.problems)
    made = load_problems(config.problems)
    return [Entry(problem.id, problem) for problem in (*made.train, *made.held_out)]


def _text(problem: Problem) -> str:
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "".join(message["content"] for message in problem.prompt)


def _spread(sizes: Sequence[int]) -> dict[str, int]:
    if not sizes:
        return {}
    low, middle, high, most = np.quantile(sizes, [0, 0.5, 0.95, 1], method="nearest")
    return {"min": int(low), "median": int(middle), "p95": int(high), "max": int(most)}


def _tokens(config: RunConfig, problems: Sequence[Problem]) -> tuple[dict[str, int], Finding]:
    """Lengths of the prompts that fit, and those that do not."""
    tokenizer = load_tokenizer(resolve_model(config.model.path))
    context, completion = config.actor.context_tokens, config.sampling.max_completion_tokens
    sizes: list[int] = []
    unfit = Finding()
    for problem in problems:
        try:
            sizes += map(len, encode_prompts([problem], tokenizer, context, completion).values())
        except VergeError as error:
            unfit.add(str(error))
    return _spread(sizes), unfit


def _dry_run(config: RunConfig, entries: Sequence[Entry]) -> tuple[int, Finding]:
    """Verify what must be correct: the row's own `reference`, or a completion made from the answer.

    How many there were, and those that are not correct.
    """
    known = [
        (entry.place, entry.problem, text)
        for entry in entries
        if entry.problem is not None and (text := entry.reference or reference_of(entry.problem)) is not None
    ]
    verifiers = Verifiers(config.verifier)
    failed = Finding()

    async def run() -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(place: str, problem: Problem, text: str) -> str:
            async with places:
                _, verdict = await verifiers.verify(problem, text, "stop")
            why = f" ({verifiers.last_error})" if verdict is Verdict.ERROR else ""
            return "" if verdict is Verdict.CORRECT else f"{place}: its reference is {verdict.value}{why}"

        for said in await asyncio.gather(*(one(*item) for item in known)):
            if said:
                failed.add(said)

    try:
        verifiers.check(entry.problem for entry in entries if entry.problem is not None)
        asyncio.run(run())
    finally:
        verifiers.close()
    return len(known), failed
