"""The ports of this host: which are taken, and by whom. Source: proc_net_tcp(5), proc_pid_fd(5)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from yoked.agent.ask import text, user_name
from yoked.agent.jobfolder import ACTIVE, JobFolder, all_jobs
from yoked.agent.server import Call
from yoked.core.proc import FOLDER_VARIABLE, LAUNCH_VARIABLE, ProcessId, all_processes

_LISTENING = "0A"
_SETTINGS = Path("/proc/sys/net/ipv4")
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# The sockets with which this very agent has listened: they are about to go.
_own: set[int] = set()


def leave_out(listener: socket.socket) -> None:
    """Leave a socket of this agent out of what is told of ports."""
    _own.add(os.fstat(listener.fileno()).st_ino)


def answer_listener_owner(call: Call) -> list[dict[str, Any]]:
    """The processes that listen on TCP `port`; see `describe_owner`.

    pid is None where the socket belongs to somebody whose processes we may not look into.
    """
    return listener_owners(int(call.args["port"]))


def answer_job_listeners(call: Call) -> dict[str, list[dict[str, Any]]]:
    """{run: what its processes listen at beside loopback and its address}, of runs that go on.

    Each: address, port, pid and command. Gloo's sockets and yoked's are at the address of the run;
    what else a program opens, others may reach too.
    """
    del call
    found = {}
    for job in all_jobs():
        spec = job.read("job.json")
        nodes, number = spec.get("nodes") or [], spec.get("node_rank", 0)
        if job.state in ACTIVE and number < len(nodes):
            seen = listeners_of(job.launch_id, nodes[number].get("address"))
            if seen:
                found[job.run] = seen
    return found


def probe_ports(args: Mapping[str, Any]) -> dict[str, Any] | None:
    """range, reserved, taken (of the range) and owners {port: see `describe_owner`} of `ports`.

    None: the system does not tell. JSON makes the ports of `owners` strings.
    """
    told = text(_SETTINGS / "ip_local_port_range").split()
    if len(told) != 2:
        return None
    low, high = int(told[0]), int(told[1])
    used = {local_port(row) for row in rows()}
    wanted: list[int] = args.get("ports") or []
    return {
        "range": [low, high],
        "reserved": text(_SETTINGS / "ip_local_reserved_ports"),
        "taken": sum(low <= port <= high for port in used),
        "owners": {str(port): listener_owners(port) for port in wanted},
    }


def listeners_of(launch_id: str, chosen: str | None) -> list[dict[str, Any]]:
    """Where processes of a launch listen, beside loopback and the address that the run chose."""
    places = {
        int(fields[9]): (str(address), local_port(fields))
        for fields in rows()
        if fields[3] == _LISTENING
        and not (address := local_address(fields)).is_loopback
        and (chosen is None or address != ip_address(chosen))
    }
    found = []
    for process in all_processes() if places else ():
        if process.environment().get(LAUNCH_VARIABLE) != launch_id:
            continue
        for inode in places.keys() & socket_inodes(process):
            where, port = places[inode]
            found.append(
                {
                    "address": where,
                    "port": port,
                    "pid": process.pid,
                    "command": process.command(),
                }
            )
    return sorted(found, key=lambda each: (each["port"], each["address"], each["pid"]))


def listener_owners(port: int) -> list[dict[str, Any]]:
    """The processes that listen on a port; see `answer_listener_owner`."""
    sockets = listening_sockets(port)
    # Mostly nobody does, and then nobody's files need be looked through.
    if not sockets:
        return []
    owners = []
    for process in all_processes():
        held = sockets.keys() & socket_inodes(process)
        if held:
            for inode in held:
                sockets[inode] = -1
            owners.append(describe_owner(process))
    unknown = [uid for uid in sockets.values() if uid >= 0]
    owners += [{"pid": None, "command": "", "user": user_name(uid), "run": None} for uid in unknown]
    return owners


def listening_sockets(port: int | None = None) -> dict[int, int]:
    """{inode: user number} of sockets that listen, on this port or on any."""
    found = {}
    for fields in rows():
        inode = int(fields[9])
        if fields[3] == _LISTENING and port in (None, local_port(fields)) and inode not in _own:
            found[inode] = int(fields[7])
    return found


def ports_of(process: ProcessId) -> list[int]:
    """The ports on which a process listens."""
    held = socket_inodes(process)
    return sorted(
        {
            local_port(fields)
            for fields in rows()
            if fields[3] == _LISTENING and int(fields[9]) in held
        }
    )


def local_address(fields: list[str]) -> IPv4Address | IPv6Address:
    """The address of a row of /proc/net/tcp: words of 32 bits, each in this machine's order."""
    digits = fields[1].rpartition(":")[0]
    words = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    if len(packed) == 4:
        return IPv4Address(packed)
    address = IPv6Address(packed)
    return address.ipv4_mapped or address


def local_port(fields: list[str]) -> int:
    """The port of a row of /proc/net/tcp."""
    return int(fields[1].rpartition(":")[2], 16)


def socket_inodes(process: ProcessId) -> set[int]:
    """The sockets that a process holds; none where we may not look."""
    folder = f"/proc/{process.pid}/fd"
    found: set[int] = set()
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return found
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{folder}/{descriptor}")  # noqa: PTH115 - no path, but a label
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def describe_owner(process: ProcessId) -> dict[str, Any]:
    """Number, start, command and user of a process; and the run and launch that it is of, and
    whether that is over. None: it is not ours.
    """
    environment = process.environment()
    ours = LAUNCH_VARIABLE in environment
    uid = process.uid
    return {
        "pid": process.pid,
        "command": process.command(),
        "user": user_name(os.getuid() if uid is None else uid),
        "run": environment.get("YOKED_RUN") if ours else None,
        "launch": environment.get(LAUNCH_VARIABLE),
        "start_ticks": process.start_ticks,
        "ended": is_left_behind(process, environment) if ours else None,
    }


def is_left_behind(process: ProcessId, environment: Mapping[str, str]) -> bool:
    """Whether a process is of a launch that is over, or has no job any more.

    The folder is told by the process itself: jobs of another state folder are as good as ours,
    and a process that names none was started by something else.
    """
    launch_id, folder = environment.get(LAUNCH_VARIABLE), environment.get(FOLDER_VARIABLE)
    if not launch_id or not folder or not process.shares("pid", "mnt"):
        return False
    job = JobFolder(Path(folder))
    return job.launch_id != launch_id or job.state not in ACTIVE


def rows() -> list[list[str]]:
    """The rows of the kernel's tables of TCP sockets, of both families."""
    found = []
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        found += [line.split() for line in lines]
    return found
