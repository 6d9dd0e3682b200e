"""Answer a controller's calls until its stream ends; each call has a thread of its own."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from yoked.agent.protocol import Message, ProtocolError, read_message, write_message
from yoked.core.faults import fault
from yoked.core.fs import expected_failure
from yoked.errors import YokedError
from yoked.shape import is_int

# What Python says where the system gives it no thread.
_NO_THREAD = "can't start new thread"
_A_LIMIT = "a limit of the user's processes, as `ulimit -a` shows it"
_A_FILTER = (
    "its kernel answers clone3 with {}, and no other system call for threads is tried then. A "
    "filter of system calls (seccomp) does that, as of a container runtime that is older than the "
    "system in the container"
)
# Its number on all processors but Alpha. Source: clone(2), linux/sched.h.
_CLONE3 = 435


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
        """Answer until the stream ends. Raises ProtocolError for what is no call."""
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
            wanted = message["cancel"]
            call = self._open.get(wanted) if is_int(wanted) else None
            if call is not None:
                call.cancelled.set()
            return
        number, name, args = message.get("id"), message.get("call"), message.get("args", {})
        if number is None or not isinstance(name, str) or not isinstance(args, dict):
            raise ProtocolError(f"not a call: {message!r:.200}")
        if number in self._open:
            raise ProtocolError(f"call {number} is being answered already")
        call = Call(number, args, data, self)
        self._open[number] = call
        answer = threading.Thread(
            target=self._answer, args=(number, name, call), name=name, daemon=True
        )
        try:
            answer.start()
        except RuntimeError as problem:
            self._open.pop(number, None)
            self._fail(number, _no_thread(problem))

    def _answer(self, number: int, name: str, call: Call) -> None:
        try:
            self.write({"id": number, "result": self._handlers[name](call)})
        except Exception as problem:  # noqa: BLE001 - the controller shows it as a bug
            self._fail(number, problem)
        finally:
            self._open.pop(number, None)

    def _fail(self, number: int, problem: Exception) -> None:
        """Tell of a failure, or of a bug. Call it where the problem is being handled."""
        known = _expected(problem)
        error: dict[str, Any] = {"fix": [], "trace": "", "code": "", "params": {}}
        if known is None:
            import traceback

            error.update(kind="bug", what=repr(problem), trace=traceback.format_exc())
        else:
            error.update(kind=type(known).__name__, what=known.what, fix=list(known.fix))
            error.update(code=known.code, params=known.params)
        self.write({"id": number, "error": error})

    def _cancel_all(self) -> None:
        for call in list(self._open.values()):
            call.cancelled.set()


def _expected(problem: Exception) -> YokedError | None:
    """The failure that a problem is; None: it is a bug."""
    if isinstance(problem, YokedError):
        return problem
    if isinstance(problem, MemoryError):
        return fault("host-exhausted", problem=repr(problem), why=_A_LIMIT)
    if str(problem) == _NO_THREAD:
        return _no_thread(problem)
    # A call's module is imported when it is asked for.
    if isinstance(problem, (ImportError, FileNotFoundError)) and not Path(__file__).exists():
        return fault("cache-emptied", source=Path(__file__).parent)
    return expected_failure(problem) if isinstance(problem, OSError) else None


def _no_thread(problem: Exception) -> YokedError:
    """Why the system gives no thread: a limit, or a filter that knows no clone3.

    A C library takes ENOSYS alone for a kernel that is older: pthread_create of glibc 2.34.
    """
    # A Python that was built without libffi has no ctypes.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform.startswith("linux") and libc.syscall(_CLONE3, None, 0) == -1:
            symbol = errno.errorcode.get(ctypes.get_errno(), "")
            # Without a word of what to start, a kernel starts nothing: EINVAL.
            if symbol not in ("EINVAL", "ENOSYS"):
                why = _A_FILTER.format(symbol)
                return fault("host-exhausted", problem=repr(problem), why=why)
    return fault("host-exhausted", problem=repr(problem), why=_A_LIMIT)
