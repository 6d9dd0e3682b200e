"""Look on while a job runs, from wherever its hosts can be reached, and tell how it ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from shlex import quote
from typing import Any, Protocol

from yoked.agent.verdict import verdict_of
from yoked.core.torchnoise import without_noise
from yoked.errors import HostError, JobError, YokedError
from yoked.launch.bootstrap.outcome import EXIT_CODES
from yoked.launch.following import HostLog, Reconnect
from yoked.launch.launching import Launch, drawing, saying
from yoked.launch.registry import Record, ask_state, headline, joined, warning_lines
from yoked.liveline import LiveText
from yoked.paths import LIVE_NAME
from yoked.remote.client import AgentClient, Part, RemoteBug
from yoked.remote.connect import Connections
from yoked.remote.ssh import CONNECT_TIMEOUT_S

# Hosts end within seconds of each other, but for one whose cores are crowded.
END_WITHIN_S = 60.0
_POLL_S = 0.2
# One that is asked while the network is away must not keep us from noticing that it is back.
_STATUS_S = 2.0
# Of attempts that failed, the last so many.
_EARLIER_SHOWN = 3
# No terminal is wider.
_LIVE_BYTES = 10_000
# As 130 is for a command that a person interrupted: the job goes on, unseen.
DETACHED_CODE = 130


class View(Protocol):
    """Where the output of rank 0 and words about the run go.

    live: called, from another thread, again and again with the line that is to be seen now;
    without parts: none. None: no such line is drawn.
    """

    @property
    def live(self) -> Callable[[LiveText], None] | None:
        """What draws a line."""
        ...

    def note(self, line: str) -> None:
        """Something worth knowing."""
        ...

    def rank_output(self, stream: str, text: str) -> None:
        """What a rank wrote to `out` or `err`, at once."""
        ...


@dataclass(frozen=True)
class JobEnd:
    """How a job ended; or, detached, that nobody waited for it."""

    record: Record
    detached: bool = False

    @property
    def run(self) -> str:
        """The run's name, for people."""
        return self.record.name

    @property
    def state(self) -> str:
        """finished, failed, stopped, interrupted or lost; running where detached."""
        return "running" if self.detached else self.record.state

    @property
    def attempt(self) -> int:
        """The last attempt; the first is 0."""
        return self.record.attempt

    @property
    def exit_code(self) -> int:
        """The exit status of a command that followed the job."""
        if self.detached:
            return DETACHED_CODE
        codes: dict[str, int] = {str(state): code for state, code in EXIT_CODES.items()}
        return codes.get(self.state, 1)

    @property
    def verdict(self) -> str:
        """One line: what became of it."""
        if self.detached:
            return f"run {self.run} goes on"
        restarts = self.attempt
        again = f", after {restarts} restart{'s' * (restarts != 1)}" if restarts else ""
        became = _BECAME[self.state]
        if self.state == "finished" and self.record.warnings:
            became += ", and its ranks shared nothing"
        if self.state == "interrupted" and self.record.trains and self.record.progress:
            # A training saves at its end, and has nothing to save before its first step.
            became += " after it had saved" if self.record.failure is None else ", and failed"
        return f"run {self.run} {became}{again}"

    @property
    def evidence(self) -> list[str]:
        """The first cause and that rank's last lines, where it failed; why it was started again;
        and strangers' attempts.
        """
        if self.detached:
            return []
        failure = self.record.failure
        lines = [self.record.refused] if self.record.refused else []
        lines += [line for each in self.record.warnings for line in warning_lines(each)]
        if failure is not None:
            lines.append(headline(failure))
            if failure.get("at"):
                lines.append(f"at {failure['at']}")
            if failure.get("last_lines"):
                lines += ["its last lines:", *(f"  {line}" for line in failure["last_lines"])]
        return lines + self.restarts

    @property
    def restarts(self) -> list[str]:
        """Why it was started again, of the last times a line each."""
        lines = [
            f"attempt {attempt + 1} failed: {headline(cause)}"
            for attempt, cause in self.record.earlier.items()
        ]
        return lines[-_EARLIER_SHOWN:]

    def next_commands(self, fleet_flag: str) -> list[str]:
        """What to do now. fleet_flag: what a command line about the run's hosts ends with."""
        if self.detached:
            return [f"yoked attach {self.run}{fleet_flag}", f"yoked stop {self.run}{fleet_flag}"]
        failure, go_on = self.record.failure, self.record.go_on(fleet_flag)
        if failure is None:
            return go_on
        return [*(failure.get("fix") or ()), self._all_output(fleet_flag), *go_on]

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            **verdict_of(self.run, self.state, [] if self.detached else self.record.faults),
            "attempts": self.attempt + 1,
            "warnings": self.record.warnings,
            "refused": self.record.refused,
        }

    def raise_failure(self, *, fix: str, fleet_flag: str, of_a_stop: bool = False) -> None:
        """Raise JobError for a job that failed or was lost. fix: how to go on from there.

        of_a_stop: for one that was stopped and failed at that, too.
        """
        if self.state in ("failed", "lost") or (of_a_stop and self.record.failure):
            failure = self.record.failure or {}
            problem = JobError(
                "\n".join([self.verdict, *self.evidence]),
                fix=[*(failure.get("fix") or ()), self._all_output(fleet_flag), fix],
            )
            problem.verdict = self.record.verdict
            raise problem

    def _all_output(self, fleet_flag: str) -> str:
        return f"yoked logs {self.run} --tail 50{fleet_flag}"


_BECAME = {
    "prepared": "has not begun",
    "running": "is still running",
    "finished": "finished",
    "failed": "failed",
    "stopped": "was stopped",
    "interrupted": "was stopped",
    "lost": "ended, and nobody saw how",
}


def watch_line(run: str, fleet_flag: str) -> str:
    """Where more of a run is to be seen. fleet_flag: as below."""
    return f"`yoked watch {quote(run)}{fleet_flag}` elsewhere shows its ranks, links and curves"


@contextlib.contextmanager
def left_running(run: str, note: Callable[[str], None], fleet_flag: str) -> Iterator[None]:
    """Say of a run that it goes on, where Ctrl-C comes before there is an end of it to tell of.

    fleet_flag: what a command line about its hosts ends with.
    """
    try:
        yield
    except KeyboardInterrupt:
        named = f"{quote(run)}{fleet_flag}"
        note(f"run {run} goes on: `yoked attach {named}` shows it, `yoked stop {named}` ends it")
        raise


def shown(
    view: View, line: Callable[[], LiveText], quiet_line: Callable[[], LiveText] | None = None
) -> AbstractContextManager[None]:
    """Have a line seen meanwhile: drawn on a terminal, said now and then elsewhere.

    Both are called from another thread. quiet_line: what is said, if that is not the same.
    """
    if view.live is not None:
        return drawing(view.live, line)
    return saying(view.note, quiet_line or line)


class Viewer:
    """Shows a job, over connections of its own where those that it was given are cut.

    record: what is known of the run. connections: hosts that may come later than the clients.
    Raises JobError when no host has such a run.
    """

    def __init__(
        self,
        clients: Mapping[str, AgentClient],
        run: str,
        output: View,
        reconnect: Reconnect,
        record: Record | None,
        connections: Connections | None,
    ) -> None:
        self._given = dict(clients)
        self._own: dict[str, AgentClient] = {}
        self._gone: set[str] = set()
        self._cut: set[str] = set()
        self._run = run
        self._output = output
        self._reconnect = reconnect
        self._connections = connections
        self._attempt = 0
        self._launch_id = None if record is None else record.launch_id
        self.record = record or self._look()
        self._launch_id = self.record.launch_id
        self.launch = Launch(self._look, lambda: self._clients, output.note)

    def show_rank_0(self, tail_lines: int | None) -> None:
        """Show the output of rank 0 to its end, or until the run is known to be over."""
        host = self.record.host_of(0)
        if host is None:
            self._output.note("the host of rank 0 does not answer: its output cannot be shown")
            return
        wanted: dict[str, Any] = {"ranks": [0], "follow": True}
        if tail_lines is not None:
            wanted["tail_lines"] = tail_lines
        log = HostLog(
            self._clients[host],
            self._run,
            self._reconnect,
            wanted,
            on_cut=lambda _, problem: self._on_cut(host, problem),
            on_back=lambda _: self._on_back(host),
            give_up=lambda: self._others_are_done(host),
        )
        try:
            for part in log.parts():
                self._show(part)
        except HostError:
            self._output.note(f"the run is over on the other hosts; {host} still does not answer")
            self._gone.add(host)
        else:
            self._take(host, log.client)

    def live_line(self) -> LiveText:
        """What rank 0 would draw on a terminal now; what is waited for, before it has begun."""
        host = self.record.host_of(0)
        client = None if host is None else self._clients.get(host)
        if host is None or client is None or host in self._cut:
            return LiveText.of(f"waiting for {host}") if host is not None else LiveText()
        path = f"{self.record.hosts[host]['folder']}/errors/{self._attempt}/{LIVE_NAME}"
        content = b""
        # The connection may be cut; it comes back, or the output tells.
        with contextlib.suppress(YokedError, RemoteBug):
            for part in client.stream("file_read", timeout_s=_STATUS_S, path=path):
                content += part.data[: _LIVE_BYTES - len(content)]
        if (line := LiveText.decode(content)) is not None:
            return line
        return LiveText() if self.launch.over else self.launch.line

    def launch_line(self) -> LiveText:
        """The same before the first step, or the first line of a program without steps."""
        return LiveText() if self.launch.over else self.live_line()

    def await_end(self) -> Record:
        """The record when the run is over on all hosts that answer."""
        if self._connections is not None:
            self._connections.wait()
        until_s = time.monotonic() + END_WITHIN_S
        while True:
            self.record = self._look(again=True)
            if not self.record.active or time.monotonic() > until_s:
                return self.record
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the connections that were made here."""
        for client in self._own.values():
            client.close()

    @property
    def _clients(self) -> dict[str, AgentClient]:
        """The hosts that can be asked now, by the newest connection to each."""
        came = {} if self._connections is None else self._connections.clients
        clients = {**came, **self._given, **self._own}
        return {host: client for host, client in clients.items() if host not in self._gone}

    def _take(self, host: str, client: AgentClient) -> None:
        """Ask a host by this connection from now on."""
        if client is not self._clients.get(host):
            former = self._own.pop(host, None)
            self._own[host] = client
            if former is not None:
                former.close()

    def _look(self, *, again: bool = False) -> Record:
        """What the hosts tell. again: those that were cut off meanwhile get a new connection."""
        told, failures = self._ask()
        lost = [host for host, problem in failures.items() if isinstance(problem, HostError)]
        if again and lost:
            for host in lost:
                self._renew(host)
            told, failures = self._ask()
        return joined(self._run, told, failures)

    def _renew(self, host: str) -> None:
        with contextlib.suppress(HostError):
            self._take(host, self._reconnect(host, CONNECT_TIMEOUT_S))

    def _ask(self) -> tuple[dict[str, Mapping[str, Any]], dict[str, YokedError]]:
        return ask_state(self._clients, self._run, self._launch_id, timeout_s=_STATUS_S)

    def _show(self, part: Part) -> None:
        attempt = int(part.content["attempt"])
        if attempt > self._attempt:
            self._attempt = attempt
            # Hosts that are cut off tell the cause at the end.
            with contextlib.suppress(YokedError):
                self.record = self._look()
            cause, name = self.record.earlier.get(attempt - 1), self.record.name
            again = f"starts again: attempt {attempt + 1}"
            self._output.note(
                f"run {name} {again}"
                if cause is None
                else f"run {name} failed: {headline(cause).rstrip('.')}; it {again}"
            )
        text = part.data.decode(errors="replace")
        # Of a training a step is waited for.
        begun = not self.record.trains and bool(without_noise(text))
        self.launch.over = self.launch.over or begun
        self._output.rank_output(part.content["stream"], text)

    def _on_back(self, host: str) -> None:
        self._cut.discard(host)
        self._output.note(f"{host} is back")

    def _on_cut(self, host: str, problem: YokedError) -> None:
        self._cut.add(host)
        reason = problem.what.splitlines()[-1]
        self._output.note(f"{host} is out of reach, its part of the run goes on ({reason})")

    def _others_are_done(self, host: str) -> bool:
        """Whether some other host of the run says that it is over."""
        try:
            told, failures = self._ask()
        except RemoteBug:
            # Of one of them: the others may tell the next time.
            return False
        for name, problem in failures.items():
            if name != host and isinstance(problem, HostError):
                self._renew(name)
        return any(status["end"] for name, status in told.items() if name != host)
