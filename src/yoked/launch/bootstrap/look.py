"""How this host's part of a run is, as the kernel and the ranks' recorders have it.

Every look is cheap: it is taken twice a second beside the training. Standard library alone.
Source: tcp(7).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from yoked.agent.listeners import socket_inodes
from yoked.agent.tcp import Connection, connections
from yoked.core.proc import has_open, kernel_view, memory_bytes, thread_times
from yoked.core.schema import decode
from yoked.core.shared_json import read_shared_json
from yoked.diagnosis.vitals import (
    Ended,
    Learning,
    LinkVitals,
    RankVitals,
    Recorded,
    Vitals,
)
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.machine import MachineLooker
from yoked.ranks.freeing import plain_address

# What a program has open that computes on a GPU of NVIDIA's or AMD's, and how often that is looked
# up: a rank has hundreds of files open.
_GPUS, _GPU_LOOKS = ("/dev/nvidia", "/dev/kfd"), 10


class Looker:
    """Looks at this host's ranks."""

    def __init__(self, job: Job, attempt: int) -> None:
        self._attempt = attempt
        self._own = job.node_rank
        self._number = 0
        self._on_gpu: set[int] = set()
        self._machine = MachineLooker(job.launch_id)
        self._nodes = {node.address: number for number, node in enumerate(job.nodes)}
        self._families = {
            socket.AF_INET6 if ":" in address else socket.AF_INET for address in self._nodes
        }

    def look(
        self,
        ranks: Mapping[int, int],
        files: Mapping[int, Path],
        ended: Iterable[Ended],
        *,
        slow: bool = False,
    ) -> Vitals:
        """All of it now. ranks: their processes by rank; files: their recorders'; slow: a rank of
        this host's is slow, and the machine is looked at more often.
        """
        self._number += 1
        told = [
            vitals
            for rank, pid in ranks.items()
            if (vitals := self._rank(rank, pid, files.get(rank))) is not None
        ]
        ends = self._connections() if len(self._nodes) > 1 else []
        return Vitals(
            attempt=self._attempt,
            number=self._number,
            ranks=tuple(told),
            ended=tuple(ended),
            links=tuple(_links(ends, ranks.values())),
            control=tuple(_links(ends, [os.getpid()])),
            machine=self._machine.look(time.monotonic(), slow=slow),
        )

    def nothing(self) -> Vitals:
        """That this host is there, and no more."""
        self._number += 1
        return Vitals(attempt=self._attempt, number=self._number)

    def _rank(self, rank: int, pid: int, file: Path | None) -> RankVitals | None:
        """A rank's process; None: it is gone."""
        seen = kernel_view(pid)
        if seen is None:
            return None
        if pid not in self._on_gpu and self._number % _GPU_LOOKS == 1 and has_open(pid, *_GPUS):
            self._on_gpu.add(pid)
        times = thread_times(pid)
        return RankVitals(
            rank=rank,
            pid=pid,
            state=seen.state,
            cpu_s=seen.cpu_s,
            recorded=None if file is None else _recorded(file),
            waits_in=seen.waits_in,
            delayed_s=times.delayed_s if times else 0.0,
            main_cpu_s=times.main_cpu_s if times else None,
            main_delayed_s=times.main_delayed_s if times else 0.0,
            gpu=pid in self._on_gpu,
            memory_bytes=memory_bytes(pid),
        )

    def _connections(self) -> list[tuple[int, Connection]]:
        """The connections of this host to others of the run, whoever holds them, with the other."""
        found = []
        with contextlib.suppress(OSError):
            for family in self._families:
                for connection in connections(family):
                    node = self._nodes.get(plain_address(connection.remote[0]))
                    if node is not None and node != self._own:
                        found.append((node, connection))
        return found


def _links(ends: Iterable[tuple[int, Connection]], pids: Iterable[int]) -> list[LinkVitals]:
    """What these processes hold of the connections, by the other host."""
    own = set[int]().union(*(socket_inodes(pid) for pid in pids))
    found: dict[int, list[Connection]] = defaultdict(list)
    for node, connection in ends:
        if connection.inode in own:
            found[node].append(connection)
    return [link_vitals(node, each) for node, each in sorted(found.items())]


def link_vitals(node: int, ends: Sequence[Connection]) -> LinkVitals:
    """Connections to one other host, together."""
    return LinkVitals(
        node=node,
        connections=len(ends),
        unread_bytes=sum(end.unread_bytes for end in ends),
        unsent_bytes=sum(end.unsent_bytes for end in ends),
        # A window that is shut is a program that does not read, and no link that loses packets.
        backoff=max(0 if end.window_shut else end.backoff for end in ends),
        retransmitted=sum(end.retransmitted for end in ends),
        segments=sum(end.segments for end in ends),
        arrived=sum(end.arrived for end in ends),
        acked_age_s=min(end.acked_ms_ago for end in ends) / 1e3,
        heard_age_s=min(end.heard_ms_ago for end in ends) / 1e3,
        # Of the one that is used: that of an idle one is old.
        rtt_s=max(ends, key=lambda end: (end.unsent_bytes, end.rtt_s)).rtt_s,
        sent_bytes=sum(end.sent_bytes for end in ends),
        received_bytes=sum(end.received_bytes for end in ends),
    )


def learning_of(file: Path) -> Learning | None:
    """How a rank learned that may have ended, by its recorder's file."""
    last = _recorded(file)
    return None if last is None else last.learning


def _recorded(file: Path) -> Recorded | None:
    """What a rank recorded, with ages in place of times; None: nothing, or nothing that fits."""
    told = read_shared_json(file)
    if told is None:
        return None
    now_s = time.monotonic()

    def age_s(name: str, of: Mapping[str, Any] = told) -> float:
        return max(0.0, now_s - float(of[name]))

    awaits = told.get("awaits")
    try:
        ends = [(float(at_s), float(cpu_s)) for at_s, cpu_s in told["ends"]]
        recorded: Recorded = decode(
            Recorded,
            {
                "age_s": age_s("at_s"),
                "steps": told["steps"],
                "stepped_age_s": age_s("stepped_s"),
                "phase": told["phase"],
                "awaits": awaits and {**awaits, "age_s": age_s("since_s", awaits)},
                "frames": [
                    {"file": file, "line": line, "function": function}
                    for file, line, function in told["frames"]
                ],
                "frames_age_s": age_s("frames_s"),
                "groups": told["groups"],
                "traced": told["traced"],
                "step_s": _between(at_s for at_s, _ in ends),
                "step_cpu_s": _between(cpu_s for _, cpu_s in ends),
                "learning": told.get("learning"),
            },
        )
    except (KeyError, OverflowError, TypeError, ValueError):
        # The program has its own user's rights, and may write there what it likes.
        return None
    return recorded


def _between(moments: Iterable[float]) -> tuple[float, ...]:
    """Seconds from each to the next."""
    return tuple(round(max(0.0, after - before), 6) for before, after in pairwise(moments))
