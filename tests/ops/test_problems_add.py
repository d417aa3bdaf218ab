"""`verge problems add`: to a run that stands still or trains; what is refused, and that the run goes on afterwards."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.config import load_config
from ops.prepare import enter_store, prepare
from ops.problems_add import add_problems
from ops.runfolder import enter_run_folder
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import Problem

CONFIG = """
name = "grows"
folder = "{folder}/run"
[model]
path = "{model}"
[problems]
source = "{folder}/problems.jsonl"
held_out_count = 2
[sampling]
max_completion_tokens = 8
[actor]
context_tokens = 32
"""


def row(number: int, **more: object) -> dict[str, object]:
    answer = {"digits": "1234", "target": number}
    return {"id": f"p{number}", "prompt": f"1234={number}:", "verifier": "countdown", "answer": answer, **more}


def lines(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


@pytest.fixture
def config_file(tmp_path: Path, tiny_model: Path) -> Path:
    lines(tmp_path / "problems.jsonl", [row(number) for number in range(1, 9)])
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(folder=tmp_path, model=tiny_model))
    return file


async def _enter(server: EmbeddedServer, config_file: Path) -> tuple[list[str], list[Problem]]:
    """What `verge up` does with the store, new or resumed; the ids that the run has then, and what became of p21."""
    config = load_config(config_file)
    store = await Store.connect(server.url, config.name, server.password)
    await enter_store(store, config, prepare(config))
    found = await store.problem("p21")
    ids = await store.problem_ids()
    await store.close()
    return ids, [] if found is None else [found[0]]


def start(config_file: Path) -> list[str]:
    config = load_config(config_file)
    enter_run_folder(config)
    with EmbeddedServer(config.run_folder) as server:
        return asyncio.run(_enter(server, config_file))[0]


def add(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["problems", "add", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_stopped_run_gets_more_problems_and_is_resumed_with_them(config_file: Path, tmp_path: Path) -> None:
    first = start(config_file)
    assert len(first) == 6
    more = lines(tmp_path / "more.jsonl", [row(21, max_completion_tokens=5, time_limit_s=2.5), row(22)])
    assert add(tmp_path / "run", more) == "2 problems added to run grows, which has 8 to train on\n"
    with EmbeddedServer(tmp_path / "run") as server:
        ids, (found,) = asyncio.run(_enter(server, config_file))
    assert ids == [*first, "p21", "p22"]
    assert (found.max_completion_tokens, found.time_limit_s) == (5, 2.5)


def test_a_live_run_gets_them_while_its_server_runs(config_file: Path, tmp_path: Path) -> None:
    start(config_file)
    with EmbeddedServer(tmp_path / "run"):
        assert add(config_file, lines(tmp_path / "more.jsonl", [row(21)])).startswith("1 problems added")


def test_what_the_run_has_or_holds_out_is_refused_by_its_id(config_file: Path, tmp_path: Path) -> None:
    trained = start(config_file)
    config = load_config(config_file)
    (held_out, _) = sorted({f"p{number}" for number in range(1, 9)} - set(trained))
    more = tmp_path / "more.jsonl"

    lines(more, [row(21), row(int(trained[0][1:]))])
    with pytest.raises(VergeError, match=rf"problem '{trained[0]}' of .*more.jsonl is in the run already"):
        add_problems(config, str(more), skip_present=False)
    assert add_problems(config, str(more), skip_present=True) == (1, 7)
    lines(more, [row(22), {**row(int(trained[0][1:])), "prompt": "99=9:"}])
    with pytest.raises(VergeError, match=rf"problem '{trained[0]}' is in the run with another prompt"):
        add_problems(config, str(more), skip_present=True)
    lines(more, [row(22), row(23), row(22)])
    with pytest.raises(VergeError, match="line 3: the id 'p22' is that of line 1 too"):
        add_problems(config, str(more), skip_present=False)
    lines(more, [row(int(held_out[1:]), id="new")])
    with pytest.raises(VergeError, match=r"problem 'new' of .* has the prompt of a problem that the run holds out"):
        add_problems(config, str(more), skip_present=False)
    lines(more, [row(24, max_completion_tokens=30)])
    with pytest.raises(VergeError, match=r"p24 does not fit: \d+ prompt tokens \+ its own max_completion_tokens = 30"):
        add_problems(config, str(more), skip_present=False)


def test_a_run_that_was_never_started_has_no_store_to_add_to(config_file: Path, tmp_path: Path) -> None:
    more = lines(tmp_path / "more.jsonl", [row(21)])
    with pytest.raises(VergeError, match="has no store: the run has not been started yet"):
        add(config_file, more)
