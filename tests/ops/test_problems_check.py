"""`verge problems check`: everything that a run would meet, on one page, before it starts."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from actors.families.countdown import problems as countdown_problems
from ops.cli import main
from ops.problems_check import reference_of
from store.wire import Problem
from tests.actors.test_hostile_programs import why_not

GOOD: dict[str, Any] = {"id": "a", "prompt": "1+1=", "verifier": "number", "answer": 2, "tags": ["easy"]}


def write(folder: Path, *rows: dict[str, Any] | str) -> str:
    file = folder / "problems.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(file)


class Check:
    """`verge problems check …` in this process: its exit status, its report, and its last line on standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str) -> tuple[Any, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["verge", "problems", "check", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return (1, self._capsys.readouterr().out, code) if isinstance(code, str) else (code, *self._capsys.readouterr())

    def report(self, *arguments: str) -> dict[str, Any]:
        """The JSON."""
        return json.loads(self(*arguments, "--json")[1])  # type: ignore[no-any-return]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    return Check(capsys, monkeypatch)


def test_good_problems_are_counted_and_their_references_verified(check: Check, tmp_path: Path) -> None:
    chat = {"id": "b", "messages": [{"role": "user", "content": "Say yes."}], "verifier": "exact", "answer": "yes"}
    source = write(tmp_path, GOOD, chat)
    status, said, wrong = check(source)
    assert (status, wrong) == (0, "")
    assert "2 problems" in said
    found = check.report(source)
    assert found["ok"]
    assert found["verifiers"] == {"number": 1, "exact": 1}
    assert found["tags"] == {"easy": 1}
    assert found["prompt_characters"] == {"min": 4, "median": 4, "p95": 8, "max": 8}
    assert found["references"] == {"checked": 2, "problems_without": 0}
    assert "prompt_tokens" not in found


def test_every_fault_is_counted_and_the_first_is_the_last_word(check: Check, tmp_path: Path) -> None:
    source = write(
        tmp_path, GOOD, "", "{", {**GOOD, "id": "b", "answer": "two"}, GOOD, {**GOOD, "id": "c", "answer": None},
        {**GOOD, "id": "d", "prompt": "2+2=", "verifier": "exact", "answer": "4", "reference": "5"},
    )  # fmt: skip
    status, said, wrong = check(source)
    assert status == 1
    assert wrong.startswith(f"verge: {source} line 3 is not JSON")
    assert f"{source} line 4: answer is 'two'" in said
    found = check.report(source)
    counts = {name: part["count"] for name, part in found.items() if isinstance(part, dict) and "count" in part}
    assert counts == {
        "bad": 3, "duplicate_ids": 1, "duplicate_prompts": 3, "missing_answers": 1, "failed_references": 1,
    }  # fmt: skip
    assert found["problems"] == 3
    assert found["duplicate_ids"]["first"] == [f"{source} line 5: the id 'a' is that of {source} line 1 too"]
    assert found["missing_answers"]["first"] == [f"{source} line 6"]
    assert found["failed_references"]["first"] == [f"{source} line 7: its reference is wrong"]
    assert not found["ok"]
    assert check.report(source, "--no-dry-run")["bad"]["count"] == 3


def test_lengths_are_in_tokens_where_there_is_a_model(check: Check, tmp_path: Path, tiny_model: Path) -> None:
    short = {"id": "p1", "prompt": "1234=10:", "verifier": "countdown", "answer": {"digits": "1234", "target": 10}}
    source = write(tmp_path, short, {**short, "id": "p2", "prompt": "1" * 4000})
    found = check.report(source, "--model", str(tiny_model))
    assert found["prompt_tokens"]["max"] >= 8
    assert found["unfit_prompts"]["count"] == 1
    assert "problem p2 does not fit" in found["unfit_prompts"]["first"][0]
    run = tmp_path / "run.toml"
    run.write_text(f'name = "x"\n[model]\npath = "{tiny_model}"\n[problems]\nsource = "{source}"\n')
    found = check.report(str(run), "--set", "actor.context_tokens=8", "--set", "sampling.max_completion_tokens=4")
    assert found["unfit_prompts"]["count"] == 2


def test_a_dataset_is_checked_through_its_mapping(check: Check, tmp_path: Path) -> None:
    rows = [{"question": f"{i}+1?", "result": str(i + 1)} for i in range(5)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    mapped = ["--set", "problems.columns.prompt=question", "--set", "problems.verifier=number"]
    found = check.report(str(tmp_path), *mapped, "--set", "problems.columns.answer=result")
    assert (found["problems"], found["references"]["checked"], found["ok"]) == (5, 5, True)
    status, _, wrong = check(str(tmp_path), *mapped, "--set", "problems.columns.answer=results")
    assert status == 1
    assert "problems.columns.answer is 'results', but" in wrong
    assert check(str(tmp_path / "none.jsonl"))[0] == 1


def test_a_verifier_that_fails_is_told_apart_from_a_wrong_reference(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "actors"))
    row = {"id": "a", "prompt": "x", "verifier": "python:rough_checks:raises", "reference": "yes"}
    (said,) = check.report(write(tmp_path, row))["failed_references"]["first"]
    assert said.endswith("its reference is error (rough_checks:raises: KeyError: 'gold')")


@pytest.mark.skipif(bool(reason := why_not()), reason=reason)
def test_solutions_of_code_problems_are_run(check: Check, tmp_path: Path) -> None:
    answer = {"tests": [{"input": "1 2\n", "output": "3\n"}]}
    row = {"id": "a", "prompt": "add", "verifier": "code", "answer": answer}
    solved = {**row, "id": "b", "prompt": "add!", "reference": "print(sum(map(int, input().split())))"}
    unsolved = {**row, "id": "c", "prompt": "add?", "reference": "print(4)"}
    found = check.report(write(tmp_path, row, solved, unsolved), "--set", "verifier.time_limit_s=30")
    assert found["references"] == {"checked": 2, "problems_without": 1}
    assert found["failed_references"]["count"] == 1
    assert "line 3: its reference is wrong" in found["failed_references"]["first"][0]


def test_a_correct_completion_is_made_from_an_answer_that_holds_one() -> None:
    def made(verifier: str, answer: Any) -> str | None:
        return reference_of(Problem("p", "?", verifier, answer))

    assert made("exact", 5) == "5"
    assert made("math", r"\frac12") == r"\boxed{\frac12}"
    assert made("math", "so\n#### 7") == r"\boxed{7}"
    assert made("math", r"hence $x=2$") == r"hence $x=2$"
    assert made("reasoning_gym:x", {"question": "?", "answer": "a", "metadata": {}}) == "<answer>a</answer>"
    assert made("reasoning_gym:x", {"question": "?", "answer": None, "metadata": {}}) is None
    assert made("python:m:f", "a") is None
    assert made("code", {"tests": []}) is None
    (problem,) = countdown_problems("train", 1, 0, False)
    assert reference_of(problem)
