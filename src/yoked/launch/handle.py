"""A run on hosts that are connected: the one way in which a command touches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from yoked.core.parallel import map_hosts
from yoked.diagnosis.stacks import RankStacks, read_stacks
from yoked.errors import HostError, JobError, UsageError, YokedError
from yoked.launch.attach import JobEnd, View, Viewer, shown
from yoked.launch.following import Reconnect
from yoked.launch.logs import parts_of
from yoked.launch.mirror import find_checkpoint, manifest_step
from yoked.launch.registry import Record, ask_state, joined
from yoked.launch.start import Started
from yoked.remote.client import DEADLINE_S, AgentClient, Part
from yoked.remote.connect import Connections
from yoked.remote.ssh import CONNECT_TIMEOUT_S

# What a program may need to end in good order, and a host to free what it had.
TERMINATE_S = 10.0
KILL_S = 10.0
# A copied program with its environment may be 100,000 files, on a memory card.
REMOVE_S = 600.0
_POLL_S = 0.1
# To list a folder of checkpoints takes some 10 ms of the host that trains.
_SAVED_POLL_S = 0.5
_SAID = {
    "checkpoint": "asked {run} to save and stop",
    "terminate": "told {run} to end",
    "kill": "killed {run}",
}


class RunHandle:
    """A job by its name, and the agents of its hosts.

    reconnect: makes another connection to one of them. record: what is known of it.
    connections: hosts that may come later.
    """

    def __init__(
        self,
        run: str,
        clients: Mapping[str, AgentClient],
        reconnect: Reconnect,
        *,
        record: Record | None = None,
        connections: Connections | None = None,
        launch_id: str | None = None,
    ) -> None:
        self.run = run
        self.clients = dict(clients)
        self._reconnect = reconnect
        self._record = record
        self._arrivals = connections
        self._launch_id = record.launch_id if record is not None else launch_id
        # Hosts that gave no answer, and are not waited for as long again.
        self._silent: set[str] = set()

    @classmethod
    def of(cls, started: Started, reconnect: Reconnect) -> RunHandle:
        """The handle of a job that was just started."""
        clients = {node.host.name: node.client for node in started.nodes}
        return cls(started.run, clients, reconnect, launch_id=started.launch_id)

    @property
    def record(self) -> Record:
        """What the hosts told last; they are asked where nothing is known."""
        return self._record or self.look()

    def look(self, patience_s: float = DEADLINE_S) -> Record:
        """Ask all hosts. Raises YokedError where none has the run.

        patience_s: how long a host may take; one that took longer before has a second.
        """
        told, failures = ask_state(
            self.clients, self.run, self._launch_id, timeout_s=patience_s, hasty=self._silent
        )
        self._silent = _without_answer(failures)
        known = self._record
        try:
            self._record = joined(self.run, told, failures)
        except YokedError:
            if known is None or known.state != "prepared":
                raise
            # A run that never began is removed when it is stopped.
            hosts = {name: {**each, "state": "stopped"} for name, each in known.hosts.items()}
            self._record = Record(self.run, known.launch_id, hosts)
        self._launch_id = self._record.launch_id
        return self._record

    def look_again(self) -> Record:
        """The same after its output was followed: a connection that was cut meanwhile is made anew.

        Raises YokedError where no host can be reached, or none has the run.
        """
        clients, failures = dict[str, AgentClient](), dict[str, YokedError]()
        with ExitStack() as stack:
            for host in self.clients:
                try:
                    clients[host] = stack.enter_context(self.reach(host))
                except HostError as problem:
                    failures[host] = problem
            told, silent = ask_state(clients, self.run, self._launch_id)
        return joined(self.run, told, {**failures, **silent})

    def follow(self, view: View, *, tail_lines: int | None = None) -> JobEnd:
        """Show rank 0's output as it comes, until the run is over on all hosts.

        tail_lines: only so many lines of what there was before. Ctrl-C leaves the job running, also
        where it comes before the hosts have told their state (`left_running`). Raises JobError when
        no host has such a run.
        """
        known = self._record
        viewer = Viewer(self.clients, self.run, view, self._reconnect, known, self._arrivals)
        try:
            with viewer.launch.looking():
                with shown(view, viewer.live_line, viewer.launch_line):
                    viewer.show_rank_0(tail_lines)
                return JobEnd(viewer.await_end())
        except KeyboardInterrupt:
            return JobEnd(viewer.record, detached=True)
        finally:
            viewer.close()

    @contextmanager
    def reach(self, host: str) -> Iterator[AgentClient]:
        """A connection to a host that works now: the one there is, or a new one for the while.

        The one there is may have been cut while the run was followed, and a host that came later
        has none here. Raises HostError where the host cannot be reached.
        """
        client = self.clients.get(host)
        try:
            if client is not None:
                client.call("job_status", run=self.run, timeout_s=CONNECT_TIMEOUT_S)
        except HostError:
            client = None
        except YokedError:
            # It answers; of a run that it does not know, whoever asks for its files hears.
            pass
        if client is not None:
            yield client
            return
        with self._reconnect(host, CONNECT_TIMEOUT_S) as other:
            yield other

    def stacks(self) -> tuple[dict[str, list[RankStacks]], dict[str, YokedError]]:
        """Where the ranks of each host are now, and the hosts that gave no answer."""
        told, failures = map_hosts(
            lambda client: client.call("job_stacks", run=self.run), self.clients
        )
        return {host: list(read_stacks(each)) for host, each in told.items()}, failures

    def logs(
        self, hosts: Sequence[str], wanted: Mapping[str, Any], note: Callable[[str], None]
    ) -> Iterator[tuple[str, Part]]:
        """What the ranks of some hosts wrote. wanted: as `job_logs` takes it."""
        clients = {host: self.clients[host] for host in hosts}
        return parts_of(clients, self.run, self._reconnect, wanted, note)

    def stop(self, *, save_s: float, say: Callable[[str], None]) -> list[str]:
        """Ask for a checkpoint, then terminate, then kill; what was done, in that order.

        save_s: how long it may take to save; 0 does not ask for that.
        """
        steps = [("terminate", TERMINATE_S), ("kill", KILL_S)]
        if save_s > 0:
            steps.insert(0, ("checkpoint", save_s))
        done = []
        name = self.look(CONNECT_TIMEOUT_S).name
        for how, patience_s in steps:
            # A host that is gone cannot be told, and its part is over or ends by itself.
            self._send_stop(how)
            done.append(how)
            say(_SAID[how].format(run=name))
            until_s = time.monotonic() + patience_s
            while self.look(CONNECT_TIMEOUT_S).active and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            if not self.record.active:
                break
        return done

    def save(self, limit_s: float) -> int | None:
        """Ask a training for a checkpoint, and wait for it; after how many steps it was saved.

        None: it did not come in time. Raises UsageError for a run that saves none, JobError for
        one that is over.
        """
        record = self.look(CONNECT_TIMEOUT_S)
        if record.trains is None:
            raise UsageError(
                f"{record.name} is a program of `yoked run`: it saves by itself, or not at all",
                fix="look for a flag or a signal of the program's own",
            )
        host = record.host_of(0)
        if host is None:
            raise HostError(
                f"the host of rank 0 of {record.name}, which saves, does not answer",
                fix="yoked doctor",
            )
        client, until_s = self.clients[host], time.monotonic() + limit_s
        folder = record.training_folder(host)
        before = find_checkpoint(client, folder)
        if not client.call("job_save", run=self.run, launch_id=record.launch_id):
            record = self.look(CONNECT_TIMEOUT_S)
            raise JobError(
                f"run {record.name} is {record.state}: nothing of it trains",
                fix="yoked runs    shows what runs",
            )
        while time.monotonic() < until_s:
            new = dict(find_checkpoint(client, folder).items() - before.items())
            if (step := manifest_step(new)) is not None:
                return step
            if not self.look(CONNECT_TIMEOUT_S).active:
                return None
            time.sleep(_SAVED_POLL_S)
        return None

    def _send_stop(self, how: str) -> None:
        _, failures = map_hosts(
            lambda client: client.call(
                "job_stop", run=self.run, how=how, launch_id=self._launch_id
            ),
            self._answering,
        )
        self._silent |= _without_answer(failures)

    @property
    def _answering(self) -> dict[str, AgentClient]:
        return {host: each for host, each in self.clients.items() if host not in self._silent}

    def remove(self, *, kill: bool = False) -> None:
        """Remove it from its hosts; one that does not answer is for `yoked clean`.

        kill: its processes first, without a checkpoint.
        """
        if kill:
            self._send_stop("kill")
        map_hosts(
            lambda client: client.call(
                "job_remove", run=self.run, launch_id=self._launch_id, timeout_s=REMOVE_S
            ),
            self._answering,
        )


def _without_answer(failures: Mapping[str, YokedError]) -> set[str]:
    return {host for host, problem in failures.items() if problem.code == "no-answer"}
