"""Fleets in which nothing is wrong, however odd they look: random networks, users and habits."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stage import Stage, stage

from yoked.lab.topology_file import read

# The networks of the claim about interfaces: several NICs, Docker's bridge, VPNs, IPv6 alone.
sys.path.append(str(Path(__file__).parents[1] / "interfaces"))
from random_topology import Case, make_case

USERS = ("ada", "ben", "eve", "zoe")
# Habits of hosts that are in order.
NO_PING = "echo 1 > /proc/sys/net/ipv4/icmp_echo_ignore_all"
NO_IPV6_ROUTES = "echo 0 > /proc/sys/net/ipv6/conf/all/accept_ra"
OPEN_FIREWALL = """nft -f - <<'RULES'
add table inet home
add chain inet home input { type filter hook input priority filter; policy drop; }
add rule inet home input ct state established,related accept
add rule inet home input iifname "lo" accept
add rule inet home input ip saddr { 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 } accept
add rule inet home input ip6 saddr fc00::/6 accept
add rule inet home input meta l4proto { icmp, ipv6-icmp } accept
RULES"""
GREETING = "echo 'test -t 1 && echo Welcome back' >> ~/.bashrc"
HABITS = {
    "does not answer ping": NO_PING,
    "takes no routes by IPv6": NO_IPV6_ROUTES,
    "firewall open to the home": OPEN_FIREWALL,
    "greets people": GREETING,
}


@contextmanager
def healthy(seed: int) -> Iterator[tuple[Stage, list[str]]]:
    """The fleet of a seed, and what makes it odd."""
    case: Case = make_case(seed)
    draw = random.Random(f"habits {seed}")
    wanted = read(case.toml.encode(), name=f"healthy-{seed}", source="random_topology")
    traits = list(case.traits)
    entries: dict[str, dict[str, Any]] = {
        name: {"interface": interface, "python": sys.executable}
        for name, (interface, _) in case.expected.items()
    }
    with stage(wanted, entries) as own:
        for name, programs in case.after.items():
            for argv in programs:
                own.lab.host(name).tool(argv)
        for host in wanted.hosts:
            if draw.random() < 0.5:
                own.add_user(host.name, draw.choice(USERS))
                traits.append(f"{host.name}: {own.users[host.name]}")
            for habit, line in HABITS.items():
                if draw.random() < 0.25:
                    own.as_root(host.name, line)
                    traits.append(f"{host.name} {habit}")
        yield own, traits
