"""Call an agent: over the streams of a process that leads to it, from several threads.

The agent's host is not trusted: what it says is a message of ours, with a result of the call's
shape, or an error that names the host.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from yoked.agent.protocol import (
    CutOffError,
    Message,
    ProtocolError,
    read_message,
    write_message,
)
from yoked.core.faults import fault, told_fault
from yoked.errors import HostError, YokedError, error_kinds
from yoked.records.answers import PARTS, understood
from yoked.records.rules import OddError
from yoked.shape import anything, misfit
from yoked.text import plain

# What answers at once: a host that takes longer is as good as gone.
DEADLINE_S = 30.0
CLOSE_S = 5.0
# How often something is said: an sshd may close sessions that are silent (ChannelTimeout).
_BEAT_S = 10.0
# Parts that wait for a reader who is slower than the host: then the host has to wait.
_WAITING_PARTS = 64

# The errors that an agent may name: those that every yoked has.
_KINDS = {kind.__name__: kind for kind in error_kinds()}
# What an agent says of a failure.
_ERROR = {"kind": str, "what": str, "fix": [str], "trace": str, "code": str, "params": anything}


@dataclass(frozen=True)
class Part:
    """A piece of an answer: what it says, and the bytes that came with it."""

    content: Any
    data: bytes = b""


class _Counted:
    """What comes from an agent. bytes: so many so far."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.bytes = 0

    def readline(self, limit: int) -> bytes:
        """A line of at most so many bytes."""
        return self._count(self._source.readline(limit))

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        return self._count(self._source.read(size))

    def _count(self, content: bytes) -> bytes:
        self.bytes += len(content)
        return content


class _Pending:
    """What came for a call and has not been taken. The connection's reader gives it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Message, bytes]] = deque()
        self._over = False
        self._changed = threading.Condition()

    def put(self, found: tuple[Message, bytes]) -> None:
        """Give a message, once there is a place for it; what comes after the end is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._waiting) < _WAITING_PARTS)
            self._waiting.append(found)
            self._changed.notify_all()

    def take(self, timeout_s: float | None) -> tuple[Message, bytes] | None:
        """The next message; None: there will be none. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._over or self._waiting, timeout_s):
                raise TimeoutError
            found = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return found

    def end(self) -> None:
        """Nothing more will come, or be taken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class AgentClient:
    """An agent that can be called. host: its name in messages.

    explain: makes the error out of the end of the process that led to the agent. noise: what the
    host's shell printed before it. heard_s: when the agent last said anything, by the monotonic
    clock; ended_s: when the way to it ended, None while it stands. odd: places in its answers that
    were not understood, and left out.
    """

    def __init__(
        self,
        host: str,
        process: subprocess.Popen[bytes],
        explain: Callable[[], YokedError],
        *,
        noise: str = "",
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.host = host
        self.noise = noise
        self.heard_s = time.monotonic()
        self.ended_s: float | None = None
        self.odd: list[str] = []
        self._process = process
        self._sink: IO[bytes] = process.stdin
        self._source = _Counted(process.stdout)
        self._explain = explain
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._last = 0
        self._ended = False
        # What the agent said that is no message, where that was the end.
        self._broken = ""
        self._reader = threading.Thread(target=self._read, name=f"agent-{host}", daemon=True)
        self._reader.start()
        self._gone = threading.Event()
        threading.Thread(target=self._beat, name=f"beat-{host}", daemon=True).start()

    def call(
        self, name: str, *, data: bytes = b"", timeout_s: float = DEADLINE_S, **args: Any
    ) -> Any:
        """The result of a call. Raises what the agent raised, or HostError when it is silent or
        answers with what is no result of this call.
        """
        with self._ask(name, args, data) as pending:
            answer = self._next(name, pending, timeout_s)
            assert isinstance(answer, _Result), f"{name} is a call that streams"
            return answer.result

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Part]:
        """The parts of an answer as they come; leaving the loop early cancels the call.

        timeout_s: the longest silence between two parts; None: any.
        """
        with self._ask(name, args, data) as pending:
            while True:
                part = self._next(name, pending, timeout_s)
                if isinstance(part, _Result):
                    return
                yield part

    @property
    def received_bytes(self) -> int:
        """What the agent has sent so far."""
        return self._source.bytes

    def why_ended(self) -> YokedError:
        """Why the agent is no longer there."""
        if self._broken:
            return fault("odd-message", host=self.host, why=plain(self._broken))
        return self._explain()

    def close(self, patience_s: float = CLOSE_S) -> None:
        """End the agent; what it started goes on. Closing twice is harmless.

        patience_s: how long its end may take, until the way to it is cut.
        """
        self._gone.set()
        for pending in list(self._pending.values()):
            pending.end()
        # What is being sent may take minutes: it is cut off with the way.
        if not self._lock.acquire(timeout=patience_s):
            self._process.kill()
            self._lock.acquire()
        try:
            # It may have ended before, with something to flush.
            with contextlib.suppress(OSError):
                self._sink.close()
        finally:
            self._lock.release()
        try:
            self._process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=5)
        close_streams(self._process)

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @contextmanager
    def _ask(self, name: str, args: dict[str, Any], data: bytes) -> Iterator[_Pending]:
        with self._lock:
            self._last += 1
            number = self._last
            pending = self._pending[number] = _Pending()
            if self._ended:
                pending.end()
            else:
                self._write({"id": number, "call": name, "args": args}, data)
        try:
            yield pending
        finally:
            pending.end()
            with self._lock:
                # It is no longer there when it is over on the other side: nothing to cancel.
                if self._pending.pop(number, None) and not self._ended:
                    self._write({"cancel": number})

    def _write(self, message: Message, data: bytes = b"") -> None:
        try:
            write_message(self._sink, message, data)  # type: ignore[arg-type]
        except (OSError, ValueError):
            # The reader meets the end of the stream, and knows why.
            return

    def _next(self, name: str, pending: _Pending, timeout_s: float | None) -> Part | _Result:
        try:
            found = pending.take(timeout_s)
        except TimeoutError:
            raise fault("no-answer", host=self.host, name=name, timeout_s=timeout_s) from None
        if found is None:
            raise self.why_ended()
        message, data = found
        if "error" in message:
            raise remote_error(self.host, message["error"])
        try:
            if "result" in message:
                return _Result(understood(name, message["result"], self.odd))
            if name in PARTS:
                return Part(PARTS[name](message["part"], name, self.odd), data)
        except OddError as problem:
            self.odd.append(str(problem))
            raise self._unfit(name, f"{problem} is not what it must be") from None
        raise self._unfit(name, "it comes in parts")

    def _unfit(self, name: str, why: str) -> YokedError:
        return fault("odd-answer", host=self.host, name=name, why=plain(why))

    def _beat(self) -> None:
        """Cancel a call that there never is: every agent passes that over."""
        while not self._gone.wait(_BEAT_S):
            with self._lock:
                if self._ended:
                    return
                self._write({"cancel": 0})

    def _read(self) -> None:
        at_end = False
        try:
            while (found := read_message(self._source)) is not None:  # type: ignore[arg-type]
                self.heard_s = time.monotonic()
                self._hand_over(*found)
            at_end = True
        except (CutOffError, OSError, ValueError):
            # The connection was cut, maybe in the middle of a message.
            at_end = True
        except ProtocolError as problem:
            self._broken = str(problem)
        finally:
            if not at_end:
                # It must neither go on, nor keep somebody who sends to it.
                self._process.kill()
            with self._lock:
                self._ended, self.ended_s = True, time.monotonic()
                for pending in self._pending.values():
                    pending.end()

    def _hand_over(self, message: Message, data: bytes) -> None:
        """Give a message to the call that it is for. Raises ProtocolError where it can be for none.

        Nobody waits any more for what answers a call that was cancelled.
        """
        number = message.get("id")
        if number is None or not 0 < number <= self._last:
            raise ProtocolError(f"it answers no call: {message!r:.200}")
        if sum(kind in message for kind in ("part", "result", "error")) != 1:
            raise ProtocolError(f"neither part, result nor error: {message!r:.200}")
        if "error" in message and (why := misfit(message["error"], _ERROR)):
            raise ProtocolError(f"{why}: {message!r:.200}")
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.put((message, data))
        if "part" not in message:
            self._pending.pop(number, None)


@contextmanager
def host_wrote(host: str, what: str) -> Iterator[None]:
    """Turn what goes wrong with what a host's programs wrote into a HostError that names it.

    For files and output of a run, which are foreign text with a form that only their user knows.
    what: which, as the sentence begins with it.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        raise fault(
            "odd-content",
            host=host,
            what=what,
            problem=plain(str(problem) or repr(problem)),
        ) from problem


def close_streams(process: subprocess.Popen[bytes]) -> None:
    """Close this side of a process's pipes."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@dataclass(frozen=True)
class _Result:
    result: Any


class RemoteBug(Exception):  # noqa: N818 - a bug is what it is
    """The agent met what nobody foresaw. Its text ends with the agent's traceback."""

    @property
    def what(self) -> str:
        """On which host, and what, in a line."""
        return str(self).splitlines()[0]


def remote_error(host: str, error: Mapping[str, Any]) -> Exception:
    """The exception that an agent's answer stands for, with the host named."""
    what = plain(f"{host}: {error['what']}")
    if error["kind"] == "bug":
        return RemoteBug(f"on {what}\n{plain(error['trace'])}")
    if (known := told_fault(error["code"], error["params"])) is not None:
        # The sentences are ours; only the parameters are the host's.
        known.what = plain(f"{host}: {known.what}")
        known.fix = tuple(map(plain, known.fix))
        return known
    kind = _KINDS.get(error["kind"], HostError)
    return kind(what, fix=tuple(plain(line) for line in error["fix"]))
