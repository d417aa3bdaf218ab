"""From the rows of a dataset to problems: Verge's own form, or other columns by a mapping."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.config import ProblemsConfig
from actors.rows import Row, columns_of, dataset_files, rows
from actors.verifiers.verify import check_problem
from store.errors import VergeError
from store.wire import Message, Problem

FIELDS = (
    "id", "prompt", "messages", "verifier", "answer", "tags", "max_completion_tokens", "time_limit_s", "reference",
)  # fmt: skip
ROLES = {"system", "user", "assistant"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a row gives: a problem, a correct completion if it has one, and `why` the row cannot be used.

    `why` names the place, and is empty if it can be used; `problem` is None where there is none to speak of.
    """

    place: str
    problem: Problem | None
    reference: str | None = None
    why: str = ""


def read_entries(config: ProblemsConfig) -> Iterator[Entry]:
    """What every row of a source that is a file or a folder gives, bad ones too.

    Raises:
        VergeError: a file cannot be read, or lacks a mapped column.
    """
    named = config.columns.model_dump(exclude_none=True)
    mapping, number = _mapping(named), 0
    for path in dataset_files(Path(config.source), config.split):
        there = columns_of(path)
        if there is not None:
            _check_columns(named, path, there)
        wanted = [name for name in there if name in mapping.values()] if mapping and there is not None else None
        for row in rows(path, wanted):
            number += 1
            yield _entry(row, config.verifier, named, mapping, number)


def _mapping(named: dict[str, str]) -> dict[str, str]:
    """Columns by field, from those that the config names; nothing for rows in Verge's own form."""
    if not named:
        return {}
    own = {field: field for field in FIELDS}
    for field, other in (("prompt", "messages"), ("messages", "prompt")):
        if field in named and other not in named:
            del own[other]
    return own | named


def _check_columns(named: dict[str, str], path: Path, there: list[str]) -> None:
    for field, column in named.items():
        if column not in there:
            raise VergeError(
                f"problems.columns.{field} is {column!r}, but {path} has no such column; it has {', '.join(there)}"
            )


def _entry(row: Row, verifier: str | None, named: dict[str, str], mapping: dict[str, str], number: int) -> Entry:
    if row.why:
        return Entry(row.place, None, why=row.why)
    problem, reference = None, None
    try:
        line = _fields(row.value, named, mapping, number)
        if verifier is not None:
            line.setdefault("verifier", verifier)
        reference = line.pop("reference", None)
        if reference is not None and not isinstance(reference, str):
            raise VergeError(f"reference is {str(reference)[:40]!r}, but must be a text: a correct completion")
        problem = _problem(line)
        check_problem(problem)
    except VergeError as error:
        return Entry(row.place, problem, why=f"{row.place}: {error}")
    return Entry(row.place, problem, reference)


def _fields(value: Any, named: dict[str, str], mapping: dict[str, str], number: int) -> dict[str, Any]:
    """The row in Verge's own form, by the mapping if there is one. What is null is absent."""
    if not isinstance(value, dict):
        raise VergeError("it is not a JSON object")
    if not mapping:
        return {field: item for field, item in value.items() if item is not None}
    for field, column in named.items():
        if column not in value:
            raise VergeError(
                f"it has no {column!r}, which problems.columns.{field} names; it has {', '.join(map(str, value))}"
            )
    line = {field: value[column] for field, column in mapping.items() if value.get(column) is not None}
    line["id"] = str(line.get("id", f"row-{number}"))
    if isinstance(line.get("tags"), str):
        line["tags"] = [line["tags"]]
    if isinstance(line.get("messages"), list):
        line["messages"] = [
            {key: item for key, item in turn.items() if item is not None} if isinstance(turn, dict) else turn
            for turn in line["messages"]
        ]
    return line


def _problem(line: dict[str, Any]) -> Problem:
    """VergeError, without the place, unless `line` is a problem."""
    if unknown := sorted(set(line) - set(FIELDS)):
        raise VergeError(
            f"unknown field {unknown[0]!r}; known: {', '.join(sorted(FIELDS))} (problems.columns says what another "
            "column holds)"
        )
    for name in ("id", "verifier"):
        if not isinstance(line.get(name), str) or not line[name]:
            hint = "; problems.verifier gives one to all" if name == "verifier" else ""
            raise VergeError(f"{name} is {line.get(name)!r}, but must be a text that is not empty{hint}")
    tags = line.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise VergeError(f"tags is {tags!r}, but must be a list of texts")
    answer = line.get("answer")
    try:
        json.dumps(answer)
    except (TypeError, ValueError) as error:
        raise VergeError(f"answer cannot be written as JSON: {error}") from None
    tokens, seconds = line.get("max_completion_tokens"), line.get("time_limit_s")
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise VergeError(f"max_completion_tokens is {tokens!r}, but must be a whole number ≥ 1")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < math.inf):
        raise VergeError(f"time_limit_s is {seconds!r}, but must be a number of seconds above 0")
    return Problem(line["id"], _prompt(line), line["verifier"], answer, tuple(tags), tokens, seconds and float(seconds))


def _prompt(line: dict[str, Any]) -> str | tuple[Message, ...]:
    if ("prompt" in line) == ("messages" in line):
        raise VergeError("it must have either prompt (a text) or messages (a chat)")
    if "prompt" in line:
        if not isinstance(line["prompt"], str) or not line["prompt"]:
            raise VergeError("prompt must be a text that is not empty; a chat goes into messages")
        return str(line["prompt"])
    match line["messages"]:
        case [_, *_] as messages if all(map(_is_message, messages)):
            return tuple(Message(role=message["role"], content=message["content"]) for message in messages)
    roles = " | ".join(sorted(ROLES))
    raise VergeError(f'messages must be a list of {{"role": {roles}, "content": text}}, at least one')


def _is_message(message: Any) -> bool:
    match message:
        case {"role": str(role), "content": str(), **rest}:
            return role in ROLES and not rest
    return False
