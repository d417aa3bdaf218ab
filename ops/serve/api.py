"""The HTTP API: everything that `verge state` answers, as JSON, with an OpenAPI document at /openapi.json."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ops.config import RunConfig
from ops.gate import gate_in_words
from ops.serve import answers, questions
from ops.serve.completions import Texts
from ops.serve.watch import Watch
from store.queries import json_ready
from store.where import MAX_LENGTH
from store.wire import MAX_TEXT

_LARGEST = 2**53
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": answers.Refusal, "description": "The question cannot be read, or contradicts itself."},
    401: {"model": answers.Refusal, "description": "A token is needed."},
    404: {"model": answers.Refusal, "description": "The run does not have it."},
    413: {"model": answers.Refusal, "description": "The request is too large."},
    421: {"model": answers.Refusal, "description": "The request names another host than this machine."},
    503: {"model": answers.Refusal, "description": "The store does not answer."},
}

Offset = Annotated[int, Query(ge=0, le=_LARGEST, description="Leave out so many.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
ProblemId = Annotated[str, Query(min_length=1, max_length=MAX_TEXT, description="The problem's id.")]
GroupId = Annotated[str, Query(min_length=1, max_length=MAX_TEXT, description="The group's id.")]
Where = Annotated[
    str, Query(max_length=MAX_LENGTH, description="A filter, as 'posterior_mean < 0.1 and attempts >= 16'.")
]
Sort = Annotated[str, Query(max_length=100, description="A column; with a minus, largest first: -gate.")]
WhatIfK = Annotated[float, Query(ge=1, le=10**6, description="The k of another gate.")]
WhatIfTau = Annotated[float, Query(ge=0, lt=1, description="The τ of another gate.")]
Version = Annotated[int, Query(ge=0, le=_LARGEST)]


def api(config: RunConfig, watch: Watch, texts: Texts) -> APIRouter:
    """The routes under /api. They take nothing but what is in the query, and change nothing."""
    router = APIRouter(prefix="/api", responses=_REFUSALS)

    @router.get("/summary")
    async def summary() -> answers.Summary:
        """The whole run: phase, weights, problems, groups, actors, training."""
        moment = await watch.now()
        return answers.Summary.model_validate({**moment.summary, "gate": gate_in_words(config)})

    @router.get("/problems", response_model_exclude_unset=True)
    async def problems(
        where: Where = "",
        sort: Sort = "-gate",
        offset: Offset = 0,
        limit: Limit = 20,
        what_if_k: WhatIfK | None = None,
        what_if_tau: WhatIfTau | None = None,
    ) -> answers.ProblemPage:
        """Problems by their facts and opinions; with `what_if_…`, also by those of another gate on the same facts."""
        what_if = watch.gate.what_if(what_if_k, what_if_tau)
        page = questions.problem_page(await watch.now(), where, sort, offset, limit, what_if)
        return answers.ProblemPage.model_validate(page)

    @router.get("/problem")
    async def problem(id: ProblemId, offset: Offset = 0, limit: Limit = 100) -> answers.ProblemHistory:
        """One problem: its prompt, its facts, the opinions now, and its groups, newest first."""
        found = await questions.history(watch, id)
        groups = found["groups"][::-1]
        page = {"total": len(groups), "offset": offset, "limit": limit, "groups": groups[offset : offset + limit]}
        return answers.ProblemHistory.model_validate({**found, **page})

    @router.get("/groups")
    async def groups(offset: Offset = 0, limit: Limit = 100) -> answers.GroupPage:
        """Every committed group of the run, oldest first: the log from which all counts follow."""
        await watch.now()
        entries = await watch.log.page(watch.store, offset, limit)
        groups = [entry._asdict() for entry in entries]
        page = {"total": len(watch.log), "offset": offset, "limit": limit, "groups": groups}
        return answers.GroupPage.model_validate(page)

    @router.get("/group")
    async def group(id: GroupId) -> answers.GroupText:
        """The completions of a group that has not left the pool, as text, with the version that wrote each token."""
        shown = await texts.show(watch, id)
        if shown is None:
            raise questions.NotThere(
                f"group {id[:200]!r} is not in the pool: the texts of those that left are not kept"
            )
        return answers.GroupText.model_validate(json_ready(asdict(shown)))

    @router.get("/changes")
    async def changes(after_version: Version = 0, to_version: Version | None = None) -> answers.Changes:
        """Problems newly solved and newly lost between two versions; by default, since the base model."""
        moment = await watch.now()
        return answers.Changes.model_validate(questions.changes(watch, moment, after_version, to_version))

    @router.get("/dynamics")
    async def dynamics(offset: Offset = 0, limit: Limit = 100) -> answers.Dynamics:
        """What the learner read from training, step by step."""
        history = (await watch.now()).history
        steps = history[offset : offset + limit]
        return answers.Dynamics.model_validate({"total": len(history), "steps": json_ready(steps)})

    @router.get("/weights")
    async def weights(offset: Offset = 0, limit: Limit = 100) -> answers.Snapshots:
        """The published versions of the weights."""
        found = await watch.store.manifests()
        page = [asdict(manifest) for manifest in found[offset : offset + limit]]
        return answers.Snapshots.model_validate({"total": len(found), "weights": page})

    return router
