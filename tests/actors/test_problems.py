"""Problems from files and from built-in families."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actors.chosen_rows import read_problems
from actors.config import ProblemsConfig
from actors.problems import load_problems
from store.errors import VergeError
from store.problems import chunks
from store.wire import Problem

GOOD: dict[str, Any] = {"id": "a", "prompt": "1+1=", "verifier": "number", "answer": 2, "tags": ["easy"]}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    """A JSONL file of these lines; a text goes in as it is."""
    file = path / "problems.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def read(source: Path, **settings: Any) -> list[Problem]:
    return list(read_problems(ProblemsConfig(source=str(source), **settings)))


def numbered(path: Path, count: int) -> Path:
    return write(path, *({**GOOD, "id": f"p{i}"} for i in range(count)))


def test_a_file_gives_its_problems_in_order(tmp_path: Path) -> None:
    chat = {"id": "ä", "messages": CHAT, "verifier": "exact", "answer": "2"}
    first, second = read(write(tmp_path, GOOD, "", chat))
    assert (first.id, first.prompt, first.verifier, first.answer, first.tags) == ("a", "1+1=", "number", 2, ("easy",))
    assert (second.id, second.prompt, second.tags) == ("ä", tuple(CHAT), ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2: it is not a JSON object"),
        ({**GOOD, "id": ""}, "line 2: id is '', but must be a text"),
        ({**GOOD, "id": 7}, "line 2: id is 7"),
        ({**GOOD, "id": "first"}, "line 2: the id 'first' is that of line 1 too"),
        ({**GOOD, "anwser": 2}, "line 2: unknown field 'anwser'"),
        ({**GOOD, "verifier": "nubmer"}, "line 2: unknown verifier 'nubmer'; did you mean number"),
        ({**GOOD, "answer": "two"}, "line 2: answer is 'two', but the verifier number needs"),
        ({**GOOD, "prompt": ""}, "line 2: prompt must be a text that is not empty"),
        ({**GOOD, "prompt": CHAT}, "line 2: prompt must be a text"),
        ({**GOOD, "messages": CHAT}, "line 2: it must have either prompt"),
        ({key: value for key, value in GOOD.items() if key != "prompt"}, "line 2: it must have either prompt"),
        ({"id": "a", "messages": [], "verifier": "exact", "answer": "x"}, "line 2: messages must be a list"),
        (
            {"id": "a", "messages": [{"role": "me", "content": "x"}], "verifier": "exact", "answer": "x"},
            "messages must",
        ),
        ({**GOOD, "tags": "easy"}, "line 2: tags is 'easy'"),
        ({**GOOD, "max_completion_tokens": 0}, "line 2: max_completion_tokens is 0, but must be a whole number ≥ 1"),
        ({**GOOD, "max_completion_tokens": True}, "max_completion_tokens is True"),
        ({**GOOD, "time_limit_s": -1}, "line 2: time_limit_s is -1, but must be a number of seconds above 0"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: dict[str, Any] | str, message: str) -> None:
    with pytest.raises(VergeError, match=message):
        read(write(tmp_path, {**GOOD, "id": "first"}, line))


def test_a_problem_may_have_limits_of_its_own(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path, {**GOOD, "max_completion_tokens": 7, "time_limit_s": 0.5}))
    assert (found.max_completion_tokens, found.time_limit_s) == (7, 0.5)


def test_a_large_file_is_never_held_in_memory(tmp_path: Path) -> None:
    """Checked, split, and gone through as the store takes it in: a small part of the file's size."""
    file = tmp_path / "large.jsonl"
    with file.open("w") as out:
        for number in range(2000):
            out.write(json.dumps({**GOOD, "id": f"p{number}", "prompt": f"{number} " * 1000}) + "\n")
    tracemalloc.start()
    try:
        split = load_problems(ProblemsConfig(source=str(file)))
        assert sum(len(chunk) for part in (split.train, split.held_out) for chunk in chunks(part, 100)) == 2000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < file.stat().st_size / 5


def test_a_file_that_changes_while_a_run_starts_is_refused(tmp_path: Path) -> None:
    file = numbered(tmp_path, 3)
    problems = read_problems(ProblemsConfig(source=str(file)))
    assert [problem.id for problem in problems] == ["p0", "p1", "p2"]
    for count in (2, 4):
        numbered(tmp_path, count)
        with pytest.raises(VergeError, match="has changed while it was read"):
            list(problems)


def test_files_that_are_not_there_or_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VergeError, match="no such file, nor builtin:countdown"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(VergeError, match="cannot be read"):
        read(tmp_path)
    with pytest.raises(VergeError, match="has no problems"):
        read(write(tmp_path, "", "  "))
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe{}")
    with pytest.raises(VergeError, match="is not UTF-8 text: invalid start byte at byte 0"):
        read(binary)


def test_a_file_is_split_by_its_seed(tmp_path: Path) -> None:
    source = str(numbered(tmp_path, 50))
    split = load_problems(ProblemsConfig(source=source))
    assert (len(split.train), len(split.held_out)) == (45, 5)
    assert len({problem.id for problem in [*split.train, *split.held_out]}) == 50
    again, other = (load_problems(ProblemsConfig(source=source, seed=seed)) for seed in (0, 1))
    assert (list(split.train), list(split.held_out)) == (list(again.train), list(again.held_out))
    assert list(split.held_out) != list(other.held_out)
    counted = load_problems(ProblemsConfig(source=source, train_count=7, held_out_count=11))
    assert (len(counted.train), len(counted.held_out)) == (7, 11)
    assert len(load_problems(ProblemsConfig(source=source, held_out_share=0)).held_out) == 0
    assert len(load_problems(ProblemsConfig(source=source, held_out_share=0.5)).held_out) == 25


def test_more_problems_than_a_file_has_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    source = str(numbered(tmp_path, 10))
    with pytest.raises(
        VergeError, match=r"10 problems, but 8 to train on and 3 held out are asked for \(8 \+ 3 = 11\)"
    ):
        load_problems(ProblemsConfig(source=source, train_count=8, held_out_count=3))
    with pytest.raises(VergeError, match="0 to train on"):
        load_problems(ProblemsConfig(source=source, held_out_count=10))


def test_built_in_families_come_in_both_forms() -> None:
    countdown = load_problems(ProblemsConfig(source="builtin:countdown"))
    assert (len(countdown.train), len(countdown.held_out)) == (512, 256)
    assert isinstance(countdown.train[0].prompt, str)
    arithmetic = load_problems(ProblemsConfig(source="builtin:arithmetic", train_count=20, held_out_count=0))
    assert (len(arithmetic.train), arithmetic.held_out) == (20, ())
    assert isinstance(arithmetic.train[0].prompt, tuple)
    plain = load_problems(ProblemsConfig(source="builtin:arithmetic", train_count=20, form="plain"))
    assert [problem.id for problem in plain.train] == [problem.id for problem in arithmetic.train]
    assert isinstance(plain.train[0].prompt, str)
    chat = load_problems(ProblemsConfig(source="builtin:countdown", train_count=1, form="chat"))
    assert isinstance(chat.train[0].prompt, tuple)


def test_sources_that_make_no_sense_are_refused() -> None:
    with pytest.raises(VergeError, match="no built-in problem family 'countdwon'; did you mean countdown"):
        load_problems(ProblemsConfig(source="builtin:countdwon"))
    with pytest.raises(VergeError, match="501 held_out problems of countdown asked for, must be 1 to 500"):
        load_problems(ProblemsConfig(held_out_count=501))
    with pytest.raises(ValidationError, match="only generated problems have a choice"):
        ProblemsConfig(source="x.jsonl", form="chat")
