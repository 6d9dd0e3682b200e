"""Answer a controller's calls until its stream ends; each call has a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from yoked.agent.protocol import Message, read_message, write_message
from yoked.errors import YokedError


class Call:
    """One call being answered. args: as the controller sent them; data: the bytes with it.

    cancelled is set when the controller no longer waits, or is gone.
    """

    def __init__(self, number: int, args: Mapping[str, Any], data: bytes, server: Server) -> None:
        self.args = args
        self.data = data
        self.cancelled = threading.Event()
        self._number = number
        self._server = server

    def send(self, part: Any, data: bytes = b"") -> None:
        """Send one part of an answer that comes in parts."""
        self._server.write({"id": self._number, "part": part}, data)


# Returns what JSON can say; bytes are sent as parts.
Handler = Callable[[Call], Any]


class Server:
    """Reads calls from one stream and answers on another. handlers: by the name of the call."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, handlers: Mapping[str, Handler]) -> None:
        self._source = source
        self._sink = sink
        self._handlers = handlers
        self._lock = threading.Lock()
        self._open: dict[int, Call] = {}

    def write(self, message: Message, data: bytes = b"") -> None:
        """Write one message; a controller that left is no failure."""
        with self._lock:
            try:
                write_message(self._sink, message, data)
            except (OSError, ValueError):
                self._cancel_all()

    def serve(self) -> None:
        """Answer until the stream ends."""
        try:
            while True:
                found = read_message(self._source)
                if found is None:
                    return
                self._take(*found)
        finally:
            self._cancel_all()

    def _take(self, message: Message, data: bytes) -> None:
        if "cancel" in message:
            call = self._open.get(message["cancel"])
            if call is not None:
                call.cancelled.set()
            return
        number = message["id"]
        call = Call(number, message.get("args", {}), data, self)
        self._open[number] = call
        name = message["call"]
        threading.Thread(
            target=self._answer, args=(number, name, call), name=name, daemon=True
        ).start()

    def _answer(self, number: int, name: str, call: Call) -> None:
        try:
            self.write({"id": number, "result": self._handlers[name](call)})
        except YokedError as problem:
            self._fail(number, type(problem).__name__, problem.what, list(problem.fix))
        except Exception as problem:  # noqa: BLE001 - the controller shows it as a bug
            import traceback

            self._fail(number, "bug", repr(problem), [], traceback.format_exc())
        finally:
            self._open.pop(number, None)

    def _fail(self, number: int, kind: str, what: str, fix: list[str], trace: str = "") -> None:
        error = {"kind": kind, "what": what, "fix": fix, "trace": trace}
        self.write({"id": number, "error": error})

    def _cancel_all(self) -> None:
        for call in list(self._open.values()):
            call.cancelled.set()
