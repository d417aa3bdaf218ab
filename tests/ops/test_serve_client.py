"""The Python client answers over HTTP what `store.queries` answers over Redis."""

import asyncio
from typing import Any

import pytest

from ops.serve import client
from ops.serve.answers import finite
from ops.serve.client import ServedRun
from store import queries
from store.errors import VergeError
from store.queries import Gate
from tests.ops.conftest import Scripted
from tests.ops.serving import MIXED, Served


def test_the_client_answers_as_the_functions_of_the_same_names(
    served: Served, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PAGE", 2)  # so that answers of several pages are put together
    run = ServedRun(served.url)

    async def expected() -> list[Any]:
        store = await scripted.connect()
        try:
            return [
                finite(await queries.summary(store, Gate())),
                await queries.list_problems(store, Gate()),
                await queries.list_problems(store, Gate(), where="attempts > 0", sort="-gate", limit=3),
                await queries.problem_history(store, MIXED, Gate()),
                await queries.changes(store, 0, 6),
            ]
        finally:
            await store.close()

    summary, history = run.summary(), run.problem_history(MIXED)
    del summary["gate"]
    for group in history["groups"]:
        del group["interval_low"], group["interval_high"]
    history["problem"]["tags"] = tuple(history["problem"]["tags"])
    found = [
        summary,
        run.list_problems(),
        run.list_problems(where="attempts > 0", sort="-gate", limit=3),
        history,
        run.changes(0, 6),
    ]
    assert found == asyncio.run(expected())


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
