"""The page's server, as an ASGI application: who may ask, and what is answered.

Any program of this machine reaches loopback, and so does any page that a browser here has open. So
each request has the token in its path, a name of loopback as its Host (else a foreign name could be
pointed here: DNS rebinding), and no Origin but this page's.

The token stays in the address. As a cookie it would go to every port of the same name (RFC 6265,
8.5), so to servers of other users, and those of two machines, each behind its `ssh -L`, would
overwrite each other. In the path it goes nowhere else (no-referrer, no links out), and a reload, a
bookmark and another browser work.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yoked.errors import YokedError
from yoked.report.page import Page
from yoked.watch.web.changes import sendable
from yoked.watch.web.looking import Looker

MOST_PAGES = 16
_MOST_POINTS = 2000
# `ssh -L` may bring any port here.
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_NO_PAGE = "default-src 'none'; frame-ancestors 'none'"
NOT_LOOPBACK = "This server answers on loopback alone: open it as http://127.0.0.1, by `ssh -L`."
NOT_OURS = "Another page asked, and only this server's own may."
NO_ADDRESS = (
    "This page is opened by its whole address, with the token in it. It stands in the terminal in "
    "which `yoked watch --web` was started."
)


def app_of(looker: Looker, page: Page, token: str) -> ASGIApp:
    """What answers browsers. page: the HTML; its figures come from the looker."""

    async def show(_: Request) -> HTMLResponse:
        policy = f"{page.policy}; frame-ancestors 'none'"
        return HTMLResponse(page.html, headers={"content-security-policy": policy})

    async def events(_: Request) -> StreamingResponse | PlainTextResponse:
        if looker.pages >= MOST_PAGES:
            return _refusal(503, f"{MOST_PAGES} pages are open, which is the most: close one.")
        return StreamingResponse(_stream(looker), media_type="text/event-stream")

    async def curve(request: Request) -> JSONResponse | PlainTextResponse:
        names = ("first", "last", "points")
        asked = [request.query_params.get(name, "") for name in names]
        if not all(re.fullmatch(r"\d{1,15}", each, re.ASCII) for each in asked):
            return _refusal(400, f"{', '.join(names)} are numbers")
        first, last, points = map(int, asked)
        return JSONResponse(await looker.curve(first, last, max(2, min(points, _MOST_POINTS))))

    async def runs(_: Request) -> JSONResponse:
        return JSONResponse(sendable(await looker.runs()))

    async def choose(request: Request) -> JSONResponse:
        await looker.choose(request.query_params.get("run", ""))
        return JSONResponse({})

    async def failed(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, YokedError)
        told = {"what": problem.what, "fix": list(problem.fix)}
        return JSONResponse(sendable(told), status_code=409)

    below = f"/{token}"
    app = Starlette(
        routes=[
            Route(f"{below}/", show),
            Route(f"{below}/events", events),
            Route(f"{below}/curve", curve),
            Route(f"{below}/runs", runs),
            Route(f"{below}/choose", choose, methods=["POST"]),
        ],
        exception_handlers={YokedError: failed},
        middleware=[Middleware(GZipMiddleware, minimum_size=1000)],
    )
    return _Guarded(app, token)


async def _stream(looker: Looker) -> AsyncIterator[str]:
    async with aclosing(looker.follow()) as messages:  # type: ignore[type-var]
        async for event, data in messages:
            # Without spaces; JSON has no line end in it, which would end the field.
            text = json.dumps(data, separators=(",", ":"), allow_nan=False)
            yield f"event: {event}\ndata: {text}\n\n"


def _refusal(status: int, sentence: str) -> PlainTextResponse:
    return PlainTextResponse(f"{sentence}\n", status_code=status)


class _Guarded:
    """Passes on what the owner's own page asks, and gives each answer its headers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Lifespan, of which there is none, or a web socket: nothing is said.
            return
        refusal = self._refusal(scope)
        app: ASGIApp = self._app if refusal is None else refusal
        await app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or not _LOOPBACK.fullmatch(hosts[0]):
            return _refusal(421, NOT_LOOPBACK)
        if any(each.lower() != f"http://{hosts[0]}".lower() for each in origins):
            return _refusal(403, NOT_OURS)
        told = scope["path"].removeprefix("/").partition("/")[0]
        if not secrets.compare_digest(told.encode(), self._token):
            return _refusal(403, NO_ADDRESS)
        return None


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[Any] = [*message["headers"], *_HEADERS]
            if not any(name == b"content-security-policy" for name, _ in headers):
                headers.append((b"content-security-policy", _NO_PAGE.encode()))
            message = {**message, "headers": headers}
        await send(message)

    return sent
