"""Examinations made by hand: an ordinary home, and what goes wrong in it.

Three hosts: attic (rank 0's), garage and study. Each has a cable, docker0, a VPN and IPv6, and an
ordinary user without sudo; study is a laptop with radio too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from yoked.doctor.causes import findings_of
from yoked.records.examination import (
    Dial,
    Examination,
    Finding,
    HostSeen,
    Purpose,
    SshFailure,
    SshKind,
    World,
)

NAMES = ("attic", "garage", "study")
ADDRESS = {name: f"192.168.1.{number}" for number, name in enumerate(NAMES, start=11)}
MAC = {name: f"02:00:00:00:00:{number}" for number, name in enumerate(NAMES, start=11)}
VPN = {name: f"100.64.0.{number}" for number, name in enumerate(NAMES, start=11)}
GATEWAY = "192.168.1.1"
PYTHON = "/home/ada/.local/share/yoked/envs/abc/bin/python"
PORTS = (40_001, 50_002)
RENDEZVOUS = 29_500
# Two of the three, whose link is at stake where one is.
PAIR = ("attic", "garage")
ATTIC, GARAGE = ADDRESS["attic"], ADDRESS["garage"]
# How the first chain of a ruleset of nft begins.
INPUT = "type filter hook input priority filter; policy accept;"


def only(seen: Examination) -> Finding:
    """The one finding of an examination."""
    found = findings_of(seen)
    assert len(found) == 1, [(each.check, each.hosts, each.saw) for each in found]
    return found[0]


def interface(name: str, address: str, prefix: int, kind: str = "physical") -> dict[str, Any]:
    """An interface that is up, as the agent tells it."""
    own = {"address": address, "prefix": prefix, "link_local": False}
    return {
        "name": name,
        "kind": kind,
        "mtu_bytes": 1500,
        "speed_bit_per_s": 10**9,
        "addresses": [own],
        "gloo_address": address,
    }


def _link() -> dict[str, Any]:
    return {
        "up": True,
        "carrier": True,
        "speed_bit_per_s": 10**9,
        "duplex": "full",
        "mtu_bytes": 1500,
    }


def _folder(path: str) -> dict[str, Any]:
    return {
        "path": path,
        "exists": True,
        "writable": True,
        "free_bytes": 80 * 10**9,
        "free_inodes": 10**7,
        "filesystem": "ext4",
        "noexec": False,
        "read_only": False,
        "owner_uid": 1000,
        "error": None,
    }


def _names(own: str) -> dict[str, Any]:
    """In a home without a name server a host knows its own name, and no other."""
    unknown = {"addresses": [], "error": "Name or service not known", "took_s": 0.01}
    known = {"addresses": [ADDRESS[own]], "error": None, "took_s": 0.001}
    others = {name: known if name == own else unknown for name in NAMES}
    return {"hostname": own, "own": known, "others": others}


def _health(name: str) -> dict[str, Any]:
    home = "/home/ada"
    no_limit = [None, None]
    return {
        "names": _names(name),
        "routes": {
            ADDRESS[other]: {
                "source": ADDRESS[name],
                "interface": "eth0",
                "error": None,
                "neighbour": "reachable",
                "mac": MAC[other],
            }
            for other in NAMES
            if other != name
        },
        "gateway": {"address": GATEWAY, "interface": "eth0", "neighbour": "reachable"},
        "environment": {"HOME": home, "LANG": "en_GB.UTF-8"},
        "firewall": {
            "kind": None,
            "active": None,
            "rules": None,
            "tools": ["ufw", "nft", "iptables"],
        },
        "limits": {
            "nofile": [1024, 1 << 20],
            "nproc": [60_000, 60_000],
            "memlock": [8 << 20, 8 << 20],
            "as": no_limit,
            "fsize": no_limit,
            "data": no_limit,
            "stack": [8 << 20, None],
            "cpu": no_limit,
            "pids": {"max": 20_000, "current": 300},
            "umask": 0o022,
        },
        "folders": {
            "home": _folder(home),
            "state": _folder(f"{home}/.local/state/yoked"),
            "cache": _folder(f"{home}/.cache/yoked"),
            "tmp": _folder("/tmp"),
            "shm": _folder("/dev/shm"),
        },
        "ports": {"range": [32_768, 60_999], "reserved": "", "taken": 40, "owners": {"29500": []}},
        "processes": {"stale": [], "runs": [], "busy": []},
        "memory": {
            "available_bytes": 12 << 30,
            "swap_free_bytes": 2 << 30,
            "overcommit": 0,
            "commit_left_bytes": 4 << 30,
            "limit_bytes": None,
        },
        "power": {
            "on_battery": False if name == "study" else None,
            "lid": "open" if name == "study" else None,
            "lid_action": "suspend",
            "idle_action": "ignore",
            "can_inhibit": True,
            "kill_user_processes": False,
            "linger": False,
            "governor": "powersave",
            "throttled": False,
            "sleep_targets": "allowed",
        },
        "processors": {
            "online": 12,
            "affinity": 12,
            "quota_cores": None,
            "fast_cores": 4,
            "slow_cores": 4,
        },
        "wireless": {},
        "links": {
            "lo": {**_link(), "speed_bit_per_s": None, "duplex": None},
            "eth0": _link(),
            "docker0": {**_link(), "carrier": False, "speed_bit_per_s": None},
            "tailscale0": {**_link(), "speed_bit_per_s": None, "duplex": None},
        },
        "settings": {},
        "tables": {
            "links": [f"{each} mtu 1500" for each in ("lo", "eth0", "docker0", "tailscale0")],
            "addresses": [],
            "routes": [
                f"unicast default via {GATEWAY} dev eth0 table main proto dhcp scope global",
                "unicast 100.64.0.0/10 dev tailscale0 table 52 proto static scope link",
            ],
            "rules": ["5270: from all lookup 52"],
            "neighbours": [],
            "denials": [],
            "entries": [],
        },
        "compiler": {"cc": "/usr/bin/cc", "cxx": "/usr/bin/c++"},
        "kernel": {
            "ptrace_scope": 1,
            "conntrack_count": 200,
            "conntrack_max": 262_144,
            "rp_filter": {"all": 0, "eth0": 2},
        },
        "clock": {"time_s": 1.8e9, "service": "systemd-timesyncd"},
        "gpu": {"error": None, "busy": []},
        "shell": {"sources_noise": False},
        "virtual": {
            "container": None,
            "bridged": [],
            "networking": None,
            "portproxy": None,
            "inbound": None,
        },
        "untold": {},
    }


def host(name: str) -> HostSeen:
    """A host on which nothing is wrong."""
    return HostSeen(
        name=name,
        wanted={
            "name": name,
            "ranks": None,
            "device": "auto",
            "interface": "eth0",
            "address": ADDRESS[name],
            "python": None,
        },
        connect_s=0.4,
        clock_offset_s=0.02,
        clock_error_s=0.01,
        facts={
            "hostname": name,
            "machine": f"machine of {name}",
            "os": "Linux",
            "kernel": "6.8.0-generic",
            "arch": "x86_64",
            "usable_cores": 4,
            "memory_available_bytes": 12 << 30,
            "gpus": [],
            "free_bytes": {"home": 80 * 10**9, "state": 80 * 10**9, "cache": 80 * 10**9},
            "user": "ada",
            "uid": 1000,
            "home": "/home/ada",
            "on_battery": None,
        },
        interfaces=(
            interface("lo", "127.0.0.1", 8, "loopback"),
            interface("eth0", ADDRESS[name], 24),
            interface("docker0", "172.17.0.1", 16, "docker"),
            interface("tailscale0", VPN[name], 32, "vpn"),
        ),
        health=_health(name),
        torch={
            "python": PYTHON,
            "python_version": "3.12.3",
            "torch": "2.13.0+cpu",
            "torch_path": f"{PYTHON[:-11]}/lib/python3.12/site-packages/torch/__init__.py",
            "numpy": "2.4.6",
            "headers": True,
            "build": "cpu",
            "cuda_build": None,
            "gloo": True,
            "nccl": False,
            "cuda_available": False,
            "imported": True,
            "error": None,
            "took_s": 1.2,
        },
    )


def dial(source: str, target: str, port: int, purpose: Purpose, **changes: Any) -> Dial:
    """A dial that came through."""
    made = Dial(
        source=source,
        target=target,
        interface="eth0",
        address=ADDRESS[target],
        port=port,
        purpose=purpose,
        chosen=True,
        ok=True,
        answered_by=target,
        source_address=ADDRESS[source],
        rtt_s=0.0003,
        echo_s=(0.0003,) * 10 if purpose != "bulk" else (),
        took_s=0.0003,
        path_mtu_bytes=1500,
        bulk_bytes=262_144 if purpose == "bulk" else None,
    )
    return replace(made, **changes)


def _dials() -> list[Dial]:
    kinds: tuple[tuple[int, Purpose], ...] = (
        (PORTS[0], "ephemeral"),
        (PORTS[1], "ephemeral"),
        (RENDEZVOUS, "rendezvous"),
        (PORTS[0], "bulk"),
    )
    return [
        dial(source, target, port, purpose)
        for source in NAMES
        for target in NAMES
        for port, purpose in kinds
        if source != target
    ]


def home(names: Iterable[str] = NAMES) -> Examination:
    """An ordinary home, in which nothing is wrong. names: of its hosts."""
    wanted = tuple(names)
    return Examination(
        hosts=tuple(host(name) for name in wanted),
        dials=tuple(each for each in _dials() if {each.source, each.target} <= set(wanted)),
        world=World(ok=True, took_s=0.4),
        controller={"fleet": "/home/ada/yoked.toml", "ssh_config": None, "torch": "2.13.0"},
        took_s=3.0,
    )


def change(seen: Examination, name: str, **fields: Any) -> Examination:
    """The same, with other fields of one host."""
    hosts = tuple(replace(each, **fields) if each.name == name else each for each in seen.hosts)
    return replace(seen, hosts=hosts)


def told(seen: Examination, name: str, path: str, value: Any) -> Examination:
    """The same, with one host saying something else.

    path: into the record of the host, as in "health/limits/nofile" or "torch/gloo".
    """
    field, *keys = path.split("/")
    content: Any = copy.deepcopy(getattr(seen.host(name), field))
    place = content
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = value
    return change(seen, name, **{field: content})


def broken(
    seen: Examination,
    source: str | None = None,
    target: str | None = None,
    purposes: Iterable[str] = ("ephemeral", "rendezvous", "bulk"),
    ports: Iterable[int] = (*PORTS, RENDEZVOUS),
    **changes: Any,
) -> Examination:
    """The same, with dials that failed: from, to, for and at some; default: any, in silence."""
    silence = {
        "ok": False,
        "answered_by": None,
        "error": "ETIMEDOUT",
        "error_text": "Connection timed out",
        "rtt_s": None,
        "echo_s": (),
        "took_s": 2.2,
        "bulk_bytes": None,
    }
    wanted, at_ports = set(purposes), set(ports)
    dials = tuple(
        replace(each, **{**silence, **changes})
        if source in (None, each.source)
        and target in (None, each.target)
        and each.purpose in wanted
        and each.port in at_ports
        and each.chosen
        else each
        for each in seen.dials
    )
    return replace(seen, dials=dials, world=World(ok=None, reason="a dial failed"))


def beside(seen: Examination, interface_name: str, addresses: Mapping[str, str]) -> Examination:
    """The same, with dials that came through at addresses which the run would not use."""
    more = tuple(
        dial(
            source,
            target,
            PORTS[0],
            "ephemeral",
            address=addresses[target],
            interface=interface_name,
            chosen=False,
        )
        for source in addresses
        for target in addresses
        if source != target
    )
    return replace(seen, dials=(*seen.dials, *more))


def unreached(name: str, kind: SshKind, text: str, **more: str) -> HostSeen:
    """A host that has no agent. more: what else the failure has."""
    return HostSeen(name, host(name).wanted, failure=SshFailure(kind, text, **more))  # type: ignore[arg-type]


def firewall(kind: str, rules: list[str] | None = None) -> dict[str, Any]:
    """A firewall that is on."""
    tool: Literal["firewall-cmd"] | str = "firewall-cmd" if kind == "firewalld" else kind
    return {"kind": kind, "active": True, "rules": rules, "tools": [tool, "nft"]}


OFF = {"kind": "none", "active": False, "rules": [], "tools": ["nft"]}


def lines(found: Finding) -> list[tuple[str, str]]:
    """(host, command) of its fix."""
    return [(fix.host, fix.command) for fix in found.fix]
