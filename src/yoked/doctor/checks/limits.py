"""What a host lets one user's processes have: files, processes, memory, ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.doctor.check import Check, page
from yoked.doctor.checks.processes import kill_line
from yoked.doctor.checks.reading import by_hand, finding, listed, part, plural, ranks_of
from yoked.doctor.checks.startfiles import take_out_limit
from yoked.doctor.checks.verdicts import NO_DESCRIPTORS, USED_UP
from yoked.records.examination import Examination, Finding, Fix, HostSeen
from yoked.records.shell import shell_line
from yoked.units import format_bytes, format_duration

# `import torch` and Gloo hold about a hundred files open; each peer adds some.
_FILES, _FILES_OF_PEER = 160, 8
# Torchrun, a rank, its threads: what one rank and its launcher start.
_PROCESSES = 100
# torch maps its libraries, and each thread a stack: 5 GB of addresses before the first tensor.
_ADDRESSES_BYTES = 8 << 30
_FILE_BYTES = 64 << 20
_LONG_S = 7 * 86_400
# A rank listens and dials; torchrun, the stores and ssh want theirs.
_PORTS, _PORTS_OF_RANK, _FEW_PORTS = 16, 4, 1000
_USUAL_PORTS = "32768 60999"


def _soft(host: HostSeen, name: str) -> int | None:
    """A limit as a process meets it; None: there is none, or it was not told."""
    pair = part(host, "limits", name)
    return None if not pair else pair[0]


def _world(seen: Examination) -> int:
    return sum(ranks_of(host) for host in seen.up)


def _short_of(seen: Examination, errors: frozenset[str]) -> set[str]:
    """The hosts that had to give up a dial for one of these errors."""
    return {each.source for each in seen.dials if each.chosen and each.error in errors}


def _open_files(seen: Examination) -> Iterator[Finding]:
    starved = _short_of(seen, NO_DESCRIPTORS)
    for host in seen.up:
        soft, needed = _soft(host, "nofile"), _FILES + _FILES_OF_PEER * _world(seen)
        if (soft is None or soft >= needed) and host.name not in starved:
            continue
        yield finding(
            "open-files",
            "error",
            host.name,
            f"a process of {host.name} may hold {soft} files open; a rank needs about {needed}",
            "torch ends with `Too many open files`",
            take_out_limit(host.name, "n"),
        )


def _process_limit(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        needed = _PROCESSES * ranks_of(host)
        soft, group = _soft(host, "nproc"), part(host, "limits", "pids") or {}
        left = group["max"] - group.get("current", 0) if group.get("max") else None
        # Root's processes are not counted.
        if soft is not None and soft < needed and host.facts.get("uid") != 0:
            saw = f"the user of {host.name} may have {soft:,} processes and threads"
            fix: Fix = take_out_limit(host.name, "u")
        elif left is not None and left < needed:
            saw = f"the control group on {host.name} has room for {left:,} more processes"
            fix = by_hand(host.name, "start the container with a higher --pids-limit")
        else:
            continue
        yield finding(
            "process-limit",
            "error",
            host.name,
            f"{saw}; {plural(ranks_of(host), 'rank')} would take about {needed}",
            "torch ends with `Resource temporarily unavailable` or `can't start new thread`",
            fix,
        )


def _address_space(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        tight = {
            name: soft
            for name in ("as", "data")
            if (soft := _soft(host, name)) is not None and soft < _ADDRESSES_BYTES
        }
        if not tight:
            continue
        name = min(tight, key=lambda each: tight[each])
        yield finding(
            "address-space",
            "error",
            host.name,
            f"a process of {host.name} may have {format_bytes(tight[name])} of addresses",
            "torch maps several times that before the first tensor, and ends with `failed to map "
            "segment` or `Cannot allocate memory`",
            *(take_out_limit(host.name, {"as": "v", "data": "d"}[each]) for each in tight),
        )


def _file_size(seen: Examination) -> Iterator[Finding]:
    needed = max(_FILE_BYTES, seen.need.checkpoint_bytes or 0)
    for host in seen.up:
        soft = _soft(host, "fsize")
        if soft is not None and soft < needed:
            yield finding(
                "file-size",
                "error",
                host.name,
                f"a file of {host.name} may have {format_bytes(soft)}; a run writes files of "
                f"{format_bytes(needed)}",
                "the first that grows beyond it ends its rank: `File size limit exceeded`",
                take_out_limit(host.name, "f"),
            )


def _cpu_time(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        soft = _soft(host, "cpu")
        if soft is not None and soft < _LONG_S:
            yield finding(
                "cpu-time",
                "error",
                host.name,
                f"a process of {host.name} is ended after {format_duration(soft)} of CPU time",
                "a rank uses that up on all its threads at once, and is killed",
                take_out_limit(host.name, "t"),
            )


def _umask(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        mask = part(host, "limits", "umask")
        if mask is not None and mask & 0o700:
            yield finding(
                "umask",
                "error",
                host.name,
                f"the umask on {host.name} is {mask:04o}: new files cannot be read or written by "
                "their own user",
                "the run could not read what it wrote",
                by_hand(host.name, "take the `umask` line out of the shell's start files"),
            )


def _port_range(seen: Examination) -> Iterator[Finding]:
    used_up = _short_of(seen, USED_UP)
    for host in seen.up:
        bounds = part(host, "ports", "range")
        if not bounds and host.name not in used_up:
            continue
        low, high = bounds or (0, 0)
        taken = part(host, "ports", "taken") or 0
        left, needed = high - low + 1 - taken, _PORTS + _PORTS_OF_RANK * _world(seen)
        if left >= _FEW_PORTS and host.name not in used_up:
            continue
        grave = left < needed or host.name in used_up
        yield finding(
            "port-range",
            "error" if grave else "warning",
            host.name,
            f"the kernel of {host.name} picks ports from {low} to {high}, of which {taken} are "
            f"taken; {plural(_world(seen), 'rank')} would take about {needed}",
            "a rank finds no port: `Address already in use` or `Cannot assign requested address`",
            *_usual_ports(host, f"{low} {high}"),
        )


def _usual_ports(host: HostSeen, before: str) -> tuple[Fix, ...]:
    if before == _USUAL_PORTS:
        return (by_hand(host.name, "end the program that holds so many connections: `ss -s`"),)
    setting = "net.ipv4.ip_local_port_range"
    return (
        Fix(
            host.name,
            shell_line("sysctl -w {it}={ports}", it=setting, ports=_USUAL_PORTS),
            root=True,
            undo=shell_line("sysctl -w {it}={ports}", it=setting, ports=before),
        ),
    )


def _port_taken(seen: Examination) -> Iterator[Finding]:
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
            yield finding(
                "port-taken",
                "warning",
                host.name,
                f"port {port} of {host.name} is taken by {listed(shown)}{run}",
                f"torchrun with --master_port={port} ends with `EADDRINUSE` here, and the others "
                "would meet that program; yoked takes a free port",
                _free(host, port, owners),
            )


def _free(host: HostSeen, port: str, owners: Sequence[Mapping[str, Any]]) -> Fix:
    """Free a port: what a launch left that is over is ended, and nothing that runs."""
    left = [
        each
        for each in owners
        if each.get("ended") is True and each.get("launch") and each.get("start_ticks")
    ]
    if left and len(left) == len(owners):
        return Fix(host.name, kill_line(left))
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


_TERMS = "`ulimit` in a start file of the shell, limits.conf, or the ssh server's own unit"
_LIFTED = (
    "Makes the `ulimit` line of the start file a comment. Where the limit is set elsewhere "
    "(/etc/security/limits.conf, a unit's LimitNOFILE), the line finds nothing, and says so."
)

CHECKS = (
    Check(
        "open-files",
        "May a process hold enough files open?",
        ("health.limits", "dials"),
        "error",
        page(
            symptom="`OSError: [Errno 24] Too many open files`.",
            cause=f"A low limit: {_TERMS}.",
            fix=_LIFTED,
            elsewhere="Slurm hands the limits of the login node down (`PropagateResourceLimits`).",
        ),
        _open_files,
        explains=("world-failed", "torch-import", "dial-failed", "torch-missing"),
    ),
    Check(
        "process-limit",
        "May the user have enough processes and threads?",
        ("health.limits",),
        "error",
        page(
            symptom="`RuntimeError: can't start new thread`, `fork: retry: Resource temporarily "
            "unavailable`, `OpenBLAS blas_thread_init: pthread_create failed`.",
            cause=f"A low limit: {_TERMS}; or a container's pids limit.",
            fix=_LIFTED,
            elsewhere="Kubernetes: `podPidsLimit` of the kubelet.",
        ),
        _process_limit,
        explains=("world-failed", "torch-import", "torch-missing"),
    ),
    Check(
        "address-space",
        "May a process map as much as torch does?",
        ("health.limits",),
        "error",
        page(
            symptom="`ImportError: libtorch_cpu.so: failed to map segment from shared object`.",
            cause=f"A low limit of addresses: {_TERMS}.",
            fix=_LIFTED,
            elsewhere="Grid Engine's h_vmem does the same.",
        ),
        _address_space,
        explains=("world-failed", "torch-import", "torch-missing", "memory"),
    ),
    Check(
        "file-size",
        "May a file be as large as a checkpoint?",
        ("health.limits",),
        "error",
        page(
            symptom="A rank ends with signal 25, `File size limit exceeded`.",
            cause=f"A low limit: {_TERMS}.",
            fix=_LIFTED,
        ),
        _file_size,
        explains=("folder-denied", "world-failed"),
    ),
    Check(
        "cpu-time",
        "May a process compute for long?",
        ("health.limits",),
        "error",
        page(
            symptom="Ranks are killed after the same time in each run: signal 24 or 9.",
            cause=f"A limit of CPU time: {_TERMS}; login nodes of clusters have one.",
            fix=_LIFTED,
            elsewhere="Train on a compute node: `sbatch` instead of the login node.",
        ),
        _cpu_time,
    ),
    Check(
        "umask",
        "Can the user read what it writes?",
        ("health.limits",),
        "error",
        page(
            symptom="`Permission denied` for files that the run itself has just made.",
            cause="A umask that takes the owner's rights away.",
            fix="By hand.",
        ),
        _umask,
    ),
    Check(
        "port-range",
        "Are there enough ports for the kernel to pick from?",
        ("health.ports", "dials"),
        "error",
        page(
            symptom="`OSError: [Errno 98] Address already in use` or `[Errno 99] Cannot assign "
            "requested address`, although no port was named.",
            cause="net.ipv4.ip_local_port_range is next to empty, or a program holds most of it.",
            fix="Gives the kernel its usual range, until the next start. There is no setting of "
            "Gloo's for it: GLOO_PORT_RANGE does nothing.",
        ),
        _port_range,
        explains=("dial-failed", "world-failed", "firewall-range", "connection-rate"),
    ),
    Check(
        "port-taken",
        "Is the usual port of torchrun free?",
        ("health.ports",),
        "warning",
        page(
            symptom="`The server socket has failed to listen on any local network address. "
            "EADDRINUSE` (errno 98).",
            cause="A rank of an earlier run, or another program, listens there.",
            fix="Ends the process where it is of a run of ours that is over; a run that goes on is "
            "yours to stop, and other programs by hand. Runs of yoked take a port that is free.",
        ),
        _port_taken,
    ),
)
