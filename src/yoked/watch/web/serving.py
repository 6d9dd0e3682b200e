"""Serve the page on loopback, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from yoked.errors import YokedError
from yoked.report.page import Page, page_with
from yoked.watch.view import Watched
from yoked.watch.web.app import app_of
from yoked.watch.web.looking import Looker
from yoked.watch.web.secret import kept_token

# The first that is free: after a new start the address is mostly the same.
PORTS = range(8765, 8775)
_ADDRESS = "127.0.0.1"
# A page has one stream, and now and then a question beside it.
MOST_CONNECTIONS = 64
_FOLDER = Path(__file__).with_name("page")
_STYLES = ("watch.css",)
_SCRIPTS = ("state.js", "timeline.js", "now.js", "live.js")


def serve(watched: Watched, *, chosen: bool, port: int | None, note: Callable[[str], None]) -> None:
    """Serve the page of what is watched until Ctrl-C.

    chosen: False: begin with the list of runs. port: of 127.0.0.1; None: the first of PORTS that is
    free, else any. note: says one line.
    Raises YokedError where the port that was asked for is taken.
    """
    token = kept_token()
    with contextlib.closing(listening(port, note)) as listener:
        number = listener.getsockname()[1]
        address = f"http://{_ADDRESS}:{number}/{token}/"
        note(f"the page is at {address}")
        tunnel = f"ssh -L {number}:{_ADDRESS}:{number} {socket.gethostname()}"
        note(f"from another machine: {tunnel}    then the same address there; Ctrl-C ends it")
        # Ctrl-C is how one leaves.
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(Server(watched, token, chosen=chosen).until_ended(listener))


def listening(port: int | None, note: Callable[[str], None]) -> socket.socket:
    """A socket that listens on loopback. Raises YokedError, as `serve` does."""
    for number in (port,) if port is not None else (*PORTS, 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A port whose last connections have just ended is free; one that is listened at is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_ADDRESS, number))
            listener.listen()
        except OSError as problem:
            listener.close()
            if port is not None:
                raise YokedError(
                    f"port {port} of {_ADDRESS} cannot be listened at: {problem.strerror}",
                    fix="yoked watch --web    takes one that is free",
                ) from problem
            if problem.errno != errno.EADDRINUSE:
                raise
            if number == PORTS[0]:
                note(f"port {number} is taken, maybe by another yoked watch: another one is used")
            continue
        return listener
    raise AssertionError("the system gives a free port")


class Server(uvicorn.Server):
    """Serves the page of what is watched. token: which the address of a page has in it. chosen: as
    `Looker` says.
    """

    def __init__(self, watched: Watched, token: str, *, chosen: bool = True) -> None:
        self.looker = Looker(watched, chosen=chosen)
        config = uvicorn.Config(
            app_of(self.looker, _page(), token),
            http="h11",
            ws="none",
            lifespan="off",
            # No log: an address has the token in it.
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    async def until_ended(self, listener: socket.socket) -> None:
        """Serve until a signal, or `should_exit`, ends it. Raises what a look raises beside
        YokedError.
        """
        looks = asyncio.create_task(self.looker.run())
        serves = asyncio.create_task(self.serve(sockets=[listener]))
        await asyncio.wait((looks, serves), return_when=asyncio.FIRST_COMPLETED)
        self.should_exit = True
        try:
            await serves
        finally:
            if looks.done():
                looks.result()
            looks.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn calls it: streams of pages would keep it for ever, so they end first."""
        self.looker.end()
        await super().shutdown(sockets)


def _page() -> Page:
    def texts(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple((_FOLDER / name).read_text(encoding="utf-8") for name in names)

    return page_with(
        title="yoked watch",
        said="A run, while it goes on.",
        figures=None,
        styles=texts(_STYLES),
        scripts=texts(_SCRIPTS),
        policy=("connect-src 'self'",),
    )
