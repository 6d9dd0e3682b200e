"""End a run: ask for a checkpoint, then terminate, then kill; and only what is the run's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from yoked.errors import YokedError
from yoked.launch.registry import Record, ask_all, join
from yoked.remote.client import AgentClient

# What a program may need to end in good order, and a host to free what it had.
TERMINATE_S = 10.0
KILL_S = 10.0
_POLL_S = 0.1
_SAID = {
    "checkpoint": "asked {run} to save and stop",
    "terminate": "told {run} to end",
    "kill": "killed {run}",
}


def stop_run(
    clients: Mapping[str, AgentClient],
    record: Record,
    *,
    wait_s: float,
    say: Callable[[str], None],
) -> tuple[Record, list[str]]:
    """Stop a run on all its hosts that answer; returns what became of it, and what was done.

    wait_s: how long it may take to save; 0 does not ask for that.
    """
    there = {host: clients[host] for host in record.hosts}
    steps = [("terminate", TERMINATE_S), ("kill", KILL_S)]
    if wait_s > 0:
        steps.insert(0, ("checkpoint", wait_s))
    done = []
    for how, patience_s in steps:
        _send(there, record.run, how)
        done.append(how)
        say(_SAID[how].format(run=record.name))
        record = _await_end(there, record, patience_s)
        if not record.active:
            break
    return record, done


def _send(clients: Mapping[str, AgentClient], run: str, how: str) -> None:
    # A host that is gone cannot be told, and its part is over or ends by itself.
    ask_all(clients, lambda client: client.call("job_stop", run=run, how=how))


def _await_end(clients: Mapping[str, AgentClient], record: Record, patience_s: float) -> Record:
    until_s = time.monotonic() + patience_s
    while True:
        told, failures = ask_all(clients, lambda client: client.call("job_status", run=record.run))
        found = join({host: [status] for host, status in told.items()})
        if not found:
            return _vanished(record, failures)
        if not found[0].active or time.monotonic() > until_s:
            return found[0]
        time.sleep(_POLL_S)


def _vanished(record: Record, failures: Mapping[str, YokedError]) -> Record:
    """What was only prepared is removed when it is stopped; raises for hosts that do not answer."""
    if record.state == "prepared":
        hosts = {host: {**told, "state": "stopped"} for host, told in record.hosts.items()}
        return Record(record.run, record.launch_id, hosts)
    raise next(iter(failures.values()))
