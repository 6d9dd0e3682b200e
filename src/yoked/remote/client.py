"""Call an agent: over the streams of a process that leads to it, from several threads."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from yoked import errors
from yoked.agent.protocol import Message, ProtocolError, read_message, write_message
from yoked.errors import HostError, YokedError
from yoked.records.answers import understood
from yoked.records.words import OddError

# What answers at once: a host that takes longer is as good as gone.
DEADLINE_S = 30.0
CLOSE_S = 5.0


@dataclass(frozen=True)
class Part:
    """A piece of an answer: what it says, and the bytes that came with it."""

    content: Any
    data: bytes = b""


@dataclass
class _Pending:
    queue: queue.Queue[tuple[Message, bytes] | None] = field(default_factory=queue.Queue)


class AgentClient:
    """An agent that can be called. host: its name in messages.

    explain: makes the error out of the end of the process that led to the agent. noise: what the
    host's shell printed before it. heard_s: when the agent last said anything, by the monotonic
    clock. odd: places in its answers that were not understood, and left out.
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
        self.odd: list[str] = []
        self._process = process
        self._sink: IO[bytes] = process.stdin
        self._source: IO[bytes] = process.stdout
        self._explain = explain
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._last = 0
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"agent-{host}", daemon=True)
        self._reader.start()

    def call(
        self, name: str, *, data: bytes = b"", timeout_s: float = DEADLINE_S, **args: Any
    ) -> Any:
        """The result of a call. Raises what the agent raised, or HostError when it is silent."""
        with self._ask(name, args, data) as (number, pending):
            while True:
                part = self._next(name, number, pending, timeout_s)
                if isinstance(part, _Result):
                    return self._understood(name, part.result)

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Part]:
        """The parts of an answer as they come; leaving the loop early cancels the call.

        timeout_s: the longest silence between two parts; None: any.
        """
        with self._ask(name, args, data) as (number, pending):
            while True:
                part = self._next(name, number, pending, timeout_s)
                if isinstance(part, _Result):
                    return
                yield Part(self._understood(name, part.content), part.data)

    def _understood(self, name: str, answer: Any) -> Any:
        try:
            return understood(name, answer, self.odd)
        except OddError as problem:
            self.odd.append(str(problem))
            raise HostError(
                f"{self.host}: what it answers to {name!r} is not understood ({problem})",
                fix=f"ssh {self.host}    find out who answers there",
            ) from None

    def close(self, patience_s: float = CLOSE_S) -> None:
        """End the agent; what it started goes on. Closing twice is harmless.

        patience_s: how long its end may take, until the way to it is cut.
        """
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
    def _ask(self, name: str, args: dict[str, Any], data: bytes) -> Iterator[tuple[int, _Pending]]:
        with self._lock:
            self._last += 1
            number = self._last
            pending = self._pending[number] = _Pending()
            if self._ended:
                pending.queue.put(None)
            else:
                self._write({"id": number, "call": name, "args": args}, data)
        try:
            yield number, pending
        finally:
            with self._lock:
                if self._pending.pop(number, None) and not self._ended:
                    self._write({"cancel": number})

    def _write(self, message: Message, data: bytes = b"") -> None:
        try:
            write_message(self._sink, message, data)  # type: ignore[arg-type]
        except (OSError, ValueError):
            # The reader meets the end of the stream, and knows why.
            return

    def _next(
        self, name: str, number: int, pending: _Pending, timeout_s: float | None
    ) -> Part | _Result:
        try:
            found = pending.queue.get(timeout=timeout_s)
        except queue.Empty:
            raise HostError(
                f"{self.host} gave no answer to {name!r} in {timeout_s:g} s",
                fix=f"ssh {self.host} uptime",
            ) from None
        if found is None:
            raise self._explain()
        message, data = found
        if "part" in message:
            return Part(message["part"], data)
        # It is over on the other side: nothing to cancel.
        self._pending.pop(number, None)
        if "error" in message:
            raise remote_error(self.host, message["error"])
        return _Result(message["result"])

    def _read(self) -> None:
        try:
            while (found := read_message(self._source)) is not None:  # type: ignore[arg-type]
                self.heard_s = time.monotonic()
                pending = self._pending.get(found[0]["id"])
                if pending is not None:
                    pending.queue.put(found)
        except (ProtocolError, OSError, ValueError):
            # The connection was cut in the middle of a message.
            pass
        with self._lock:
            self._ended = True
            for pending in self._pending.values():
                pending.queue.put(None)


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
    """The agent met what nobody foresaw."""


def remote_error(host: str, error: dict[str, Any]) -> Exception:
    """The exception that an agent's answer stands for, with the host named."""
    if error["kind"] == "bug":
        return RemoteBug(f"on {host}: {error['what']}\n{error['trace']}")
    kind = getattr(errors, error["kind"], YokedError)
    assert issubclass(kind, YokedError), error
    return kind(f"{host}: {error['what']}", fix=tuple(error["fix"]))
