"""What a host lets one user's processes have: files, processes, memory, ports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import lines_out, shown_places
from yoked.doctor.checks.links import NO_DESCRIPTORS, USED_UP
from yoked.doctor.checks.path import stop_first
from yoked.doctor.checks.query import mapping, part, ranks_of
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.startfiles import leave_out_lines, take_out_limit
from yoked.doctor.repairs.system import end_processes, sysctl
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import shell_line
from yoked.units import listed

# `import torch` and Gloo hold about a hundred files open; each peer adds some.
_FILES, _FILES_OF_PEER = 160, 8
# Torchrun, a rank, its threads: what one rank and its launcher start.
_PROCESSES = 100
# torch maps its libraries, and each thread a stack: 5 GB of addresses before the first tensor.
_ADDRESSES_BYTES = 8 << 30
# Of most systems 8 MiB, and some of its libraries' frames are large.
_STACK_BYTES = 1 << 20
_FILE_BYTES = 64 << 20
_LONG_S = 7 * 86_400
# A rank listens and dials; torchrun, the stores and ssh want theirs.
_PORTS, _PORTS_OF_RANK, _FEW_PORTS = 16, 4, 1000
_USUAL_PORTS = "32768 60999"
# The kernel's own on machines with few CPUs.
_USUAL_PIDS = 32_768
_RANGES = re.compile(r"\b(\d{1,5})(?:-(\d{1,5}))?\b")
_LETTERS = {
    "nofile": "n", "nproc": "u", "as": "v", "data": "d", "stack": "s", "fsize": "f", "cpu": "t",
}  # fmt: skip
_TERMS = "`ulimit` in a start file of the shell, limits.conf, or the ssh server's own unit"
_LIFTED = (
    "Makes the line a comment that sets it: `ulimit` of a start file, found by running those "
    "again, or the line of /etc/security/limits.conf. A unit's LimitNOFILE and the like: by hand."
)
_AFTER = ("program-acts", "world-failed", "torch-import", "torch-missing", "agent-failed")
# What most of these checks have in common.
_check = partial(check, reads=("health.limits",), severity="error", fix=_LIFTED)


def _soft(host: HostSeen, name: str) -> int | None:
    """A limit as a process meets it; None: there is none, or it was not told."""
    pair = part(host, "limits", name)
    return None if not pair else pair[0]


def _lift(host: HostSeen, letter: str) -> Iterator[Fix]:
    """The lines that lift a limit. letter: that of `ulimit`."""
    if _is_later(host, letter):
        look = by_hand(
            host.name,
            "find the service that sets limits of others (`ps aux`), and have it leave the account "
            "of the run alone; `prlimit --pid PID` shows those of a process",
        )
        yield from stop_first(host, "limits")[0] or (look,)
        return
    told = part(host, "set_limits")
    places = None if told is None else mapping(told).get(letter)
    if places is None:
        yield take_out_limit(host.name, letter)
        return
    yield from leave_out_lines(host.name, places)
    if not places:
        yield by_hand(
            host.name,
            "no start file and no line of limits.conf sets it, so what starts the ssh server does: "
            "`systemctl show ssh sshd | grep ^Limit`, or the settings of the container, only look; "
            "lift it there, and start the server again",
        )


def _is_later(host: HostSeen, letter: str) -> bool:
    """Whether a program that ran already got this limit, which then no login sets."""
    return any(_LETTERS.get(each) == letter for each in part(host, "limits", "later") or ())


def _where(host: HostSeen, *letters: str) -> str:
    """` (/etc/bash.bashrc, line 1)`, of limits; empty: nobody knows."""
    if any(_is_later(host, letter) for letter in letters):
        return f", set while it ran{stop_first(host, 'limits')[1]}"
    told = mapping(part(host, "set_limits"))
    return shown_places(each for letter in letters for each in told.get(letter) or ())


def _world(seen: Examination) -> int:
    return sum(ranks_of(seen, host) for host in seen.up)


def _short_of(seen: Examination, errors: frozenset[str]) -> set[str]:
    """The hosts that had to give up a dial for one of these errors."""
    return {each.source for each in seen.dials if each.chosen and each.error in errors}


@_check(
    "open-files",
    question="May a process hold enough files open?",
    reads=("health.limits", "dials"),
    saw="a process of {host} may hold {soft} files open{where}; a rank needs about {needed}",
    why="torch ends with `Too many open files`",
    symptom="`OSError: [Errno 24] Too many open files`.",
    cause=f"A low limit: {_TERMS}.",
    on_cluster="Slurm hands the limits of the login node down (`PropagateResourceLimits`).",
    explains=(*_AFTER, "dial-failed"),
)
def open_files(seen: Examination) -> Iterator[Match]:
    starved = _short_of(seen, NO_DESCRIPTORS)
    for host in seen.up:
        soft, needed = _soft(host, "nofile"), _FILES + _FILES_OF_PEER * _world(seen)
        if (soft is None or soft >= needed) and host.name not in starved:
            continue
        yield Match(host.name, *_lift(host, "n"), soft=soft, needed=needed, where=_where(host, "n"))


@_check(
    "process-limit",
    question="May the user have enough processes and threads?",
    saw={
        "user": "the user of {host} may have {room:,} processes and threads{where}; "
        "{ranks:plural rank} would take about {needed}",
        "numbers": "{host} has {room:,} numbers left for processes and threads (kernel.pid_max); "
        "{ranks:plural rank} would take about {needed}",
        "group": "the control group on {host} has room for {room:,} more processes; "
        "{ranks:plural rank} would take about {needed}",
    },
    why="torch ends with `Resource temporarily unavailable` or `can't start new thread`",
    symptom="`RuntimeError: can't start new thread`, `fork: retry: Resource temporarily "
    "unavailable`, `OpenBLAS blas_thread_init: pthread_create failed`.",
    cause=f"A low limit: {_TERMS}; a container's pids limit; or a low kernel.pid_max.",
    on_cluster="Kubernetes: `podPidsLimit` of the kubelet.",
    explains=_AFTER,
)
def process_limit(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        needed = _PROCESSES * ranks_of(seen, host)
        soft, group = _soft(host, "nproc"), part(host, "limits", "pids") or {}
        left = group["max"] - group.get("current", 0) if group.get("max") else None
        most, tasks = part(host, "limits", "pid_max"), part(host, "limits", "tasks")
        free = most - tasks if most and tasks is not None else None
        # Root's processes are not counted.
        if soft is not None and soft < needed and host.facts.get("uid") != 0:
            how, room, fixes = "user", soft, tuple(_lift(host, "u"))
        elif left is not None and left < needed:
            how, room = "group", left
            fixes = (by_hand(host.name, "start the container with a higher --pids-limit"),)
        elif free is not None and free < needed:
            how, room = "numbers", max(0, free)
            fixes = (sysctl(host.name, "kernel.pid_max", _USUAL_PIDS, was=most),)
        else:
            continue
        yield Match(
            host.name,
            *fixes,
            how=how,
            room=room,
            ranks=ranks_of(seen, host),
            needed=needed,
            where=_where(host, "u") if how == "user" else "",
        )


@_check(
    "address-space",
    question="May a process map as much as torch does?",
    saw="a process of {host} may have {limit:bytes} of {what}{where}",
    why={
        "": "torch maps several times that before the first tensor, and ends with `failed to map "
        "segment` or `Cannot allocate memory`",
        "stack": "each thread of torch gets one of that size, and dies in it: `Segmentation fault`",
    },
    symptom="`ImportError: libtorch_cpu.so: failed to map segment from shared object`.",
    cause=f"A low limit of addresses, data or stack: {_TERMS}.",
    on_cluster="Grid Engine's h_vmem does the same.",
    explains=(*_AFTER, "memory"),
)
def address_space(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        tight = {
            name: soft
            for name in ("as", "data")
            if (soft := _soft(host, name)) is not None and soft < _ADDRESSES_BYTES
        }
        stack = _soft(host, "stack")
        if stack is not None and stack < _STACK_BYTES:
            fixes = _lift(host, "s")
            where = _where(host, "s")
            yield Match(host.name, *fixes, how="stack", limit=stack, what="stack", where=where)
        if not tight:
            continue
        name = min(tight, key=lambda each: tight[each])
        yield Match(
            host.name,
            *(fix for each in tight for fix in _lift(host, _LETTERS[each])),
            limit=tight[name],
            what="addresses",
            where=_where(host, *(_LETTERS[each] for each in tight)),
        )


@_check(
    "file-size",
    question="May a file be as large as a checkpoint?",
    saw="a file of {host} may have {soft:bytes}{where}; a run writes files of {needed:bytes}",
    why="the first that grows beyond it ends its rank: `File size limit exceeded`",
    symptom="A rank ends with signal 25, `File size limit exceeded`.",
    cause=f"A low limit: {_TERMS}.",
    explains=("folder-denied", "world-failed"),
)
def file_size(seen: Examination) -> Iterator[Match]:
    needed = max(_FILE_BYTES, seen.need.checkpoint_bytes or 0)
    for host in seen.up:
        soft = _soft(host, "fsize")
        if soft is not None and soft < needed:
            yield Match(
                host.name, *_lift(host, "f"), soft=soft, needed=needed, where=_where(host, "f")
            )


@_check(
    "cpu-time",
    question="May a process compute for long?",
    saw="a process of {host} is ended after {soft:duration} of CPU time{where}",
    why="a rank uses that up on all its threads at once, and is killed",
    symptom="Ranks are killed after the same time in each run: signal 24 or 9.",
    cause=f"A limit of CPU time: {_TERMS}; login nodes of clusters have one.",
    on_cluster="Train on a compute node: `sbatch` instead of the login node.",
)
def cpu_time(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        soft = _soft(host, "cpu")
        if soft is not None and soft < _LONG_S:
            yield Match(host.name, *_lift(host, "t"), soft=soft, where=_where(host, "t"))


@_check(
    "umask",
    question="Can the user read what it writes?",
    saw="the umask on {host} is {mask:04o}: new files cannot be read or written by their own user",
    why="the run could not read what it wrote",
    symptom="`Permission denied` for files that the run itself has just made.",
    cause="A umask that takes the owner's rights away.",
    fix="Makes the line of the start file a comment that sets it; else by hand.",
)
def umask(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        mask = part(host, "limits", "umask")
        if mask is not None and mask & 0o700:
            look = by_hand(host.name, "take the `umask` line out of the shell's start files")
            yield Match(host.name, *lines_out(host, "umask", look), mask=mask)


@check(
    "port-range",
    question="Are there enough ports for the kernel to pick from?",
    reads=("health.ports", "dials"),
    severity="error",
    saw="the kernel of {host} picks ports from {low} to {high}, of which {taken} are taken"
    "{reserved}; {ranks:plural rank} would take about {needed}",
    why="a rank finds no port: `Address already in use` or `Cannot assign requested address`",
    symptom="`OSError: [Errno 98] Address already in use` or `[Errno 99] Cannot assign "
    "requested address`, although no port was named.",
    cause="net.ipv4.ip_local_port_range is next to empty, net.ipv4.ip_local_reserved_ports takes "
    "most of it out, or a program holds it.",
    fix="Gives the kernel its usual range, or reserves no ports, until the next start. There is no "
    "setting of Gloo's for it: GLOO_PORT_RANGE does nothing.",
    explains=("dial-failed", "world-failed", "firewall-range", "connection-rate", "no-route"),
)
def port_range(seen: Examination) -> Iterator[Match]:
    used_up = _short_of(seen, USED_UP)
    for host in seen.up:
        bounds = part(host, "ports", "range")
        if not bounds and host.name not in used_up:
            continue
        low, high = bounds or (0, 0)
        taken = part(host, "ports", "taken") or 0
        reserved = str(part(host, "ports", "reserved") or "")
        out = _reserved(reserved, low, high)
        left, needed = high - low + 1 - taken - out, _PORTS + _PORTS_OF_RANK * _world(seen)
        if left >= _FEW_PORTS and host.name not in used_up:
            continue
        before, grave = f"{low} {high}", left < needed or host.name in used_up
        yield Match(
            host.name,
            sysctl(host.name, "net.ipv4.ip_local_reserved_ports", "", was=reserved)
            if out and left + out >= _FEW_PORTS
            else by_hand(host.name, "end the program that holds so many connections: `ss -s`")
            if before == _USUAL_PORTS
            else sysctl(host.name, "net.ipv4.ip_local_port_range", _USUAL_PORTS, was=before),
            severity="error" if grave else "warning",
            low=low,
            high=high,
            taken=taken,
            reserved=f", and {out:,} are reserved ({reserved})" if out else "",
            ranks=_world(seen),
            needed=needed,
        )


def _reserved(ports: str, low: int, high: int) -> int:
    """How many ports of a range are reserved. ports: `8080,9000-9100`, as the kernel has it."""
    count = 0
    for first, last in _RANGES.findall(ports):
        count += max(0, min(int(last or first), high) - max(int(first), low) + 1)
    return count


@check(
    "port-taken",
    question="Is the usual port of torchrun free?",
    reads=("health.ports",),
    severity="warning",
    saw="port {port} of {host} is taken by {owners:list}{run}",
    why="torchrun with --master_port={port} ends with `EADDRINUSE` here, and the others "
    "would meet that program; yoked takes a free port",
    symptom="`The server socket has failed to listen on any local network address. "
    "EADDRINUSE` (errno 98).",
    cause="A rank of an earlier run, or another program, listens there.",
    fix="Ends the process where it is of a run of ours that is over; a run that goes on is "
    "yours to stop, and other programs by hand. Runs of yoked take a port that is free.",
)
def port_taken(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        for port, owners in (part(host, "ports", "owners") or {}).items():
            if not owners:
                continue
            ours = [str(each["run"]) for each in owners if each.get("run")]
            shown = [
                f"{each.get('command') or 'a program'} of {each.get('user')}"
                + (f" (process {each['pid']})" if each.get("pid") else "")
                for each in owners
            ]
            run = f", of run {listed(ours)}" if ours else ""
            yield Match(host.name, _free(host, port, owners), port=port, owners=shown, run=run)


def _free(host: HostSeen, port: str, owners: Sequence[Mapping[str, Any]]) -> Fix:
    """Free a port: what a launch left that is over is ended, and nothing that runs."""
    left = [
        each
        for each in owners
        if each.get("ended") is True and each.get("launch") and each.get("start_ticks")
    ]
    if left and len(left) == len(owners):
        return end_processes(host.name, left)
    runs = [str(each["run"]) for each in owners if each.get("run") and each not in left]
    if runs:
        return by_hand(
            host.name,
            "a run has it: `yoked attach {run}` shows it, `yoked stop {run}` ends it; or take "
            "another --master_port",
            run=runs[0],
        )
    return by_hand(
        host.name,
        "`ss -ltnp {filter}` shows it; end it, or take another --master_port",
        filter=shell_line("sport = :{port}", port=port),
    )


CHECKS = (
    open_files,
    process_limit,
    address_space,
    file_size,
    cpu_time,
    umask,
    port_range,
    port_taken,
)
