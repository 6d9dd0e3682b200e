"""What is wrong with the bare hosts of a trial: drawn by its seed.

A line is a fault of the lab, as after `yoked lab fault`.
"""

from __future__ import annotations

import random

# By group: what is of one group would hide, or undo, each other.
MENDABLE: dict[str, tuple[str, ...]] = {
    "firewall": (
        "firewall alpha",
        "firewall beta --reject",
        "firewall alpha --close-rendezvous",
        "firewall-out beta",
        "closed-ports alpha 32768-60999",
        "ufw alpha",
        "firewalld alpha",
        "iptables beta",
    ),
    "route": (
        "no-route beta alpha",
        "no-route alpha beta blackhole",
        "kill-switch beta",
        "wrong-neighbour beta alpha",
    ),
    "ports": ("port-range beta 40000 40001",),
    "exported": (
        "exported beta LD_PRELOAD=/gone.so",
        "exported alpha TMPDIR=/nowhere",
        "exported beta GLOO_DEVICE_TRANSPORT=IBVERBS",
        "exported alpha RANK=5",
    ),
    "limit": ("limit beta nofile 64", "limit alpha as 1500000", "limit beta fsize 2048"),
    "power": ("logout-kills beta",),
}
# What is up to hands: an ssh server that is off, a lid, a key, modes of files, a start file.
HANDS = ("no-ssh beta", "suspend beta", "host-key beta", "loose-keys beta", "exiting-shell alpha")
MOST = 3


def draw(seed: int) -> list[str]:
    """Up to three faults of different groups, none in a quarter of all trials."""
    dice = random.Random(seed)
    groups = dice.sample(sorted(MENDABLE), dice.randint(0, MOST))
    return [dice.choice(MENDABLE[group]) for group in groups]
