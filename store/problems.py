"""Problems: their text is immutable, their facts only ever grow by commits. Those held out have no such facts."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgpack

from store.errors import VergeError
from store.keys import Keys
from store.link import Argument, Link
from store.wire import MAX_TEXT, Message, Problem, ProblemFacts

T = TypeVar("T")

TEXT = ("prompt", "verifier", "answer", "tags", "limits")
LIMITS = ("max_completion_tokens", "time_limit_s")
FACTS = ("n", "s", "a", "b", "version", "groups", "first_success", "last_success", "last_seen")
_CHUNK, _CHUNK_CHARACTERS = 500, 8 << 20
"""Most problems, and most text, of one call of the script; one problem may be longer alone."""
_FACTS_CHUNK = 1000  # a script is not interrupted: longer ones would make commits wait


class Problems:
    """The problems of a run, in the order in which they were added."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def add_problems(self, problems: Iterable[Problem]) -> int:
        """Add problems that the run does not have; returns how many were new.

        Raises:
            VergeError: an id is empty, too long, or not Unicode text; a problem cannot be written as JSON; or the run
                has a problem of the same id with other content.
        """
        return await self._add(self._keys.problems, self._keys.problem, problems)

    async def add_held_out(self, problems: Iterable[Problem]) -> int:
        """Add problems to measure with, apart from those that are trained on: no ticket can name one.

        Raises:
            VergeError: as `add_problems`.
        """
        return await self._add(self._keys.held_out, self._keys.held_out_problem, problems)

    async def _add(self, listed: str, key_of: Callable[[str], str], problems: Iterable[Problem]) -> int:
        added = 0
        for batch in in_batches(map(_texts, problems)):
            keys = [listed, *(key_of(problem_id) for problem_id, *_ in batch)]
            reply = await self._link.run("add_problems", keys, [text for texts in batch for text in texts])
            if reply[0] < 0:
                raise VergeError(
                    f"problem {reply[1].decode()!r} is in the run with another {reply[2].decode()}; "
                    "give the new problem another id, or start another run"
                )
            added += reply[0]
        return added

    async def problem(self, problem_id: str) -> tuple[Problem, ProblemFacts] | None:
        """A problem and what is known of it; None when the run does not have it."""
        fields = [*TEXT, *FACTS]
        row = await self._link.call(lambda redis: redis.hmget(self._keys.problem(problem_id), fields))
        if row[0] is None:
            return None
        return _problem(problem_id, row[: len(TEXT)]), _facts(row[len(TEXT) :])

    async def held_out_problem(self, problem_id: str) -> Problem | None:
        """A problem to measure with; None when the run does not have it."""
        row = await self._link.call(lambda redis: redis.hmget(self._keys.held_out_problem(problem_id), TEXT))
        return None if row[0] is None else _problem(problem_id, row)

    async def held_out_ids(self) -> list[str]:
        """The ids of the problems to measure with, in the order in which they were added."""
        return await listed(self._link, self._keys.held_out)

    async def problem_ids(self, start: int = 0, count: int | None = None) -> list[str]:
        """The ids of the problems from number `start` on, at most `count`, in the order in which they were added."""
        return await listed(self._link, self._keys.problems, start, -1 if count is None else start + count - 1)

    async def problem_table(
        self, start: int, fields: Sequence[str], after: str
    ) -> tuple[list[str], list[bytes], list[tuple[int, str]]]:
        """Number-valued facts of the problems from number `start` on, as many as one call should carry.

        Args:
            after: stream id of a group.

        Returns:
            ids; for each field the numbers of these problems as text, separated by spaces, 0 where there is none; and
            (place among these, `last_seen`) of at least those that were last seen after `after`.
        """
        prefix, last = self._keys.problem(""), start + _FACTS_CHUNK - 1
        arguments: list[Argument] = [prefix, start, last, after, *fields, "last_seen"]
        packed = await self._link.run("problem_table", [self._keys.problems], arguments)
        ids, columns, late = msgpack.unpackb(packed, raw=True)
        return [name.decode() for name in ids], list(columns), [(place, seen.decode()) for place, seen in late]

    async def problem_facts(self, problem_ids: Sequence[str]) -> list[ProblemFacts]:
        """What is known of many problems, aligned with `problem_ids`."""
        return [_facts(row) for row in await self.problem_rows(problem_ids, FACTS)]

    async def problem_rows(self, problem_ids: Sequence[str], fields: Sequence[str]) -> list[list[Any]]:
        """Fields of many problems as raw bytes (False: not there): one row per id."""
        return await rows(self._link, [self._keys.problem(problem_id) for problem_id in problem_ids], fields)


async def listed(link: Link, key: str, first: int = 0, last: int = -1) -> list[str]:
    """The ids in a list, from place `first` to `last`, which may count from its end."""
    return [problem_id.decode() for problem_id in await link.call(lambda redis: redis.lrange(key, first, last))]


async def rows(link: Link, keys: Sequence[str], fields: Sequence[str]) -> list[list[Any]]:
    """Fields of many hashes as raw bytes (False: not there): one row per key."""
    found: list[list[Any]] = []
    for chunk in chunks(keys, _FACTS_CHUNK):
        packed = await link.run("facts", chunk, fields)
        found.extend(msgpack.unpackb(packed, raw=True, use_list=True))
    return found


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` items, in order."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def in_batches(problems: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    """The texts of problems, in order, as many together as one call should carry."""
    batch: list[tuple[str, ...]] = []
    length = 0
    for texts in problems:
        more = sum(map(len, texts))
        if batch and (len(batch) == _CHUNK or length + more > _CHUNK_CHARACTERS):
            yield batch
            batch, length = [], 0
        batch.append(texts)
        length += more
    if batch:
        yield batch


def _texts(problem: Problem) -> tuple[str, ...]:
    if not 0 < len(problem.id) <= MAX_TEXT:
        raise VergeError(f"problem id {problem.id[:40]!r} has {len(problem.id)} characters, must have 1 to {MAX_TEXT}")
    limits = {name: value for name in LIMITS if (value := getattr(problem, name)) is not None}
    try:
        texts = (
            problem.id,
            *(
                json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":"))
                for value in (problem.prompt, problem.answer, problem.tags, limits)
            ),
            problem.verifier,
        )
        for text in texts:
            text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise VergeError(f"problem {problem.id[:40]!r} cannot be stored as JSON text: {error}") from error
    problem_id, prompt, answer, tags, held_to, verifier = texts
    return problem_id, prompt, verifier, answer, tags, held_to


def _problem(problem_id: str, row: Sequence[bytes | None]) -> Problem:
    # A problem that was added before there were limits has none.
    prompt, verifier, answer, tags, limits = ((value or b"{}").decode() for value in row)
    return Problem(
        problem_id, _prompt(json.loads(prompt)), verifier, json.loads(answer), tuple(json.loads(tags)),
        **json.loads(limits),
    )  # fmt: skip


def _prompt(value: Any) -> str | tuple[Message, ...]:
    return value if isinstance(value, str) else tuple(value)


def _facts(row: Sequence[Any]) -> ProblemFacts:
    n, s, a, b, version, groups, *seen = row
    first, last, last_seen = ((value or b"").decode() for value in seen)
    return ProblemFacts(
        int(n or 0), int(s or 0), float(a or 0), float(b or 0), int(version or 0), int(groups or 0),
        first, last, last_seen,
    )  # fmt: skip
