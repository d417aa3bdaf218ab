"""Datasets that were not made for Verge: Parquet, folders of the hub, and columns by a mapping."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from huggingface_hub import constants
from pyarrow import parquet

from actors.chosen_rows import read_problems
from actors.config import ProblemsConfig
from actors.problem_files import read_entries
from actors.problems import load_problems
from store.errors import VergeError
from store.wire import Problem

GSM = [{"question": f"{i}+1?", "answer": f"I add.\n#### {i + 1}", "level": i} for i in range(4)]
CHAT = [{"role": "user", "content": "1+1?"}]


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(source: Path, columns: dict[str, str] | None = None, **settings: Any) -> list[Problem]:
    config = ProblemsConfig.model_validate({"source": str(source), "columns": columns or {}, **settings})
    return list(read_problems(config))


@pytest.mark.parametrize("write", [table, lines])
def test_columns_are_mapped_and_others_ignored(tmp_path: Path, write: Any) -> None:
    found = read(write(tmp_path / "train.parquet" if write is table else tmp_path / "train.jsonl", GSM),
                 {"prompt": "question"}, verifier="math")  # fmt: skip
    assert found[1] == Problem("row-2", "1+1?", "math", "I add.\n#### 2")
    assert len(found) == 4


def test_a_table_in_verges_own_form_needs_no_mapping(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "1+1=", "messages": None, "verifier": "number", "answer": 2, "tags": ["x", "y"]},
        {"id": "b", "prompt": None, "messages": CHAT, "verifier": "number", "answer": 2, "tags": None},
    ]
    first, second = read(table(tmp_path / "own.parquet", rows))
    assert (first.prompt, first.tags, second.prompt, second.tags) == ("1+1=", ("x", "y"), tuple(CHAT), ())


def test_chats_tests_and_tags_come_through_a_mapping(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "add", "name": None}, {"role": "assistant", "content": "?", "name": "x"}]
    tests = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    row = {"task": 7, "prompt": turns[:1], "cases": json.dumps(tests), "difficulty": "EASY", "solution": "print(3)"}
    columns = {"id": "task", "messages": "prompt", "answer": "cases", "tags": "difficulty", "reference": "solution"}
    source = table(tmp_path / "taco.parquet", [row])
    (problem,) = read(source, columns, verifier="code")
    assert problem == Problem("7", ({"role": "user", "content": "add"},), "code", json.dumps(tests), ("EASY",))
    config = ProblemsConfig.model_validate({"source": str(source), "columns": columns, "verifier": "code"})
    assert [entry.reference for entry in read_entries(config)] == ["print(3)"]


@pytest.mark.parametrize("write", [table, lines])
def test_a_dataset_without_the_mapped_column_is_refused(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path / ("x.parquet" if write is table else "x.jsonl"), GSM)
    with pytest.raises(VergeError, match=r"problems.columns.prompt.*question, answer, level") as refused:
        read(source, {"prompt": "problem"}, verifier="math")
    assert "'problem'" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verifier": None}, r"row 2: verifier is None.*problems.verifier gives one"),
        ({"answer": "two"}, "row 2: answer is 'two', but the verifier number needs"),
        ({"id": "first"}, "row 2: the id 'first' is that of row 1 too"),
        ({"question": "?"}, r"row 2: unknown field 'question'.*problems.columns says what"),
        ({"verifier": "code", "answer": None}, "row 2: answer has no tests; the verifier code needs"),
        ({"reference": 5}, "row 2: reference is '5', but must be a text"),
    ],
)
def test_a_bad_row_is_named_by_its_number(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = {"id": "first", "prompt": "x", "verifier": "number", "answer": "1"}
    rows = [{**dict.fromkeys(change), **good}, {**good, "id": "a", **change}]
    with pytest.raises(VergeError, match=message):
        read(table(tmp_path / "x.parquet", rows))


def test_answers_that_are_not_json_are_refused(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "x", "verifier": "python:m:f", "answer": datetime.datetime(2026, 1, 1)}
    with pytest.raises(VergeError, match="row 1: answer cannot be written as JSON: Object of type datetime"):
        read(table(tmp_path / "x.parquet", [row]))


def test_a_folder_of_the_hub_is_read_split_by_split(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        table(tmp_path / "data" / f"{name}.parquet", GSM)
    (tmp_path / "README.md").write_text("a card")
    columns = {"prompt": "question"}
    assert [problem.id for problem in read(tmp_path, columns, verifier="math")] == [f"row-{n}" for n in range(1, 9)]
    assert len(read(tmp_path, columns, verifier="math", split="test")) == 4
    with pytest.raises(VergeError, match=r"no file of the split 'dev', but of test, train; set problems.split"):
        read(tmp_path, columns, split="dev")
    config = {"source": str(tmp_path), "columns": columns, "verifier": "math", "held_out_count": 3}
    split = load_problems(ProblemsConfig.model_validate(config))
    assert (len(split.train), len(split.held_out)) == (5, 3)


def test_a_folder_without_names_of_splits_is_read_whole(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", GSM)
    lines(tmp_path / "sub" / "b.jsonl", GSM)
    assert len(read(tmp_path, {"prompt": "question"}, verifier="math")) == 8


def test_a_dataset_of_the_hub_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    dataset = tmp_path / "datasets--verge--gsm"
    table(dataset / "snapshots" / "abc123" / "data" / "train-0.parquet", GSM)
    (dataset / "refs").mkdir()
    (dataset / "refs" / "main").write_text("abc123")
    assert len(read(Path("verge/gsm"), {"prompt": "question"}, verifier="math")) == 4
    with pytest.raises(VergeError, match=r"verge/other: no such file or folder, and the hub gives no such dataset"):
        read(Path("verge/other"))
    with pytest.raises(VergeError, match=r"data/none.jsonl: no such file, nor"):
        read(Path("data/none.jsonl"))


def test_files_that_are_not_what_they_are_named_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(VergeError, match=r"x.parquet is not a Parquet file"):
        read(tmp_path / "x.parquet")
    with pytest.raises(VergeError, match=r"y.parquet: no such file, nor builtin:"):
        read(tmp_path / "y.parquet")
    cut = table(tmp_path / "cut.parquet", GSM * 3000)
    data = bytearray(cut.read_bytes())
    data[20:200] = b"\xff" * 180
    cut.write_bytes(data)
    with pytest.raises(VergeError, match=r"cut.parquet cannot be read after row 0"):
        read(cut, {"prompt": "question"}, verifier="math")
