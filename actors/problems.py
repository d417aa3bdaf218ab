"""The problems of a run: from a built-in family or a file, split into train and held-out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.config import ProblemsConfig
from actors.families import reasoning_gym
from actors.families.registry import find_family
from actors.families.split import HELD_OUT_SHARE, Split
from actors.verifiers.verify import check_problem
from store.errors import VergeError
from store.wire import Message, Problem

BUILT_IN = "builtin:"
REASONING_GYM = "reasoning_gym:"
GENERATED_TRAIN = 512
GENERATED_HELD_OUT = 256
FIELDS = {"id", "prompt", "messages", "verifier", "answer", "tags"}
ROLES = {"system", "user", "assistant"}


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems with unique ids; none is in both parts."""

    train: tuple[Problem, ...]
    held_out: tuple[Problem, ...]


def load_problems(config: ProblemsConfig) -> ProblemSet:
    """The train and held-out problems that a config names. The same config gives the same split, in the same order.

    Raises:
        VergeError: no such source, a malformed line (with its number), duplicate ids, an unknown verifier, or fewer
            problems than are asked for.
    """
    if config.source.startswith(BUILT_IN):
        return _built_in(config)
    if config.source.startswith(REASONING_GYM):
        return _reasoning_gym(config)
    problems = _tagged(read_problems(Path(config.source)), config.tags)
    if not problems:
        raise VergeError(f"{config.source} has no problem with the tags {', '.join(config.tags)}")
    held_out = config.held_out_count
    if held_out is None:
        held_out = round(len(problems) * config.held_out_share)
    train = len(problems) - held_out if config.train_count is None else config.train_count
    if train < 1 or train + held_out > len(problems):
        raise VergeError(
            f"{config.source} has {len(problems)} problems, but {train} to train on and {held_out} held out are asked "
            f"for ({train} + {held_out} = {train + held_out}); train on at least 1 and set problems.train_count and "
            "problems.held_out_count to at most what there is"
        )
    order = np.random.default_rng(config.seed).permutation(len(problems))
    chosen = [problems[i] for i in order]
    return ProblemSet(tuple(chosen[:train]), tuple(chosen[len(chosen) - held_out :]))


def read_problems(path: Path) -> list[Problem]:
    """The problems of a JSONL file, in its order; empty lines are skipped.

    One object a line: `id`, `prompt` (text) or `messages` (list of {"role", "content"}), `verifier`, `answer` (what the
    verifier needs), `tags` (list of texts, may be absent).

    Raises:
        VergeError: the file cannot be read, has no problem, or has a bad line, which is named by its number.
    """
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            problem = _problem(json.loads(line))
            check_problem(problem)
        except ValueError as error:
            raise VergeError(f"{path} line {number} is not JSON: {error}") from None
        except VergeError as error:
            raise VergeError(f"{path} line {number}: {error}") from None
        if problem.id in first_line:
            raise VergeError(
                f"{path} line {number}: the id {problem.id!r} is that of line {first_line[problem.id]} too; ids must "
                "be unique"
            )
        first_line[problem.id] = number
        problems.append(problem)
    if not problems:
        raise VergeError(f"{path} has no problems; write one JSON object a line")
    return problems


def _built_in(config: ProblemsConfig) -> ProblemSet:
    family = find_family(config.source.removeprefix(BUILT_IN))
    chat = family.chat if config.form == "auto" else config.form == "chat"
    train, held_out = _generated_counts(config)

    def take(split: Split, count: int) -> tuple[Problem, ...]:
        if count == 0:
            return ()
        if not config.tags:
            return tuple(family.problems(split, count, config.seed, chat))
        room = family.reserve * (HELD_OUT_SHARE if split == "held_out" else 1 - HELD_OUT_SHARE)
        tagged = _tagged(family.problems(split, int(room), config.seed, chat), config.tags)
        if len(tagged) < count:
            raise VergeError(
                f"{count} {split} problems of {config.source} with the tags {', '.join(config.tags)} asked for, there "
                f"are {len(tagged)}"
            )
        return tuple(tagged[:count])

    return ProblemSet(take("train", train), take("held_out", held_out))


def _reasoning_gym(config: ProblemsConfig) -> ProblemSet:
    name, chat = config.source.removeprefix(REASONING_GYM), config.form != "plain"
    if config.tags:
        raise VergeError(f"problems.tags cannot choose among problems of {config.source}: remove it")
    train, held_out = _generated_counts(config)
    kept = reasoning_gym.problems(name, "held_out", held_out, config.seed, chat, frozenset())
    made = reasoning_gym.problems(name, "train", train, config.seed, chat, reasoning_gym.questions(kept))
    return ProblemSet(tuple(made), tuple(kept))


def _generated_counts(config: ProblemsConfig) -> tuple[int, int]:
    train = GENERATED_TRAIN if config.train_count is None else config.train_count
    return train, GENERATED_HELD_OUT if config.held_out_count is None else config.held_out_count


def _tagged(problems: Sequence[Problem], tags: Sequence[str]) -> list[Problem]:
    """The problems that have all of these tags."""
    return [problem for problem in problems if set(tags) <= set(problem.tags)]


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise VergeError(f"problems.source {path}: no such file, nor builtin:countdown or builtin:arithmetic") from None
    except UnicodeDecodeError as error:
        raise VergeError(f"problems.source {path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise VergeError(f"problems.source {path} cannot be read: {error.strerror}") from None


def _problem(line: Any) -> Problem:
    """VergeError, without the place, unless `line` is a problem."""
    if not isinstance(line, dict):
        raise VergeError("it is not a JSON object")
    if unknown := sorted(set(line) - FIELDS):
        raise VergeError(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(FIELDS))}")
    for name in ("id", "verifier"):
        if not isinstance(line.get(name), str) or not line[name]:
            raise VergeError(f"{name} is {line.get(name)!r}, but must be a text that is not empty")
    tags = line.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise VergeError(f"tags is {tags!r}, but must be a list of texts")
    return Problem(line["id"], _prompt(line), line["verifier"], line.get("answer"), tuple(tags))


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
