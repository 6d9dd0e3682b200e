"""Bringing hosts up: namespaces, cables, control groups, ssh; and the files that tell of them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.fleet import model
from yoked.fleet.file import format_fleet, read_fleet
from yoked.fleet.trust import remember
from yoked.lab import network, shaping, ssh, tools
from yoked.lab.cgroups import Cgroups
from yoked.lab.host import LabHost
from yoked.lab.hostgroup import HostGroup
from yoked.lab.inside import Inside
from yoked.lab.process import own_program, until
from yoked.lab.state import LabState
from yoked.lab.topology import Host, Interface, Shape

BOOT_DEADLINE_S = 20.0
SSH_DEADLINE_S = 10.0
SSH_PORT = 22
RELAY_LOG = "relay.log"
# Of the machine's memory, for what one host may write; it takes memory only when written.
STORAGE_FRACTION = 0.5
_TCP_LISTEN = "0A"
_NO_SHELLS = ("", "nologin", "false")


def bring_up(lab: LabState, busy: Sequence[int] = ()) -> None:
    """Everything of a lab whose first process is there. busy: the CPUs of other labs' hosts."""
    topology = lab.topology
    network.require_ipv6(topology)
    tools.run_ip(lab.switch, network.build_switch(topology))
    _start_relay(lab)
    if lossy := shaping.loss_of_topology(topology, lab.features):
        tools.run_nft(lab.switch, lossy)
    keys = ssh.Keys(lab.folder / "ssh")
    keys.make([host.name for host in topology.hosts])
    boot_hosts(lab, topology.hosts, busy)
    keys.write_client_config(lab.ssh_config, lab.folder, topology, _user_name())
    lab.fleet_file.write_text(_fleet_toml(lab), encoding="utf-8")
    remember(read_fleet(lab.fleet_file))
    lab.note(_notes(lab))


@dataclass
class _Booting:
    """A host that is on its way up."""

    spec: Host
    channel: socket.socket
    starter: subprocess.Popen[bytes]
    cpus: tuple[int, ...]
    group: HostGroup
    process: ProcessId | None = None


def boot_hosts(lab: LabState, hosts: Sequence[Host], busy: Sequence[int] = ()) -> None:
    """Start hosts side by side; each ends up in lab.hosts. Raises LabError."""
    groups = _groups(lab)
    cpus = {host.name: _cpus(lab, host, busy) for host in hosts}
    booting = [_start(lab, host, groups.host(host.name), cpus[host.name]) for host in hosts]
    try:
        for one in booting:
            one.process = _hear_of(one)
        for one in booting:
            lab.note(_expect(one, "ready")["notes"])
        for one in booting:
            assert one.process is not None
            _connect(lab, one)
            lab.hosts[one.spec.name] = lab.as_host(one.spec.name, one.process, one.cpus, one.group)
        # Known before they run: whoever comes after us, should we be killed, must find them.
        lab.save([host.name for host in hosts])
        for one in booting:
            one.channel.sendall(b"go\n")
        for one in booting:
            has_ssh = _expect(one, "ssh")["ssh"]
            assert one.process is not None
            _await_relay(lab, one.spec)
            if has_ssh:
                _await_ssh(one.process, one.spec.name)
    finally:
        for one in booting:
            one.channel.close()
            one.starter.wait()


def _groups(lab: LabState) -> Cgroups:
    """Those that the lab has: another login, from which a host starts anew, would make others."""
    return Cgroups.open(lab.id) if lab.hosts else Cgroups.find(lab.id, lab.is_root)


def _start(lab: LabState, host: Host, group: HostGroup, cpus: tuple[int, ...]) -> _Booting:
    _limit(lab, host, group)
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(BOOT_DEADLINE_S)
    starter: subprocess.Popen[bytes]
    with theirs, (lab.folder / f"{host.name}.log").open("ab") as log:
        starter = subprocess.Popen(
            own_program("hostinit"),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env={"YOKED_LAB": lab.id, "YOKED_LAB_HOST": host.name, "PATH": ssh.LOGIN_PATH},
        )
    config = _configuration(lab, host, group, cpus)
    ours.sendall(json.dumps(config).encode() + b"\n")
    return _Booting(host, ours, starter, cpus, group)


def _limit(lab: LabState, host: Host, group: HostGroup) -> None:
    lab.note(group.notes)
    # Where the machine gives none, the group's notes say so.
    if host.cores is not None and group.can("cpu"):
        group.set_cpu(host.cores)
    if host.memory_bytes is not None and group.can("memory"):
        group.set_memory(host.memory_bytes)


def _cpus(lab: LabState, host: Host, busy: Sequence[int] = ()) -> tuple[int, ...]:
    """The machine's CPUs that a host may use: those that it had, or those after the hosts
    before it, in turn, beginning with those that other labs use least.
    """
    count = Counter(busy)
    machine = sorted(os.sched_getaffinity(0), key=lambda cpu: (count[cpu], cpu))
    if host.name in lab.hosts and set(machine).issuperset(lab.hosts[host.name].cpus):
        return lab.hosts[host.name].cpus
    first = 0
    for other in lab.topology.hosts:
        if other.name == host.name:
            break
        first += other.cpus
    return tuple(sorted({machine[(first + i) % len(machine)] for i in range(host.cpus)}))


def _configuration(
    lab: LabState, host: Host, group: HostGroup, cpus: tuple[int, ...]
) -> dict[str, Any]:
    """What `yoked.lab.hostinit` wants to know."""
    keys = ssh.Keys(lab.folder / "ssh")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "name": host.name,
        "init": lab.init.pid,
        "user": lab.user,
        "storage_bytes": int(memory_bytes * STORAGE_FRACTION),
        "procs_files": [str(path) for path in group.procs_files],
        "cpus": cpus,
        "files": _files(lab, host),
        # The keys and files of all hosts are nothing for a host to see.
        "hidden": [str(lab.folder.parent)],
        "home": str(Path.home()),
        "carried": _carried(),
        # Jobs and runs of the machine are none of the host's: where its agents look for them.
        "apart": [str(Path.home() / ".local/state/yoked" / name) for name in ("jobs", "runs")],
        "ssh_files": keys.client_files(lab.topology, _user_name()),
        "sshd_files": keys.server_files(host),
        "sshd": ssh.server_command(),
        "sshd_environment": ssh.SERVER_ENVIRONMENT,
    }


def _carried() -> list[str]:
    """Folders of this Python and of yoked, shortest first: one may hold another."""
    places = {
        sys.prefix,
        sys.base_prefix,
        str(Path(__file__).resolve().parents[2]),
        str(Path.home()),
    }
    return sorted(places, key=len)


def _files(lab: LabState, host: Host) -> dict[str, str]:
    return {
        "/etc/passwd": _password_file(),
        **({"/etc/group": _group_file()} if lab.user is not None else {}),
        "/etc/hostname": host.name + "\n",
        "/etc/hosts": hosts_file(lab, host),
        # No name server answers here; asking one would cost seconds.
        "/etc/resolv.conf": "options timeout:1 attempts:1\n",
        "/etc/nsswitch.conf": _name_services(),
        "/etc/machine-id": f"{lab.id}{lab.topology.hosts.index(host):024x}\n",
    }


def hosts_file(lab: LabState, host: Host) -> str:
    """/etc/hosts of a host in good order: each name leads to an address that others reach."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    own_first = [host, *(other for other in lab.topology.hosts if other is not host)]
    lines += [f"{other.address} {other.name}" for other in own_first]
    return "\n".join(lines) + "\n"


def _password_file() -> str:
    """The machine's /etc/passwd with an account of ours that one can log in to.

    An ssh server that runs as that user refuses accounts without a password or a shell, and
    ssh looks for keys in the home that stands here, whatever HOME says.
    """
    user = pwd.getpwuid(os.getuid())
    shell = user.pw_shell if Path(user.pw_shell).name not in _NO_SHELLS else "/bin/sh"
    own = f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}:{user.pw_gecos}:{Path.home()}:{shell}"
    lines = Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
    others = [line for line in lines if line.partition(":")[0] != user.pw_name]
    return "\n".join([*others, own]) + "\n"


def _group_file() -> str:
    """The machine's /etc/group without tty, to which an ordinary user cannot give a terminal."""
    lines = Path("/etc/group").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("tty:")) + "\n"


def _name_services() -> str:
    """The machine's /etc/nsswitch.conf, but names come from /etc/hosts and DNS alone.

    And passwords from their file: systemd's module locks an account named nobody.
    """
    try:
        text = Path("/etc/nsswitch.conf").read_text(encoding="utf-8")
    except OSError:
        text = "passwd: files\ngroup: files\n"
    ours = ("hosts:", "shadow:")
    kept = [line for line in text.splitlines() if not line.strip().startswith(ours)]
    return "\n".join([*kept, "hosts: files dns", "shadow: files"]) + "\n"


def _hear_of(one: _Booting) -> ProcessId:
    """The host's first process, by the number that this process sees; unix(7), SCM_CREDENTIALS."""
    size = struct.calcsize("3i")
    try:
        data, ancillary, _, _ = one.channel.recvmsg(
            len(b'{"here": true}\n'), socket.CMSG_SPACE(size)
        )
    except TimeoutError:
        raise _failed(one, f"silent for {BOOT_DEADLINE_S:g} s") from None
    if b"here" not in data:
        rest = data + one.channel.recv(4096) if data else b""
        raise _failed(one, rest.decode(errors="replace").strip() or "it ended at once")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return ProcessId.of(struct.unpack("3i", payload[:size])[0])
    raise _failed(one, "the kernel did not tell its PID")


def _expect(one: _Booting, key: str) -> dict[str, Any]:
    line = b""
    try:
        while not line.endswith(b"\n"):
            piece = one.channel.recv(1)
            if not piece:
                raise _failed(one, "it ended")
            line += piece
    except TimeoutError:
        raise _failed(one, f"not {key} within {BOOT_DEADLINE_S:g} s") from None
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        raise _failed(one, message["error"])
    return message


def _failed(one: _Booting, why: str) -> LabError:
    return LabError(
        f"the host {one.spec.name} did not come up: {why}",
        fix="yoked lab list    names what this machine lacks",
    )


def _connect(lab: LabState, one: _Booting) -> None:
    """Cables, addresses, and the speed of its links."""
    assert one.process is not None
    relayed = shaping.relayed_ports(lab.topology, lab.features)
    if one.spec.name in lab.hosts:
        # Of its life before this; most of it is gone already, which ip calls an error.
        left = tools.text_of(network.unplug(one.spec, relayed))
        lab.switch.tool(["ip", "-force", "-batch", "-"], input=left, check=False)
    tools.run_ip(lab.switch, network.plug(one.spec, one.process.pid, lab.topology, relayed))
    inside = Inside(one.process, not lab.is_root)
    tools.run_ip(inside, network.configure_host(one.spec, lab.topology))
    shape_host(lab, one.spec, inside, lambda interface: interface.shape)


def _start_relay(lab: LabState) -> None:
    """The process that delays links, where the kernel cannot."""
    links = shaping.relay_links(lab.topology, lab.features)
    if not links:
        return
    tools.run_ip(lab.switch, network.build_relay())
    config = {"init": lab.init.pid, "user_namespace": not lab.is_root, "links": links}
    with (lab.folder / RELAY_LOG).open("ab") as log:
        done = subprocess.run(
            own_program("relay", json.dumps(config)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env={"YOKED_LAB": lab.id, "PATH": ssh.LOGIN_PATH},
            timeout=BOOT_DEADLINE_S,
            check=False,
        )
    if done.returncode:
        raise _relay_failed(lab, "it did not start")


def _await_relay(lab: LabState, host: Host) -> None:
    """Until the relay carries this host's frames: before, its cables have no carrier."""
    relayed = shaping.relayed_ports(lab.topology, lab.features)
    for each in host.joined:
        has_carrier = functools.partial(_has_carrier, lab.hosts[host.name], each.name)
        if each.port in relayed and not until(has_carrier, BOOT_DEADLINE_S):
            raise _relay_failed(lab, f"{each.name} of {host.name} has no carrier")


def _has_carrier(host: LabHost, device: str) -> bool:
    return "LOWER_UP" in host.tool(["ip", "link", "show", "dev", device]).stdout


def _relay_failed(lab: LabState, why: str) -> LabError:
    said = (lab.folder / RELAY_LOG).read_text(errors="replace").strip().rpartition("\n")[2]
    return LabError(
        f"the relay that delays links failed: {said or why}",
        fix="leave out delay and jitter, or `sudo modprobe sch_netem`",
    )


def shape_host(
    lab: LabState, host: Host, inside: Inside, shape_of: Callable[[Interface], Shape]
) -> None:
    """Give a host's links a speed, on both ends."""
    own_side: list[str] = []
    switch_side: list[str] = []
    for interface in host.joined:
        own, switchs = shaping.shape_ends(interface, shape_of(interface), lab.features)
        own_side += own
        switch_side += switchs
    tools.run_tc(inside, own_side)
    tools.run_tc(lab.switch, switch_side)


def _await_ssh(process: ProcessId, name: str) -> None:
    """Until the host's ssh server listens."""
    if not until(lambda: _has_listener(process.pid, SSH_PORT), SSH_DEADLINE_S):
        raise LabError(
            f"{name}: its ssh server does not listen",
            fix=f"yoked lab exec {name} -- cat {ssh.SERVER_FOLDER}/sshd.log",
        )


def _has_listener(pid: int, port: int) -> bool:
    """Whether somebody listens at a port, as /proc/net/tcp of the process's host has it."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines():
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == _TCP_LISTEN:
                    return True
    return False


def _user_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _fleet_toml(lab: LabState) -> str:
    """The fleet, for every other command's --fleet."""
    hosts = tuple(
        model.Host(
            host.name,
            interface=host.joined[0].name,
            python=sys.executable,
            console=("yoked", "lab", "exec", "--root", "--lab", lab.name, host.name, "--", "sh"),
        )
        for host in lab.topology.hosts
    )
    # Not by where it lies: the path in it is then absolute, and the file may be copied.
    fleet = model.Fleet(lab.name, hosts, Path(lab.fleet_file.name), lab.ssh_config)
    return format_fleet(fleet, {})


def _notes(lab: LabState) -> list[str]:
    """What the lab does without on this machine, for people."""
    notes = shaping.missing(lab.topology, lab.features)
    if ssh.server_command() is None:
        notes.append("hosts have no ssh server: install openssh-server")
    wanted = sum(host.cpus * host.speed for host in lab.topology.hosts)
    there = len(os.sched_getaffinity(0))
    if wanted > there:
        notes.append(f"the hosts want {wanted:g} CPUs, this machine has {there}: they share them")
    return notes
