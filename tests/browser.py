"""A real browser for tests: Chromium without a window, by the DevTools protocol over two pipes.

No driver and no port: the protocol is JSON, each message ended by a zero byte.
Source: https://chromedevtools.github.io/devtools-protocol/, `--remote-debugging-pipe`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWER_S, END_S = 60.0, 20.0
KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
}


def chromium() -> str | None:
    """The path of Chromium or Chrome on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser refused a command, or a script on the page raised."""


class Browser:
    """A Chromium of its own profile. Use `open_browser`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Give a command; returns its result, while events gather. Raises BrowserError."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while (answer := self._next(deadline)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._from], [], [], left_s)[0]:
                raise BrowserError(f"no answer in {ANSWER_S:.0f} s")
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise BrowserError("the browser has ended")
            self._buffer += piece
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def page(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> Page:
        """An empty page of that size."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, target, session, width, height, dark)


class Page:
    """A page. requests: addresses that it asked for; complaints: what its console said."""

    def __init__(
        self, browser: Browser, target: str, session: str, width: int, height: int, dark: bool
    ) -> None:
        self._browser, self._target, self._session = browser, target, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.prefer("dark" if dark else "light")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give this page a command of the protocol."""
        return self._browser.call(method, self._session, **params)

    def close(self) -> None:
        """Give back what it takes of memory."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def prefer(self, scheme: str) -> None:
        """light or dark, as a system has it."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, path: Path) -> None:
        """Load a file, and wait until it has drawn."""
        self.visit(path.absolute().as_uri())

    def visit(self, url: str) -> None:
        """Load an address, and wait until it has drawn."""
        self.call("Page.navigate", url=url)
        self.run("new Promise(done => document.readyState === 'complete' ? done() : onload = done)")
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        )

    def run(self, script: str) -> Any:
        """Evaluate an expression on the page, or its promise. Raises BrowserError."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def key(self, key: str) -> None:
        """Press and let go of a key, such as `+` or `Tab`."""
        code = KEYS.get(key, ord(key[0]))
        text = {} if key in KEYS else {"text": key}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at a point of the view, and let go at another."""
        self._mouse("mouseMoved", start, "none")
        self._mouse("mousePressed", start, "left")
        self._mouse("mouseMoved", end, "left")
        self._mouse("mouseReleased", end, "left")
        self.settle()

    def double_click(self, at: tuple[float, float]) -> None:
        """Twice, at a point of the view."""
        for clicks in (1, 2):
            self._mouse("mousePressed", at, "left", clicks)
            self._mouse("mouseReleased", at, "left", clicks)
        self.settle()

    def _mouse(self, kind: str, at: tuple[float, float], button: str, clicks: int = 1) -> None:
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=at[0],
            y=at[1],
            button=button,
            clickCount=clicks,
        )

    def picture(self, path: Path, *, is_whole: bool = True) -> None:
        """Write what is seen, or the whole page, as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, the page's own too."""
        return [
            event["params"]["request"]["url"] for event in self._seen("Network.requestWillBeSent")
        ]

    @property
    def complaints(self) -> list[str]:
        """Exceptions, and what the console and the browser said of this page."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for kind in kinds for event in self._seen(kind)]

    def _seen(self, method: str) -> list[dict[str, Any]]:
        return [
            event
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == method
        ]


@contextlib.contextmanager
def open_browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start a Chromium, and end it. profile: an empty folder for what it keeps."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    argv = [
        program,
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        # Tests may run as root or in a container, where its own sandbox does not start.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        # No name is looked up: what a page needs is on this machine.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        "--no-first-run",
        "--hide-scrollbars",
        "about:blank",
    ]
    # The protocol's pipes are descriptors 3 and 4. From beyond, neither overwrites the other.
    pipes = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (theirs_in, theirs_out)]
    silent = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in (0, 1, 2)]
    given = [(os.POSIX_SPAWN_DUP2, each, place) for place, each in enumerate(pipes, start=3)]
    process = os.posix_spawn(program, argv, os.environ, file_actions=[*silent, *given])
    for each in (theirs_in, theirs_out, *pipes):
        os.close(each)
    browser = Browser(ours_out, ours_in)
    try:
        yield browser
        browser.call("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        _end(process)


def _end(process: int) -> None:
    deadline = time.monotonic() + END_S
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
