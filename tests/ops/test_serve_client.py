"""A run answers its store's client and its page's client alike, to every question of `store.queries`."""

import asyncio
import inspect
import json
from typing import Any

import numpy as np
import pytest

from ops.client import Run, StoredRun, connect
from ops.serve import client
from ops.serve.client import ServedRun
from store import queries
from store.errors import VergeError
from store.queries import Gate
from tests.ops.conftest import Scripted
from tests.ops.serving import MIXED, Served

QUESTIONS = [
    ("summary", (), {}),
    ("list_problems", (), {}),
    ("list_problems", (), {"where": "attempts > 0", "sort": "-gate", "limit": 3}),
    ("list_problems", (), {"what_if_k": 256, "where": "what_if_gate < gate", "sort": "-what_if_gate"}),
    ("list_problems", (), {"what_if_tau": 0.5}),
    ("problem_history", (MIXED,), {}),
    ("problem_history", ("new",), {}),
    ("group_log", (), {}),
    ("changes", (0, 6), {}),
    ("changes", (2, 3), {}),
    ("evaluations", (), {}),
]


@pytest.fixture(scope="module")
def both(served: Served, scripted: Scripted) -> tuple[Run, Run]:
    """One run over HTTP, and by its folder, from its store."""
    return connect(served.url), connect(scripted.folder)


@pytest.mark.parametrize(("name", "given", "options"), QUESTIONS, ids=lambda value: str(value)[:30])
def test_both_clients_answer_alike_and_in_json(
    both: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch, name: str, given: Any, options: Any
) -> None:
    monkeypatch.setattr(client, "_PAGE", 2)  # so that answers of several pages are put together
    over_http, stored = (getattr(run, name)(*given, **options) for run in both)
    assert over_http == stored
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored


def test_columns_are_the_same_numbers_of_the_same_kinds(both: tuple[Run, Run]) -> None:
    over_http, stored = (run.problem_columns() for run in both)
    assert list(over_http) == list(stored)
    for name, column in stored.items():
        assert over_http[name].dtype == column.dtype, name
        np.testing.assert_array_equal(over_http[name], column, name)


def test_the_answers_are_those_of_the_functions_of_the_same_names(both: tuple[Run, Run], scripted: Scripted) -> None:
    async def expected() -> list[Any]:
        store = await scripted.connect()
        try:
            return [
                await queries.summary(store, Gate()),
                await queries.list_problems(store, Gate(), sort="-gate"),
                await queries.list_problems(store, Gate(), what_if=Gate(k=256)),
                await queries.problem_history(store, MIXED, Gate()),
                await queries.changes(store, 0, 6),
                await queries.evaluations(store, (1, 8, 16, 64)),
            ]
        finally:
            await store.close()

    for run in both:
        summary = run.summary()
        assert summary.pop("gate")["k"] == 8
        found = [summary, run.list_problems(sort="-gate"), run.list_problems(what_if_k=256)]
        found += [run.problem_history(MIXED), run.changes(0, 6), run.evaluations()]
        assert found == asyncio.run(expected())


def test_no_question_of_the_store_is_missing_from_a_client() -> None:
    asked = {name for name, function in vars(queries).items() if inspect.iscoroutinefunction(function)}
    asked.discard("summary_of")  # `summary`, for a caller that has the columns
    for kind in (Run, StoredRun, ServedRun):
        methods = {name for name, member in vars(kind).items() if inspect.isfunction(member) and name[0] != "_"}
        assert methods - {"ask"} == asked, kind
        for name in asked:
            assert inspect.signature(getattr(kind, name)) == inspect.signature(getattr(Run, name)), (kind, name)


def test_a_place_that_is_no_run_is_refused_in_one_line(tmp_path: Any) -> None:
    with pytest.raises(VergeError, match="is not a run folder"):
        connect(tmp_path)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda run: run.list_problems(where="attemps > 1"), "did you mean attempts"),
        (lambda run: run.problem_history("absent"), "no problem 'absent'"),
        (lambda run: run.changes(-1, 3), "after_version: Input should be greater than or equal to 0"),
        (lambda run: ServedRun("http://127.0.0.1:1").summary(), "http://127.0.0.1:1 does not answer"),
        (lambda run: ServedRun("file:///etc/passwd"), "is not the address of a page"),
    ],
)
def test_what_the_server_refuses_is_said_in_its_words(served: Served, ask: Any, words: str) -> None:
    with pytest.raises(VergeError, match=words):
        ask(ServedRun(served.url))
