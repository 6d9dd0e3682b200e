"""Tell a person who is not looking that a run ended, or why it stands: [notify] of yoked.toml.

Node 0's host program does it, so no controller need be there. A notice that cannot be sent is a
line of its log; the run neither waits for it nor ends by it. Standard library alone.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from dataclasses import dataclass

from yoked.agent.jobfolder import NOTIFY_NAME, JobFolder
from yoked.core.schema import decode
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.outcome import Failure, RunOutcome
from yoked.text import one_line

# For one notice. The last one may have to wait for the one before.
LIMIT_S = 5.0
_MOST_CHARACTERS = 400


@dataclass(frozen=True)
class Receiver:
    """Who is told. run: its name for people. url: gets a POST; command: gets the text."""

    run: str
    url: str | None = None
    command: tuple[str, ...] = ()


class Notifier:
    """Sends notices from a thread of its own, in their order; each verdict once."""

    def __init__(self, job: Job) -> None:
        self._receiver = _receiver(job)
        self._warning: str | None = None
        self._told: set[tuple[str | None, int, int | None]] = set()
        self._texts: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def held_up(self, failure: Failure | None) -> None:
        """A run that goes on is held up by this, and it is sure; None: it is not."""
        if failure is None or self._receiver is None:
            return
        if failure.key not in self._told:
            self._told.add(failure.key)
            self._tell("is hung", failure.headline)

    def warn(self, what: str | None) -> None:
        """A run that ends well is told with this; None: nothing is wrong with it."""
        self._warning = what

    def ended(self, outcome: RunOutcome) -> None:
        """The run is over. Of one that a person stopped nobody need be told."""
        if outcome.status in ("finished", "failed"):
            said = "is finished" if outcome.status == "finished" else "failed"
            self._tell(said, outcome.failure.headline if outcome.failure else self._warning)

    def close(self) -> None:
        """Give what is under way its time, and leave behind what takes longer."""
        if self._thread is not None:
            self._texts.put(None)
            self._thread.join(2 * LIMIT_S)

    def _tell(self, said: str, why: str | None) -> None:
        if self._receiver is None:
            return
        verdict = f"run {self._receiver.run} {said}"
        whole = verdict if why is None else f"{verdict}: {why}"
        self._texts.put((verdict, one_line(" ".join(whole.split()))[:_MOST_CHARACTERS]))
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        assert self._receiver is not None
        while (notice := self._texts.get()) is not None:
            try:
                _send(self._receiver, *notice)
            except Exception as problem:  # noqa: BLE001 - the run must not end by it
                # Of the URL nothing is said: its topic may be all that keeps others out.
                sys.stderr.write(f"no notice was sent: {_reason(problem)}\n")
                sys.stderr.flush()


def _receiver(job: Job) -> Receiver | None:
    """Who is told by this host; None: nobody."""
    content = JobFolder(job.folder).read(NOTIFY_NAME)
    try:
        receiver: Receiver | None = decode(Receiver, content) if content else None
    except ValueError as problem:
        sys.stderr.write(f"no notice will be sent: {NOTIFY_NAME}: {type(problem).__name__}\n")
        return None
    return receiver


def _send(receiver: Receiver, title: str, text: str) -> None:
    if receiver.url is not None:
        _post(receiver.url, title, text)
    else:
        # A command that fails says why on its own stderr, which is the launcher's log.
        subprocess.run(
            receiver.command,
            input=f"{text}\n",
            encoding="utf-8",
            stdout=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=True,
        )


def _post(url: str, title: str, text: str) -> None:
    """POST in the form of ntfy: the text, and its title as a header. Raises OSError."""
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):
        # It would go on as a GET, to an address to which nobody agreed.
        def redirect_request(self, *_: object) -> None:
            return None

    headers = {"Title": f"yoked: {title}", "Content-Type": "text/plain; charset=utf-8"}
    request = Request(url, text.encode(), headers, method="POST")  # noqa: S310 - http, https alone
    with build_opener(NoRedirect).open(request, timeout=LIMIT_S):
        pass


def _reason(problem: Exception) -> str:
    """Why it was not sent, without a word of the URL."""
    from urllib.error import HTTPError, URLError

    if isinstance(problem, HTTPError):
        return f"the answer is HTTP {problem.code}"
    if isinstance(problem, URLError) and isinstance(problem.reason, OSError):
        problem = problem.reason
    if isinstance(problem, (TimeoutError, subprocess.TimeoutExpired)):
        return f"no answer within {LIMIT_S:.0f} s"
    if isinstance(problem, subprocess.CalledProcessError):
        return f"the command ended with status {problem.returncode}"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return type(problem).__name__
