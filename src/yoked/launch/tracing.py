"""Have the ranks of a run record what they do for some steps, and bring what they recorded.

What comes from hosts is bytes here, and read by yoked.trace.recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yoked.core.parallel import map_hosts
from yoked.errors import YokedError
from yoked.launch.handle import RunHandle
from yoked.launch.mirror import pieces
from yoked.remote.client import AgentClient

_POLL_S = 0.5
# From the word until the slowest rank has heard it, and from the end of its steps to its file.
_AROUND_S = 10.0
# In which ranks of a run that hangs are heard of after that time, but for those that hang.
_HUNG_S = 2.0


@dataclass(frozen=True)
class Recorded:
    """What came. files: by rank, with its host. missing: the ranks of which nothing did."""

    files: Mapping[int, tuple[str, bytes]]
    missing: tuple[int, ...]
    problems: Mapping[str, YokedError] = field(default_factory=dict)


def record(
    handle: RunHandle,
    steps: int,
    limit_s: int,
    most_bytes: int,
    told: Callable[[int], None] = lambda _: None,
) -> Recorded | None:
    """Have the ranks record so many steps, for no longer than that, and bring it.

    told: called with how many ranks are done. None: the run does not go on. Ranks that do not
    answer are missing: their host is away, or C++ keeps them from Python.
    """
    run = handle.record
    begun, _ = map_hosts(
        lambda client: client.call(
            "job_trace", run=handle.run, launch_id=run.launch_id, steps=steps, limit_s=limit_s
        ),
        handle.clients,
    )
    if not any(begun.values()):
        return None
    until_s = time.monotonic() + limit_s + _AROUND_S
    while time.monotonic() < until_s:
        answers, _ = _ask(handle)
        done = sum(len(each["traces"]) for each in answers.values())
        told(done)
        if done >= run.ranks or not any(each["active"] for each in answers.values()):
            break
        if time.monotonic() > until_s - _AROUND_S + _HUNG_S and handle.look().hung:
            break
        time.sleep(_POLL_S)
    return bring(handle, most_bytes)


def bring(handle: RunHandle, most_bytes: int) -> Recorded:
    """What ranks recorded last. most_bytes: of one of them; a longer one is a problem."""
    answers, problems = _ask(handle)

    def fetch(client: AgentClient) -> dict[int, bytes]:
        traces = answers[client.host]["traces"] if client.host in answers else ()
        return {
            each["rank"]: b"".join(pieces(client, each["path"], 0, most_bytes))
            for each in traces
            # A host speaks for its own ranks.
            if handle.record.host_of(each["rank"]) == client.host
        }

    came, failures = map_hosts(fetch, handle.clients)
    files = {rank: (host, data) for host, each in came.items() for rank, data in each.items()}
    missing = tuple(rank for rank in range(handle.record.ranks) if rank not in files)
    return Recorded(files, missing, {**problems, **failures})


def _ask(handle: RunHandle) -> tuple[dict[str, Any], dict[str, YokedError]]:
    return map_hosts(lambda client: client.call("job_traced", run=handle.run), handle.clients)
