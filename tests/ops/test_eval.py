"""An evaluation: kept line by line, continued, refused where it would mislead, and right about a real model."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from actors.config import ProblemsConfig
from actors.problems import load_problems
from ops.eval_plot import draw
from ops.exact import exact_solve_rates
from ops.tally import (
    Subject,
    TallyFile,
    compare_tallies,
    problems_digest,
    read_tallies,
    report,
    write_table,
)
from store.errors import VergeError
from store.evaluations import Tally
from store.wire import Problem

ROOT = Path(__file__).parents[2]
SUBJECT = Subject("m", "w", "p", 2, 8, 1.0, 8)


def counted(name: str, correct: int, n: int = 8, errors: int = 0) -> Tally:
    return Tally(name, n, correct, min(correct, 2), 1, errors, 5 * n, 2.5 * n)


def test_an_evaluation_that_was_cut_short_continues_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "some" / "e.jsonl"
    file = TallyFile(path, SUBJECT)
    file.add(counted("a", 3))
    file.close()
    with path.open("a") as cut:
        cut.write('{"id": "b", "n": 8')
    again = TallyFile(path, SUBJECT)
    assert list(again.done) == ["a"]
    again.add(counted("b", 0))
    again.close()
    assert read_tallies(path) == (SUBJECT, {"a": counted("a", 3), "b": counted("b", 0)})


def test_a_problem_that_the_verifier_failed_on_is_sampled_again(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    file = TallyFile(path, SUBJECT)
    file.add(counted("a", 3, n=7, errors=1))
    file.add(counted("b", 0))
    file.close()
    again = TallyFile(path, SUBJECT)
    assert list(again.done) == ["b"]
    again.close()


def test_a_file_of_another_evaluation_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    TallyFile(path, SUBJECT).close()
    before = path.read_bytes()
    with pytest.raises(VergeError, match=r"with samples = 8, this one has 16; name another file with --out"):
        TallyFile(path, replace(SUBJECT, samples=16))
    assert path.read_bytes() == before
    path.write_text("pass@1 .5\n")
    for broken in ("pass@1 .5\n", "[]\n", json.dumps(asdict(SUBJECT)) + "\n{}\n"):
        path.write_text(broken)
        with pytest.raises(VergeError, match="is not an evaluation that `verge eval` wrote"):
            read_tallies(path)


def test_the_report_has_the_unbiased_estimator_and_its_error_over_problems() -> None:
    found = report(SUBJECT, [counted("a", 4), counted("b", 0, errors=2)], [1, 2])
    # pass@1: 4/8 and 0. pass@2: 1 − (4·3)/(8·7) = 11/14 and 0. The error of two values x, 0 is x/2.
    values = [row[name] for row in found["pass_at_k"] for name in ("mean", "se")]
    assert values == pytest.approx([0.25, 0.25, 11 / 28, 11 / 28])
    assert (found["solved"], found["mean_tokens"], found["entropy"]) == (1, 5.0, 0.5)
    assert found["error_share"] == pytest.approx(2 / 18)
    with pytest.raises(VergeError, match=r"problem b has only 8 judged completions \(0 errors\), too few for pass@9"):
        report(SUBJECT, [counted("a", 4, 9), counted("b", 0)], [1, 9])


def test_two_evaluations_are_compared_problem_by_problem() -> None:
    before = (SUBJECT, {"a": counted("a", 4), "b": counted("b", 0)})
    after = (replace(SUBJECT, weights="x"), {"b": counted("b", 2), "a": counted("a", 0)})
    found = compare_tallies(before, after, [1])
    assert found["gains"] == [pytest.approx({"k": 1, "before": 0.25, "after": 0.125, "gain": -0.125, "se": 0.375})]
    # Two successes of 16 in the second 8 by chance: (8·7)/(16·15).
    assert found["newly_solved"] == [{"id": "b", "correct": 2, "n": 8, "chance": pytest.approx(56 / 240)}]
    assert [row["id"] for row in found["newly_lost"]] == ["a"]
    with pytest.raises(VergeError, match="is of 2 other problems"):
        compare_tallies(before, (replace(SUBJECT, problems="q"), after[1]), [1])
    with pytest.raises(VergeError, match=r"has 8 judged completions of problem a, too few for pass@9; lower --k"):
        compare_tallies(before, after, [9])
    with pytest.raises(VergeError, match="has 1 of 2 problems; run it to its end"):
        compare_tallies((SUBJECT, {"a": counted("a", 4)}), after, [1])


def test_a_table_has_a_row_per_problem_and_is_read_back_as_what_it_was_made_of(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: no table was written")
    path, tallies = tmp_path / "e.parquet", [counted("a", 4), counted("b", 0)]
    write_table(path, SUBJECT, tallies)
    assert parquet.read_table(path).to_pydict()["correct"] == [4, 0]
    assert read_tallies(path) == (SUBJECT, {tally.id: tally for tally in tallies})
    parquet.write_table(parquet.read_table(path).replace_schema_metadata({}), path)
    with pytest.raises(VergeError, match="is not an evaluation that `verge eval` wrote"):
        read_tallies(path)


def test_the_figure_shows_both_models_and_counts_what_is_newly_solved(tmp_path: Path) -> None:
    before = (SUBJECT, {"a": counted("a", 4), "b": counted("b", 0)})
    after = (replace(SUBJECT, weights="x"), {"a": counted("a", 0), "b": counted("b", 8)})
    out = tmp_path / "gains.svg"
    draw(out, after, before)
    drawn = out.read_text()
    # 8 successes that all fall in the second 8 of 16: 1 in 12870. 4 in the first 8: (8·7·6·5)/(16·15·14·13) = 1 in 26.
    for words in (
        "newly solved: 1, 1 of them beyond chance",
        "newly lost: 1, 0 of them beyond chance",
        "pass@k of 2 problems",
    ):
        assert words in drawn
    draw(tmp_path / "one.png", after)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_the_digest_of_problems_knows_their_texts_and_not_their_order() -> None:
    one, two = Problem("1", "a", "exact", "x"), Problem("2", "b", "exact", "y")
    assert problems_digest([one, two]) == problems_digest([two, one])
    assert problems_digest([one, two]) != problems_digest([one, replace(two, answer="z")])


def test_a_real_model_is_evaluated_to_its_exact_solve_rates_and_not_sampled_twice(
    tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "e.jsonl"
    command = [sys.executable, "-m", "ops.cli", "eval", "ops/configs/demo.toml", "--model", str(tiny_model)]
    command += ["--samples", "64", "--k", "1,16", "--out", str(out), "--json", "--set", "problems.held_out_count=48"]
    command += ["--set", f"folder={tmp_path / 'run'}"]
    first, again = [
        json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for _ in range(2)
    ]
    assert first == again, "the second only reads"
    problems = list(load_problems(ProblemsConfig(held_out_count=48)).held_out)
    exact = exact_solve_rates(tiny_model, problems)
    tallies = read_tallies(out)[1]
    correct = np.array([tallies[problem.id].correct for problem in problems])
    spread = np.sqrt((64 * exact * (1 - exact)).sum())
    assert abs(correct.sum() - 64 * exact.sum()) < 4 * spread
    assert first["pass_at_k"][0]["mean"] == pytest.approx(correct.mean() / 64)
    assert 0.2 < first["entropy"] < 1.5
    versus = [*command, "--against", str(out), "--k", "128"]
    refused = subprocess.run(versus, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "--k holds 128, but must be in [1, 64] (= --samples)" in refused.stderr
