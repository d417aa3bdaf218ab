"""The HTTP API answers what `verge state` answers, refuses in words, and never breaks."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from store import queries
from store.client import Store
from store.queries import Gate
from tests.ops.conftest import Scripted
from tests.ops.serving import HARD, LOST, MIXED, NEW, NEWEST, PROBLEMS, SAID, SCRIPT, Served

GATE = Gate()


def ask(scripted: Scripted, question: Callable[[Store], Awaitable[Any]]) -> Any:
    async def answer() -> Any:
        store = await scripted.connect()
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(answer())


def test_the_summary_is_that_of_verge_state_and_names_the_gate(served: Served, scripted: Scripted) -> None:
    answer = served.get("api/summary").json()
    gate = answer.pop("gate")
    assert answer == ask(scripted, lambda store: queries.summary(store, GATE))
    assert answer["dynamics"]["target_entropy"] is None
    assert gate == {
        "k": 8, "tau": 0.01, "prior": [1.0, 1.0], "gamma": 0.97, "advantage": "fade_bbg", "used_by_the_advantage": True,
    }  # fmt: skip


def test_a_list_is_that_of_verge_state_filtered_sorted_and_page_by_page(served: Served, scripted: Scripted) -> None:
    everything = ask(scripted, lambda store: queries.list_problems(store, GATE, sort="-attempts"))
    assert [row["attempts"] for row in everything] == [16, 12, 8, 8, 0]
    pages = [served.get("api/problems", sort="-attempts", offset=start, limit=2).json() for start in (0, 2, 4)]
    assert [row for page in pages for row in page["problems"]] == everything
    assert {page["total"] for page in pages} == {5}
    hard = served.get("api/problems", where="successes == 0 and attempts >= 8").json()
    assert (hard["total"], [row["id"] for row in hard["problems"]]) == (1, [HARD])
    text = served.get("api/problems", where='"script" in id').json()
    assert [row["id"] for row in text["problems"]] == [MIXED]


def test_a_problem_is_told_with_all_its_groups_and_the_interval_after_each(served: Served, scripted: Scripted) -> None:
    answer = served.get("api/problem", id=MIXED).json()
    told = ask(scripted, lambda store: queries.problem_history(store, MIXED, GATE))
    assert answer["facts"] == told["facts"]
    assert answer["opinions"] == told["opinions"]
    assert answer["problem"]["prompt"] == PROBLEMS[3].prompt
    assert answer["groups"] == told["groups"][::-1]
    intervals = [(group["interval_low"], group["interval_high"]) for group in answer["groups"]]
    assert answer["total"] == 4
    # Beta(1, 5), after the first group of 0 of 4: 1 − .975^(1/5) and 1 − .025^(1/5).
    assert intervals[-1] == pytest.approx((0.0050508, 0.5218238), abs=1e-6)
    assert served.get("api/problem", id=MIXED, offset=1, limit=2).json()["groups"][0]["c"] == 2
    assert served.get("api/problem", id=NEW).json()["groups"] == []


def test_completions_are_text_with_the_version_and_lag_of_each_token(served: Served, scripted: Scripted) -> None:
    waiting = served.get("api/group", id=scripted.groups[-1]).json()
    assert (waiting["drawn_at_step"], waiting["version_at_draw"]) == (None, NEWEST)
    assert waiting["size"] == 4
    assert [item["verdict"] for item in waiting["completions"]] == ["correct"] * 3 + ["wrong"]
    older, newer = waiting["completions"][0]["pieces"]
    assert (older["text"], older["version"], older["lag"], older["end"]) == (SAID[:7], 5, 1, 7)
    assert (newer["text"], newer["version"], newer["lag"], newer["start"]) == (SAID[7:], 6, 0, 7)
    assert waiting["completions"][0]["mean_logprob"] == pytest.approx(-0.5)
    # Drawn at step 2, which began with the version of step 1.
    drawn = served.get("api/group", id=scripted.groups[3]).json()
    assert (drawn["drawn_at_step"], drawn["version_at_draw"]) == (2, 1)
    assert [(piece["version"], piece["lag"]) for piece in drawn["completions"][0]["pieces"]] == [(0, 1)]
    left = served.get("api/group", id=scripted.groups[0])
    assert (left.status_code, "is not in the pool" in left.json()["detail"]) == (404, True)


def test_changes_dynamics_evaluations_and_weights_are_the_stores(served: Served, scripted: Scripted) -> None:
    assert served.get("api/changes").json() == {
        "after_version": 0, "to_version": NEWEST, "newly_solved": [MIXED], "newly_lost": [LOST],
    }  # fmt: skip
    spans = list(itertools.combinations(range(NEWEST + 1), 2))

    async def all_changes(store: Store) -> list[dict[str, list[str]]]:
        return [await queries.changes(store, after, to) for after, to in spans]

    for (after, to), expected in zip(spans, ask(scripted, all_changes), strict=True):
        answer = served.get("api/changes", after_version=after, to_version=to).json()
        assert {name: answer[name] for name in expected} == expected
    dynamics = served.get("api/dynamics", offset=4).json()
    assert (dynamics["total"], [step["step"] for step in dynamics["steps"]]) == (6, [5, 6])
    told = ask(scripted, lambda store: queries.evaluations(store, (1, 8, 16, 64)))
    page = served.get("api/evaluations", limit=1, offset=2).json()
    assert (page["total"], page["evaluations"]) == (3, told[2:])
    # 4, 0 and 0 of 64; then 20, 32 and 1, two of them new.
    first, last = told[0], told[2]
    assert (first["version"], first["pass_at_k"][0]["mean"], first["solved"]) == (0, pytest.approx(4 / 192), 1)
    assert (last["version"], last["step"], last["newly_solved"], last["newly_lost"]) == (6, 6, 2, 0)
    assert last["gains"][0]["gain"] == pytest.approx((16 + 32 + 1) / 192)
    assert [row["k"] for row in last["pass_at_k"]] == [1, 8, 16, 64]
    weights = served.get("api/weights", limit=1, offset=6).json()
    assert (weights["total"], weights["weights"][0]["version"]) == (7, 6)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("api/problems?where=attemps>1", 400, "did you mean attempts?"),
        ("api/problems?where=gate.real", 400, "may not contain"),
        ("api/problems?sort=gats", 400, "no column 'gats'"),
        ("api/problem?id=absent", 404, "no problem 'absent'"),
        ("api/group?id=absent", 404, "is not in the pool"),
        ("api/changes?after_version=6", 400, "version 6 is not before version 6"),
        ("api/problems?limit=0", 422, "greater than or equal to 1"),
        ("api/problems?offset=99999999999999999999", 422, "less than or equal to"),
        ("api/problem", 422, "Field required"),
        ("api/problems?what_if_k=0.5", 422, "greater than or equal to 1"),
        ("api/problems?sort=what_if_gate", 400, "no column 'what_if_gate'"),
        ("api/nothing", 404, "Not Found"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_in_words(
    served: Served, path: str, status: int, words: str
) -> None:
    answer = served.get(path)
    assert answer.status_code == status
    assert words in answer.text


def test_a_person_is_refused_with_a_page(served: Served) -> None:
    for path, words in (("problem?id=absent", "no problem"), ("problem", "Field required")):
        answer = served.client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code in (404, 422)
        assert words in answer.text
        assert answer.headers["content-type"].startswith("text/html")


def test_whatever_is_asked_the_server_does_not_break(served: Served) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: the API was not fuzzed")
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # a filter's language is no JSON schema

    schema = schemathesis.openapi.from_url(served.url + "openapi.json")
    asked = 0
    for result in schema.get_all_operations():

        @settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=result.ok().as_strategy())
        def check(case: Any) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(
                base_url=served.url.rstrip("/"), timeout=60, excluded_checks=[positive_data_acceptance]
            )

        check()
    assert asked > 50


def test_the_openapi_document_has_every_answer_and_nothing_that_changes_the_run(served: Served) -> None:
    document = served.get("openapi.json").json()
    assert set(document["paths"]) == {
        "/api/summary", "/api/problems", "/api/problem", "/api/groups", "/api/group", "/api/changes", "/api/dynamics",
        "/api/weights", "/api/evaluations", "/metrics",
    }  # fmt: skip
    assert {method for path in document["paths"].values() for method in path} == {"get"}
    row = document["components"]["schemas"]["ProblemRow"]["properties"]
    assert row["evidence_a"]["description"].startswith("Successes, discounted")
    assert SCRIPT not in served.get("openapi.json").text
