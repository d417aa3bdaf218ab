"""Evaluations while a run trains, as its user meets them: set, entered into the store, printed and drawn."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from ops.config import load_config
from ops.prepare import enter_store, prepare
from ops.serve.figures import POINTS, evaluation_chart
from ops.summary import summarise, summary_text
from store.client import Store
from store.evaluations import Round, Tally
from store.server import EmbeddedServer
from tests.ops.conftest import Scripted
from tests.ops.test_bad_input import builtin


def verge(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints."""
    from ops.cli import main

    monkeypatch.setattr(sys, "argv", ["verge", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, ended.value.code
    return capsys.readouterr().out


def test_a_table_has_a_row_per_round_and_a_column_per_k(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("state", "evaluations", str(scripted.folder))
    head, *rows = [
        re.split(r"\s{2,}", line.strip())
        for line in verge(*command, monkeypatch=monkeypatch, capsys=capsys).splitlines()
    ]
    assert head[:4] == ["version", "problems", "pass@1", "pass@8"]
    # pass@1 of 4, 0 and 0 right ones of 64, whose spread over √3 problems is its error; of 20, 32 and 1 in the last.
    assert rows[0][:3] == ["0", "3", "0.021 ± 0.021"]
    assert rows[2][:3] == ["6", "3", "0.276 ± 0.141"]
    assert rows[2][-4:] == ["2.333", "0.500", "3.1%", "0.0%"]
    assert len(rows) == 3
    told = json.loads(verge(*command, "--json", monkeypatch=monkeypatch, capsys=capsys))["evaluations"]
    assert [found["version"] for found in told] == [0, 3, 6]
    assert {row["k"] for row in told[0]["pass_at_k"]} == {1, 8, 16, 64}


@pytest.mark.parametrize("every", [0, 25])
def test_held_out_problems_enter_the_store_only_where_they_are_evaluated_on(
    every: int, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(Path(builtin(tmp_path, tiny_model)), [f"evaluation.every={every}"])
    prepared = prepare(config)

    async def entered(url: str, password: str | None) -> tuple[list[str], list[str], list[str]]:
        store = await Store.connect(url, config.name, password)
        try:
            await enter_store(store, config, prepared)
            await enter_store(store, config, prepared)  # as a learner does beside `verge up`
            text = summary_text(await summarise(store, config, 1.0, []))
            assert "while it trained" not in text
            names = await store.held_out_ids()
            found = [await store.held_out_problem(name) for name in names]
            assert [*filter(None, found)] == (list(prepared.problems.held_out) if every else [])
            return names, await store.problem_ids(), [problem.id for problem in prepared.problems.train]
        finally:
            await store.close()

    with EmbeddedServer(config.run_folder) as server:
        held_out, known, train = asyncio.run(entered(server.url, server.password))
    assert len(held_out) == (256 if every else 0)
    assert known == train
    assert not set(held_out) & set(known)
    said = verge("state", "evaluations", builtin(tmp_path, tiny_model), monkeypatch=monkeypatch, capsys=capsys)
    assert said.startswith("no evaluation is finished yet")


def test_the_summary_of_a_run_has_its_curve(scripted: Scripted, tmp_path: Path) -> None:
    config = load_config(Path(builtin(tmp_path, "tiny")))

    async def said() -> str:
        store = await scripted.connect()
        try:
            return summary_text(await summarise(store, config, 1.0, []))
        finally:
            await store.close()

    lines = asyncio.run(said()).splitlines()
    where = lines.index("while it trained (64 completions a problem), by version")
    assert lines[where + 1].split() == ["0", "3", "6"]
    assert lines[where + 2].split() == ["pass@1", "0.021", "0.073", "0.276"]
    assert lines[where + 3].split()[0] == "pass@8"


def round_of(version: int, correct: int, n: int = 8) -> Round:
    return Round(version, version, "a", 0.0, 1.0, 8, (Tally("h", n, correct, 1, 0, 8 - n, 24, 9.0),) * 2)


def test_the_chart_thins_many_rounds_keeps_the_newest_and_draws_what_there_is() -> None:
    many = evaluation_chart([round_of(version, version % 9) for version in range(1001)], (1, 8))
    assert many.count('class="round"') <= 2 * POINTS
    assert ">1000<" not in many, "at most six versions are named"
    assert many.count("<circle") == many.count('class="round"') > POINTS
    one = evaluation_chart([round_of(7, 4)], (1, 8))
    assert one.count("<circle") == 2
    assert ">7<" in one
    # With a completion that was not judged, nothing is said of pass@8 at that version.
    gap = evaluation_chart([round_of(0, 4), round_of(1, 4, n=7), round_of(2, 4)], (1, 8))
    assert gap.count("<circle") == 3 + 2
    assert "nan" not in gap
