"""Who may look: everybody on this machine, and elsewhere whoever has the token."""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops.serve.secret import is_loopback

COOKIE = "verge_token"
MAX_BODY = 4096
"""Bytes; only the token is ever sent to the server."""
_OPEN = ("/login", "/static/page.css", "/static/page.js", "/static/icon.svg")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """The one door: host, size and token are checked before anything is read, and every answer gets its headers.

    Without a token (loopback) only requests that name this machine are answered, so that a web page elsewhere cannot
    read the run through a name that it points here. With one, it is compared in constant time; it comes in a cookie
    that `/login` sets, or as `Authorization: Bearer`.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, send_with_headers)
        return await self._app(scope, _limited(receive), send_with_headers)

    def accepts(self, token: str) -> bool:
        """Whether this is the token."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._token is None and not is_loopback(_name_in(headers.get("host", ""))):
            return _say(421, "this page is served to this machine only; ask for it as localhost")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > MAX_BODY:
            return _say(413, f"a request may have {MAX_BODY} bytes of content")
        if self._token is None or scope["path"] in _OPEN or self.accepts(_token_in(headers)):
            return None
        if "text/html" in headers.get("accept", ""):
            return RedirectResponse("/login", status_code=303)
        answer = _say(401, "a token is needed, as a header 'Authorization: Bearer …'")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _say(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)


def _name_in(host: str) -> str:
    """The name in a Host header, without the port; "" where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _token_in(headers: Headers) -> str:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _limited(receive: Receive) -> Receive:
    """A body without a length may be no longer either: what is beyond is dropped, and the request ends there."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MAX_BODY:
                return {"type": "http.disconnect"}
        return message

    return limited
