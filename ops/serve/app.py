"""The server's routes behind one guard, and what it says when a question cannot be answered."""

from fastapi import FastAPI, Request
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp

from ops.config import RunConfig
from ops.serve.access import Guard
from ops.serve.api import api
from ops.serve.completions import Texts
from ops.serve.metrics import metrics
from ops.serve.pages import error_page, pages
from ops.serve.questions import NotThere
from ops.serve.watch import StoreAway, Watch
from store.errors import VergeError

DESCRIPTION = "What the store of a Verge run knows: facts, and the opinions formed on them. Read-only."


def application(config: RunConfig, watch: Watch, token: str | None) -> ASGIApp:
    """Page, API and metrics of one run. `token` None: only this machine may ask."""
    # The interactive documentation would load its scripts from elsewhere: it is left out.
    app = FastAPI(title="Verge", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None)
    texts = Texts(config)
    guard = Guard(app, token)
    app.include_router(api(config, watch, texts))
    app.include_router(pages(config, watch, texts, guard))
    app.include_router(metrics(watch, config))

    @app.exception_handler(VergeError)
    async def refuse(request: Request, error: VergeError) -> Response:
        status = 503 if isinstance(error, StoreAway) else 404 if isinstance(error, NotThere) else 400
        if not _for_a_person(request):
            return JSONResponse({"detail": str(error)}, status)
        return HTMLResponse(error_page(str(error)), status)

    @app.exception_handler(RequestValidationError)
    async def refuse_query(request: Request, error: RequestValidationError) -> Response:
        if not _for_a_person(request):
            return await request_validation_exception_handler(request, error)
        fault = error.errors()[0]
        return HTMLResponse(error_page(f"{fault['loc'][-1]}: {fault['msg']}"), 422)

    return guard


def _for_a_person(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api")
