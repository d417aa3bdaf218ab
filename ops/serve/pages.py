"""The pages for people: the front page, lists of problems, one problem's history, and their updates."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from ops.config import RunConfig
from ops.serve import figures, questions
from ops.serve.access import COOKIE, MAX_BODY, Guard
from ops.serve.api import GroupId, Offset, ProblemId, Sort, Version, Where
from ops.serve.completions import MAX_TOKENS, Texts
from ops.serve.sections import FrontPage
from ops.serve.templating import render
from ops.serve.watch import TICK_S, Watch
from store.errors import VergeError

MAX_STREAMS = 64
"""Pages that are kept up to date at once."""
_ALIVE_EVERY = 15
"""Ticks without news after which a stream says that it is still there."""
_PAGE = 50
_TYPES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}

Sections = Callable[[], Awaitable[dict[str, Markup]]]


def pages(config: RunConfig, watch: Watch, texts: Texts, guard: Guard) -> APIRouter:
    """The routes for a browser. `/events/…` streams the sections of the page of the same name as they change."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    front = FrontPage(config, watch)
    static = {name: (files("ops.serve") / "static" / name).read_bytes() for name in _TYPES}
    streams = 0

    async def front_sections(since: int) -> dict[str, Markup]:
        return front.sections(await watch.now(), since)

    async def list_sections(where: str, sort: str, offset: int) -> dict[str, Markup]:
        moment = await watch.now()
        try:
            page = questions.problem_page(moment, where, sort, offset, _PAGE)
        except VergeError as error:
            return {"list": render("list.html", trouble=str(error))}
        here = {"where": where, "sort": sort}
        return {
            "list": render(
                "list.html",
                trouble="",
                page=page,
                sort=sort,
                link=figures.problem_link,
                gate_class=figures.gate_class,
                to_sort=lambda column: "problems?" + urlencode({**here, "sort": column}),
                to_page=lambda start: "problems?" + urlencode({**here, "offset": start}),
            )
        }

    async def problem_sections(problem_id: str, group: str | None) -> dict[str, Markup]:
        found = await questions.history(watch, problem_id)
        groups = found["groups"][::-1]
        steps = await watch.store.last_steps([entry["id"] for entry in groups])
        kept = [entry["id"] for entry, step in zip(groups, steps, strict=True) if step is not None]
        chosen = group if group is not None else kept[0] if kept else None
        shown = await texts.show(watch, chosen) if chosen in kept and chosen is not None else None
        return {
            "problem": render(
                "problem.html",
                found=found,
                groups=list(zip(groups[:_PAGE], steps, strict=False)),
                more=len(groups) - _PAGE,
                chart=figures.history_chart(found["groups"]) if groups else None,
                gate=watch.gate,
                gate_class=figures.gate_class,
                shown=shown,
                asked=group,
                most_tokens=MAX_TOKENS,
                to_group=lambda name: "problem?" + urlencode({"id": problem_id, "group": name}),
                as_json="api/problem?" + urlencode({"id": problem_id}),
            )
        }

    def steady(make: Sections) -> Sections:
        """The same sections again for as long as nothing has happened to the groups of the run."""
        known: object = None
        found: dict[str, Markup] = {}

        async def again() -> dict[str, Markup]:
            nonlocal known, found
            moment = await watch.now()
            if (now := (moment.facts, moment.summary["groups"])) != known:
                known, found = now, await make()
            return found

        return again

    @router.get("/")
    async def home(since: Version = 0) -> HTMLResponse:
        sections = await front_sections(since)
        return _page("home.html", config, sections, f"events/home?since={since}", title=config.name)

    @router.get("/problems")
    async def problems(where: Where = "", sort: Sort = "-gate", offset: Offset = 0) -> HTMLResponse:
        sections = await list_sections(where, sort, offset)
        events = "events/problems?" + urlencode({"where": where, "sort": sort, "offset": offset})
        return _page("problems.html", config, sections, events, title="problems", where=where, sort=sort)

    @router.get("/problem")
    async def problem(id: ProblemId, group: GroupId | None = None) -> HTMLResponse:
        sections = await problem_sections(id, group)
        chosen = {} if group is None else {"group": group}
        return _page("one.html", config, sections, "events/problem?" + urlencode({"id": id, **chosen}), title=id)

    @router.get("/events/home")
    async def home_events(since: Version = 0) -> Response:
        return streamed(lambda: front_sections(since))

    @router.get("/events/problems")
    async def list_events(where: Where = "", sort: Sort = "-gate", offset: Offset = 0) -> Response:
        return streamed(steady(lambda: list_sections(where, sort, offset)))

    @router.get("/events/problem")
    async def problem_events(id: ProblemId, group: GroupId | None = None) -> Response:
        return streamed(steady(lambda: problem_sections(id, group)))

    def streamed(sections: Sections) -> Response:
        nonlocal streams
        if streams >= MAX_STREAMS:
            return JSONResponse({"detail": f"{MAX_STREAMS} pages are kept up to date already"}, 503)

        async def counted() -> AsyncIterator[str]:
            nonlocal streams
            streams += 1
            try:
                async for event in _events(sections):
                    yield event
            finally:
                streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream")

    @router.get("/static/{name}")
    async def asset(name: str) -> Response:
        if name not in static:
            return JSONResponse({"detail": "there is no such file"}, 404)
        return Response(static[name], media_type=_TYPES[name], headers={"Cache-Control": "no-cache"})

    @router.get("/login")
    async def ask_token() -> HTMLResponse:
        return HTMLResponse(render("login.html", wrong=False))

    @router.post("/login")
    async def take_token(request: Request) -> Response:
        try:
            body = (await request.body()).decode(errors="replace")
        except ClientDisconnect:  # the guard ended a body that is too long
            return JSONResponse({"detail": f"a request may have {MAX_BODY} bytes of content"}, 413)
        token = parse_qs(body).get("token", [""])[0].strip()
        if not guard.accepts(token):
            return HTMLResponse(render("login.html", wrong=True), 403)
        answer = RedirectResponse("./", 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
        return answer

    return router


def error_page(message: str) -> Markup:
    """What a person sees where a page cannot be made."""
    return render("error.html", message=message)


def _page(template: str, config: RunConfig, sections: dict[str, Markup], events: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(render(template, run=config.name, sections=sections, events=events, **values))


async def _events(sections: Sections) -> AsyncIterator[str]:
    """Sections that changed since this client's last event. A slow client skips what it was too late for."""
    sent: dict[str, Markup] = {}
    quiet = 0
    while True:
        try:
            found = await sections()
            changed = {name: html for name, html in found.items() if sent.get(name) != html}
            event = "sections"
        except VergeError as error:
            found, changed, event = {}, {"message": Markup.escape(str(error))}, "trouble"
        sent = found
        quiet = 0 if changed else quiet + 1
        if changed:
            yield f"event: {event}\ndata: {json.dumps(changed)}\n\n"
        elif quiet % _ALIVE_EVERY == 0:
            yield ": still here\n\n"
        await asyncio.sleep(TICK_S)
