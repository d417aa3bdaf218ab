"""`verge problems check`: what a run would meet in its problems, before it starts."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
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
from store.problems import chunks
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
    """What has been seen of the rows so far: counts, places, and hashes of ids and prompts, but no text."""

    def __init__(self) -> None:
        self.usable = 0
        self.verifiers: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.characters = array("Q")
        self.bad, self.missing_answers = Finding(), Finding()
        self.duplicate_ids, self.duplicate_prompts = Finding(), Finding()
        self._ids: dict[bytes, str] = {}
        self._prompts: dict[bytes, str] = {}

    def see(self, entry: Entry) -> None:
        """Count a row."""
        if entry.why:
            self.bad.add(entry.why)
        if entry.problem is None:
            return
        problem, place = entry.problem, entry.place
        if not entry.why:
            self.usable += 1
            self.verifiers[problem.verifier] += 1
            self.tags.update(problem.tags)
            self.characters.append(len(_text(problem)))
        if problem.answer in (None, "", [], {}):
            self.missing_answers.add(place)
        if (first := self._ids.setdefault(_hash(problem.id), place)) is not place:
            self.duplicate_ids.add(f"{place}: the id {problem.id!r} is that of {first} too")
        if (first := self._prompts.setdefault(_hash(str(problem.prompt)), place)) is not place:
            self.duplicate_prompts.add(f"{place}: the prompt is that of {first} too")


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
    findings = {
        name: getattr(census, name) for name in ("bad", "duplicate_ids", "duplicate_prompts", "missing_answers")
    }
    found: dict[str, Any] = {
        "source": config.problems.source,
        "problems": census.usable,
        "verifiers": dict(census.verifiers.most_common()),
        "tags": dict(census.tags.most_common(MOST_TAGS)),
        "prompt_characters": _spread(census.characters),
    }
    if with_model:
        found["prompt_tokens"], findings["unfit_prompts"] = _tokens(config)
    if dry_run:
        checked, findings["failed_references"] = _dry_run(config)
        found["references"] = {"checked": checked, "problems_without": census.usable - checked}
    found |= {name: finding.as_json() for name, finding in findings.items()}
    found["ok"] = census.usable > 0 and not any(findings[name].count for name in STOPS_A_RUN if name in findings)
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


def _tokens(config: RunConfig) -> tuple[dict[str, int], Finding]:
    """Lengths of the prompts that fit, and those that do not."""
    tokenizer = load_tokenizer(resolve_model(config.model.path))
    context, completion = config.actor.context_tokens, config.sampling.max_completion_tokens
    sizes = array("Q")
    unfit = Finding()
    for _, problem, _ in _usable(config):
        try:
            sizes.extend(map(len, encode_prompts([problem], tokenizer, context, completion).values()))
        except VergeError as error:
            unfit.add(str(error))
    return _spread(sizes), unfit


def _dry_run(config: RunConfig) -> tuple[int, Finding]:
    """Verify what must be correct: the row's own `reference`, or a completion made from the answer.

    How many there were, and those that are not correct.
    """
    verifiers = Verifiers(config.verifier)
    failed = Finding()

    async def one(place: str, problem: Problem, text: str) -> str:
        _, verdict = await verifiers.verify(problem, text, "stop")
        why = f" ({verifiers.last_error})" if verdict is Verdict.ERROR else ""
        return "" if verdict is Verdict.CORRECT else f"{place}: its reference is {verdict.value}{why}"

    async def run() -> int:
        known = (
            (place, problem, text)
            for place, problem, reference in _usable(config)
            if (text := reference or reference_of(problem)) is not None
        )
        checked = 0
        for some in chunks(known, AT_ONCE):
            checked += len(some)
            for said in await asyncio.gather(*(one(*item) for item in some)):
                if said:
                    failed.add(said)
        return checked

    try:
        verifiers.check(problem for _, problem, _ in _usable(config))
        return asyncio.run(run()), failed
    finally:
        verifiers.close()


def _usable(config: RunConfig) -> Iterator[tuple[str, Problem, str | None]]:
    """Place, problem and reference of every row that can be used, read anew."""
    for entry in _entries(config):
        if entry.problem is not None and not entry.why:
            yield entry.place, entry.problem, entry.reference


def _hash(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
