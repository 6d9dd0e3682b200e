"""The ports of this host: which are taken, and by whom. Source: proc_net_tcp(5), proc_pid_fd(5)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, NamedTuple

from yoked.agent.ask import text, user_name
from yoked.agent.jobfolder import ACTIVE, JobFolder, all_jobs
from yoked.agent.server import Call
from yoked.core.proc import FOLDER_VARIABLE, LAUNCH_VARIABLE, ProcessId, all_processes

_SETTINGS = Path("/proc/sys/net/ipv4")
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# States of include/net/tcp_states.h.
_HALF_OPEN, _LISTENS = "03", "0A"
# The sockets with which this very agent has listened: they are about to go.
_own: set[int] = set()


def leave_out(listener: socket.socket) -> None:
    """Leave a socket of this agent out of what is told of ports."""
    _own.add(os.fstat(listener.fileno()).st_ino)


def answer_half_open(call: Call) -> list[dict[str, Any]] | None:
    """[{port, address}] of TCP connections that were begun here, and not confirmed: port is ours,
    address theirs. So their first packet came, and our answer did not, or not theirs to it. None:
    the system does not tell.
    """
    del call
    if not any(map(os.path.exists, _TABLES)):
        return None
    return [
        {"port": Row(fields[1], listens=False, uid=0, inode=0).port,
         "address": str(Row(fields[2], listens=False, uid=0, inode=0).address)}
        for fields in _fields()
        if fields[3] == _HALF_OPEN
    ]  # fmt: skip


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


def probe_ports(ports: Sequence[int] = ()) -> dict[str, Any] | None:
    """range, reserved, taken (of the range) and owners {port: see `describe_owner`} of `ports`.

    None: the system does not tell. JSON makes the ports of `owners` strings.
    """
    told = text(_SETTINGS / "ip_local_port_range").split()
    if len(told) != 2:
        return None
    low, high = int(told[0]), int(told[1])
    used = {row.port for row in rows()}
    return {
        "range": [low, high],
        "reserved": text(_SETTINGS / "ip_local_reserved_ports"),
        "taken": sum(low <= port <= high for port in used),
        "owners": {str(port): listener_owners(port) for port in ports},
    }


def listeners_of(launch_id: str, chosen: str | None) -> list[dict[str, Any]]:
    """Where processes of a launch listen, beside loopback and the address that the run chose."""
    places = {
        row.inode: row
        for row in rows()
        if row.listens
        and not row.address.is_loopback
        and (chosen is None or row.address != ip_address(chosen))
    }
    found = []
    for process in all_processes() if places else ():
        if process.environment().get(LAUNCH_VARIABLE) != launch_id:
            continue
        for inode in places.keys() & socket_inodes(process.pid):
            where = {"address": str(places[inode].address), "port": places[inode].port}
            found.append({**where, "pid": process.pid, "command": process.command()})
    return sorted(found, key=lambda each: (each["port"], each["address"], each["pid"]))


def listener_owners(port: int) -> list[dict[str, Any]]:
    """The processes that listen on a port; see `describe_owner`.

    pid is None where the socket belongs to somebody whose processes we may not look into.
    """
    sockets = listening_sockets(port)
    # Mostly nobody does, and then nobody's files need be looked through.
    if not sockets:
        return []
    owners = []
    for process in all_processes():
        held = sockets.keys() & socket_inodes(process.pid)
        if held:
            for inode in held:
                sockets[inode] = -1
            owners.append(describe_owner(process))
    unknown = [uid for uid in sockets.values() if uid >= 0]
    owners += [{"pid": None, "command": "", "user": user_name(uid), "run": None} for uid in unknown]
    return owners


def listening_sockets(port: int) -> dict[int, int]:
    """{inode: user number} of sockets that listen on a port."""
    return {
        row.inode: row.uid
        for row in rows()
        if row.listens and row.port == port and row.inode not in _own
    }


def ports_of(process: ProcessId) -> list[int]:
    """The ports on which a process listens."""
    held = socket_inodes(process.pid)
    return sorted({row.port for row in rows() if row.listens and row.inode in held})


def socket_inodes(pid: int, proc: Path = Path("/proc")) -> set[int]:
    """The sockets that a process holds; none where it is gone, or we may not look."""
    folder = f"{proc}/{pid}/fd"
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


class Row(NamedTuple):
    """A TCP socket in the kernel's tables. place: its own address and port, in hexadecimal."""

    place: str
    listens: bool
    uid: int
    inode: int

    @property
    def address(self) -> IPv4Address | IPv6Address:
        """Its own: words of 32 bits, each in this machine's order."""
        digits = self.place.rpartition(":")[0]
        words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
        packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
        if len(packed) == 4:
            return IPv4Address(packed)
        address = IPv6Address(packed)
        return address.ipv4_mapped or address

    @property
    def port(self) -> int:
        """Its own."""
        return int(self.place.rpartition(":")[2], 16)


def rows() -> list[Row]:
    """The TCP sockets of this host, of both families."""
    return [
        Row(place=fields[1], listens=fields[3] == _LISTENS, uid=int(fields[7]),
            inode=int(fields[9]))
        for fields in _fields()
    ]  # fmt: skip


def _fields() -> Iterator[list[str]]:
    """The columns of the kernel's tables."""
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        yield from map(str.split, lines)
