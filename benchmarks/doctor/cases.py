"""What is broken, and what the doctor must say of it: one explicit list.

A line of `inject` is a fault of the lab, as after `yoked lab fault`, or `HOST$ LINE`: what somebody
did there as root. `toml` is what somebody wrote into yoked.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# How the cause goes away: by the printed lines; by a person's hand (a plug, a power button, a
# router); from a registry that a lab does not reach (the line is `yoked install`, or pip's); or it
# need not, since the run trains all the same, and the finding warns of what is slow or fragile.
Cure = Literal["printed", "by hand", "install", "warns"]
Toml = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """One misconfiguration.

    inject: lines. checks: names of which the finding must bear one; on: hosts of which it must name
    one. network: see topologies.py. aliases: names that ssh knows, of other hosts. user: an
    ordinary account, instead of root's. flags: of `yoked doctor`. group: cases of different groups
    can be combined; "": this one stays alone.
    """

    name: str
    inject: str
    checks: str
    on: str = "beta"
    cure: Cure = "printed"
    group: str = ""
    network: str = "one"
    toml: Toml = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    flags: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        return self.inject.splitlines()


def _beta(**entry: Any) -> Toml:
    return {"beta": entry}


def _both(interface: str) -> Toml:
    return {name: {"interface": interface} for name in ("alpha", "beta")}


# A router answers, so that it can be told from a cable that is out.
_GATEWAY = "\n".join(
    f"{host}$ ip route add default via 192.168.77.254" for host in ("alpha", "beta")
)

# As after `apt install python3-torch`: the python3 of a login has torch.
_PYTHON_IN_PATH = f"beta$ echo 'export PATH={Path(sys.executable).parent}:$PATH' >> ~/.bashrc"

_FIREWALLS = (
    Case("high ports dropped", "firewall alpha", "firewall-ephemeral", "alpha", group="link"),
    Case("high ports rejected", "firewall alpha --reject", "firewall-reject", "alpha"),
    Case("every port dropped", "firewall alpha --close-rendezvous", "firewall-drop", "alpha"),
    Case("outgoing dropped", "firewall-out beta", "firewall-out", group="link"),
    Case(
        "a range of ports dropped", "closed-ports alpha 32768-60999", "firewall-ephemeral", "alpha"
    ),
    Case("few connections a minute", "connection-limit alpha 2", "connection-rate", "alpha"),
    Case("ufw", "ufw alpha", "firewall-ephemeral firewall-drop", "alpha"),
    Case("firewalld", "firewalld alpha", "firewall-reject", "alpha"),
    Case("iptables", "iptables alpha", "firewall-ephemeral firewall-drop", "alpha"),
)

_LINKS = (
    Case(
        "one direction only",
        "one-way alpha beta",
        "router-between lost-between",
        "alpha beta",
        "by hand",
        network="apart",
    ),
    Case(
        "client isolation",
        f"{_GATEWAY}\nclient-isolation beta:eth1",
        "client-isolation",
        "alpha beta",
        network="apart",
    ),
    Case("cable out", "cut beta:eth1", "no-carrier", "beta", "by hand", "link", "apart"),
    Case("a hop carries less", "mtu beta:eth1 1000", "mtu", "alpha beta", network="apart"),
    Case("packets lost", "lossy beta:eth1 5", "loss", "alpha beta", "warns", network="apart"),
    Case(
        "a port that fell back to less",
        "slow-link beta:eth1 20mbit",
        "slow-link slow-interface",
        "alpha beta",
        "warns",
        network="apart",
        flags=("--bandwidth",),
    ),
    Case(
        "slow wire beside a fast one",
        "",
        "slow-link slow-interface",
        "alpha beta",
        "warns",
        network="slow",
        toml=_both("eth0"),
        flags=("--bandwidth",),
    ),
)

_WAYS = (
    Case("interface switched off", "interface-down beta:eth1", "interface-down", network="apart"),
    Case("no address", "no-address beta:eth1", "no-address", "beta", "by hand", network="apart"),
    Case("wrong netmask", "wrong-netmask beta:eth1 32", "wrong-netmask", network="apart"),
    Case(
        "address of another host",
        "same-address beta:eth1 alpha",
        "same-address",
        "alpha beta",
        "by hand",
        network="apart",
    ),
    Case(
        "address behind a NAT",
        "foreign-address beta:eth1",
        "nat other-network",
        "alpha beta",
        network="apart",
    ),
    Case("route that says no", "no-route beta alpha", "forbidden-route no-route", group="link"),
    Case("route that swallows", "no-route beta alpha blackhole", "forbidden-route"),
    Case("VPN kill switch", "kill-switch beta", "forbidden-route other-way", group="link"),
    Case("wrong MAC written down", "wrong-neighbour beta alpha", "wrong-neighbour", group="link"),
    Case("next to no ports to give", "port-range beta 40000 40001", "port-range", group="ports"),
)

_NAMES = (
    Case("own name is loopback", "hosts-loopback beta", "own-name", "beta", "warns", "names"),
    Case("peer's name unknown", "no-resolve beta alpha", "peer-name", "beta", "warns", "names"),
    Case(
        "peer's name leads elsewhere",
        "stale-name beta alpha 192.168.77.99",
        "peer-name-wrong",
        "beta",
        "warns",
        "names",
    ),
    Case("own name is IPv6 first", "ipv6-first beta", "name-family", "beta", "warns"),
    Case(
        "name server silent",
        "no-resolve beta beta\nsilent-dns beta",
        "slow-names own-name-unresolved",
        "beta",
        "warns",
    ),
)

_LOGINS = (
    Case(
        "nobody knows the host's name",
        "",
        "ssh-unresolved",
        "beta",
        "by hand",
        aliases={"beta": "nowhere.invalid"},
    ),
    Case("no ssh server", "no-ssh beta", "ssh-refused", "beta", "by hand"),
    Case("host switched off", "kill beta", "ssh-timeout ssh-unreachable", "beta", "by hand"),
    Case("other host key", "host-key beta", "ssh-host-key", "beta", "by hand"),
    Case("keys that others may write", "loose-keys beta", "ssh-denied"),
    Case("login shell runs nothing", "login-shell beta", "ssh-shell"),
    Case("start file prints", "noisy-shell beta", "ssh-shell shell-noise", "beta", "warns"),
    Case("start file ends the shell", "exiting-shell beta", "ssh-shell"),
    Case("start file takes long", "slow-shell beta 6", "ssh-slow", "beta", "warns"),
    Case("lid closed", "suspend beta", "ssh-timeout ssh-unreachable", "beta", "by hand"),
)

_ENVIRONMENT = (
    Case("PYTHONHOME leads nowhere", "exported beta PYTHONHOME=/nowhere", "ssh-python python-home"),
    Case("LD_PRELOAD leads nowhere", "exported beta LD_PRELOAD=/gone.so", "preload", group="shell"),
    Case("TMPDIR leads nowhere", "exported beta TMPDIR=/nowhere", "tmp-missing", group="shell"),
    Case(
        "transport unknown to Gloo", "exported beta GLOO_DEVICE_TRANSPORT=IBVERBS", "gloo-transport"
    ),
    Case(
        "an old job exported", "exported beta RANK=5\nexported beta WORLD_SIZE=9", "shell-variables"
    ),
)

_LIMITS = (
    Case("few open files", "limit beta nofile 64", "open-files", group="limit"),
    Case(
        "few processes",
        "beta$ echo 'ulimit -u 24' > /home/ada/.bashrc && chown ada /home/ada/.bashrc",
        "process-limit",
        user="ada",
    ),
    Case("little address space", "limit beta as 1500000", "address-space", group="limit"),
    Case("small files only", "limit beta fsize 2048", "file-size", group="limit"),
)

_FOLDERS = (
    Case("disk full", "disk-full beta", "disk-full", "beta", "by hand", "disk"),
    Case("no file more on the disk", "no-inodes beta", "no-inodes", "beta", "by hand"),
    Case("home is read-only", "read-only beta ~", "read-only"),
    Case(
        "state folder belongs to root",
        "beta$ mkdir -p /home/ada/.local/state/yoked; chown -R 0:0 /home/ada/.local",
        "folder-denied",
        user="ada",
    ),
    Case("no programs from /tmp", "no-exec beta /tmp", "noexec", "beta", "warns"),
    Case("small shared memory", "small-shm beta 1", "shared-memory", "beta", "warns", "shm"),
)

_MACHINE = (
    Case(
        "rank of an earlier run",
        "stale-process beta 29500",
        "stale-ranks",
        "beta",
        "by hand",
        group="process",
    ),
    Case("other service at 29500", "taken-port beta 29500", "port-taken", "beta", "warns"),
    Case("busy processor", "busy-cpu beta", "busy-host", "beta", "warns", network="two-cores"),
    Case("more ranks than cores", "", "ranks", "beta", "warns", toml=_beta(ranks=6)),
    Case("on battery", "battery beta", "battery", "beta", "warns", "power"),
    Case("a logout kills", "logout-kills beta", "logout", "beta", group="power"),
)

_SOFTWARE = (
    Case("no compiler", "no-compiler beta", "compiler", "beta", "warns", "software"),
    Case("library of torch gone", "broken-torch beta", "torch-import", "beta", "install"),
    Case("other torch", "different-torch beta 2.12.1", "torch-version", "beta", "install"),
    Case("no torch", "", "torch-missing", "beta", "install", toml=_beta(python="/usr/bin/python3")),
    Case(
        "interpreter not there",
        _PYTHON_IN_PATH,
        "python-missing",
        toml=_beta(python="/opt/gone/python"),
    ),
    Case("GPU asked for, none there", "", "device-missing", toml=_beta(device="cuda")),
)

_TOML = (
    Case("interface not there", "", "interface-gone", toml=_beta(interface="enp99s0")),
    Case(
        "Docker's bridge named",
        "",
        "private-interface",
        "alpha beta",
        network="vpn",
        toml=_both("docker0"),
    ),
    Case(
        "VPN named on one host",
        "",
        "families",
        "alpha beta",
        network="vpn",
        toml=_beta(interface="tailscale0"),
    ),
    Case(
        "VPN named beside a faster wire",
        "",
        "slow-link",
        "alpha beta",
        "warns",
        network="vpn",
        toml=_both("tailscale0"),
        flags=("--bandwidth",),
    ),
    Case(
        "two names of one host",
        "",
        "same-machine",
        "beta gamma",
        toml={"gamma": {}},
        aliases={"gamma": "beta"},
    ),
)

CASES: tuple[Case, ...] = (
    *_FIREWALLS,
    *_LINKS,
    *_WAYS,
    *_NAMES,
    *_LOGINS,
    *_ENVIRONMENT,
    *_LIMITS,
    *_FOLDERS,
    *_MACHINE,
    *_SOFTWARE,
    *_TOML,
)

# The exercises of docs/tutorial/lab.md that are visible before a launch. 6 is answered by
# `--dry-run`, 8 by measuring at the start; 9 cannot happen to `yoked train`, which sends the data.
LESSONS: Mapping[str, str] = {
    "1: they meet, then silence": "high ports dropped",
    "2: the port is taken": "rank of an earlier run",
    "3: it dies with its login": "a logout kills",
    "4: two hosts, slower than one": "a port that fell back to less",
    "5: the slow host sets the pace": "busy processor",
    "7: an address that nobody else can dial": "own name is loopback",
    "10: the wrong interface": "Docker's bridge named",
    "10: two families": "VPN named on one host",
    "10: the slow one": "VPN named beside a faster wire",
    "one more: the lid is closed": "lid closed",
}


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
