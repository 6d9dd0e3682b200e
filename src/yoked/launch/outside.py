"""Look at a program of torch.distributed that yoked did not start, on this machine alone.

Nothing of it is changed, and it need not know yoked: all is as the kernel tells it.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from yoked.agent.ask import user_name
from yoked.agent.listeners import socket_inodes
from yoked.agent.tcp import Connection, connections
from yoked.core.proc import ProcessId, all_processes, has_proc, kernel_view
from yoked.diagnosis.history import Place, RunHistory
from yoked.diagnosis.outside import Outside, Peer, Process
from yoked.diagnosis.rules import unacknowledged
from yoked.diagnosis.vitals import RankVitals, Vitals
from yoked.errors import UsageError
from yoked.launch.bootstrap.look import link_vitals
from yoked.ranks.freeing import plain_address
from yoked.text import one_line

# A disk is told to stand after two seconds (diagnosis/rules.py).
_LOOKS, _PERIOD_S = 10, 0.25
_LONGEST_COMMAND = 200
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
# Processes of Python's and torch's own, which wait for nobody but their parent.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker")


@dataclass(frozen=True)
class _Member:
    """A process of the program. launches: it started the ranks, and is none."""

    process: ProcessId
    rank: int | None
    world_size: int | None
    meets_at: str
    worker: bool
    launches: bool = False


def look_outside(pid: int) -> Outside:
    """A process, and those that are of its program. Takes some two seconds.

    Raises UsageError where there is no such process, or it is not ours to look into, or no Python.
    """
    members = _members(_python_process(pid))
    history = RunHistory([Place(socket.gethostname(), tuple(range(len(members))))], 0)
    looks: list[_Look] = []
    for number in range(_LOOKS):
        if number:
            time.sleep(_PERIOD_S)
        # What connections carry is known by the first look and the last.
        looks.append(_Look(members, with_ends=number in (0, _LOOKS - 1)))
        ranks = tuple(looks[-1].vitals.values())
        history.take(0, Vitals(attempt=0, number=number + 1, ranks=ranks), looks[-1].at_s)
    if not looks[-1].vitals:
        raise _gone(pid)
    return Outside(
        host=socket.gethostname(),
        processes=tuple(
            _process(member, place, looks[0], looks[-1]) for place, member in enumerate(members)
        ),
        history=history,
        own_network=not ProcessId(pid, 0).shares("net"),
        run=members[0].process.environment().get("YOKED_RUN"),
    )


# ---- which processes


def _python_process(pid: int) -> ProcessId:
    """The process that is meant. Raises UsageError."""
    if not has_proc():
        raise UsageError(
            "--pid: this system has no /proc, and does not tell what a process waits for",
            fix=f"py-spy dump --pid {pid}    shows its Python stack",
        )
    try:
        process = ProcessId.of(pid)
    except (ProcessLookupError, ValueError):
        raise _gone(pid) from None
    uid = process.uid
    if uid is not None and os.geteuid() not in (0, uid):
        raise UsageError(
            f"--pid {pid}: it is a process of {user_name(uid)}, and not yours to look into",
            fix=f'sudo "$(command -v yoked)" diagnose --pid {pid}',
        )
    if not _is_python(pid):
        inside = [each for each in _descendants(process) if _is_python(each.pid)]
        # Ranks before what else runs in a terminal.
        inside.sort(key=lambda each: _mark(each.environment()) is None)
        command = one_line(process.command()[:_LONGEST_COMMAND]) or "a process of the kernel"
        raise UsageError(
            f"--pid {pid}: it is no Python: {command}",
            fix=[
                f"yoked diagnose --pid {each.pid}    a Python that it started"
                for each in inside[:3]
            ]
            or "pgrep -af python    lists those that are",
        )
    return process


def _gone(pid: int) -> UsageError:
    return UsageError(
        f"--pid {pid}: there is no such process", fix="pgrep -af python    lists those of Python"
    )


def _is_python(pid: int) -> bool:
    try:
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")  # noqa: PTH115 - a label
    except OSError:
        return False
    if _PYTHON.fullmatch(Path(program).name):
        return True
    try:
        # A program with Python built in.
        return "/libpython" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


def _descendants(process: ProcessId) -> Iterator[ProcessId]:
    children: dict[int, list[ProcessId]] = defaultdict(list)
    for each in all_processes():
        if (parent := each.parent) is not None:
            children[parent].append(each)
    found = children[process.pid]
    while found:
        yield from found
        found = [child for each in found for child in children[each.pid]]


def _members(process: ProcessId) -> list[_Member]:
    """The processes of the same program on this machine, ranks first.

    They are those that meet at the same place, also where each was started by hand; where no
    variables say that, what the process started.
    """
    own = [process, *(each for each in _descendants(process) if _is_python(each.pid))]
    marks = [mark for each in own if (mark := _mark(each.environment()))]
    if not marks:
        alone = [each for each in own if not any(word in each.command() for word in _HELPERS)]
        return [_Member(each, None, None, "", worker=False) for each in alone]
    uid = process.uid
    same = {
        each.pid: (each, environment)
        for each in all_processes()
        if each.uid == uid
        and _mark(environment := each.environment()) == marks[0]
        and _is_python(each.pid)
    }
    found = []
    for each, environment in same.values():
        above = same.get(each.parent or 0)
        found.append(
            _Member(
                each,
                _number(environment, "RANK"),
                _number(environment, "WORLD_SIZE"),
                ":".join(marks[0][:2]),
                # What a rank starts has its variables too.
                worker=above is not None and above[1]["RANK"] == environment["RANK"],
            )
        )
    if process.pid not in same:
        found.append(_Member(process, None, None, "", worker=True, launches=True))
    return sorted(found, key=lambda one: (one.worker, one.rank or 0, one.process.pid))


def _mark(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """What ranks of one program have in common; None: it is no rank."""
    if "RANK" not in environment:
        return None
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "YOKED_LAUNCH_ID")
    return tuple(environment.get(name, "") for name in names)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    told = environment.get(name, "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else None


# ---- what they do


class _Look:
    """All of them at a moment. vitals, ends: by place among the members, of those that live.

    answered: a place and an address to which it is, or was, connected.
    """

    def __init__(self, members: Iterable[_Member], *, with_ends: bool) -> None:
        self.at_s = time.monotonic()
        self.vitals: dict[int, RankVitals] = {}
        self.ends: dict[int, dict[str, list[Connection]]] = {}
        self.answered: set[tuple[int, str]] = set()
        processes = {place: each.process for place, each in enumerate(members)}
        for place, process in processes.items():
            view = kernel_view(process.pid) if process.alive else None
            if view is not None:
                self.vitals[place] = RankVitals(
                    place, process.pid, view.state, view.cpu_s, None, view.waits_in
                )
        if with_ends:
            self._take_ends({place: processes[place] for place in self.vitals})

    def _take_ends(self, processes: Mapping[int, ProcessId]) -> None:
        owners: dict[int, list[int]] = defaultdict(list)
        for place, process in processes.items():
            for inode in socket_inodes(process.pid):
                owners[inode].append(place)
        for connecting in (False, True):
            for end in _all_ends(connecting=connecting):
                address = plain_address(end.remote[0])
                for place in owners.get(end.inode, ()):
                    self.ends.setdefault(place, {}).setdefault(address, []).append(end)
                    if not connecting:
                        self.answered.add((place, address))


def _all_ends(*, connecting: bool) -> Iterator[Connection]:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            yield from connections(family, connecting=connecting)
        except OSError:
            # A kernel without this family, or a sandbox without this question.
            continue


def _process(member: _Member, place: int, first: _Look, last: _Look) -> Process:
    took_s = last.at_s - first.at_s
    before, now = first.vitals.get(place), last.vitals.get(place)
    ended = RankVitals(place, member.process.pid, "Z", 0.0, None)
    cores = (now.cpu_s - before.cpu_s) / took_s if now is not None and before is not None else 0.0
    return Process(
        command=member.process.command()[:_LONGEST_COMMAND],
        rank=member.rank,
        world_size=member.world_size,
        meets_at=member.meets_at,
        worker=member.worker,
        launches=member.launches,
        vitals=now or ended,
        cores=cores,
        resident_bytes=member.process.usage()[1],
        peers=tuple(
            _peer(
                address,
                ends,
                first.ends.get(place, {}).get(address, ()),
                took_s,
                connecting=(place, address) not in last.answered,
            )
            for address, ends in sorted(last.ends.get(place, {}).items())
        ),
    )


def _peer(
    address: str,
    ends: list[Connection],
    before: Iterable[Connection],
    took_s: float,
    *,
    connecting: bool,
) -> Peer:
    """The connections to an address; where some do not get on, the figures are theirs."""
    passed = {each.inode: each.sent_bytes + each.received_bytes for each in before}
    bytes_ = sum(
        each.sent_bytes + each.received_bytes - passed[each.inode]
        for each in ends
        if each.inode in passed
    )
    blocked = [each for each in ends if unacknowledged(link_vitals(0, [each]))]
    shut = [each for each in ends if each.window_shut and each.unsent_bytes]
    return Peer(
        address=address,
        link=replace(link_vitals(0, blocked or shut or ends), connections=len(ends)),
        bytes_per_s=bytes_ / took_s,
        window_shut=bool(shut) and not blocked,
        connecting=connecting,
    )
