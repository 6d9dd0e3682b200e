"""What goes through this host's cards before a look sends anything, and which programs have it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from yoked.agent import tcp
from yoked.agent.counters import SIDES, Count, readings
from yoked.agent.listeners import socket_inodes
from yoked.agent.netlink import can_ask
from yoked.core.proc import all_processes

# A shorter time tells nothing; what is less is nobody's trouble, our own questions too.
_LEAST_S, _LEAST_BYTES, _LEAST_BIT_PER_S = 0.02, 1_500_000, 40e6
_SAMPLE_S = 0.15
_MOST_PROGRAMS = 4


def probe_traffic() -> dict[str, Any] | None:
    """cards {interface: rx_bit_per_s, tx_bit_per_s} of those through which much went before
    anything was sent; programs [{pid, command, address, port, connections, rx_bit_per_s,
    tx_bit_per_s}] that have it, address and port: of the far end. None: it is not known.
    """
    if len(readings) < 2:
        return None
    cards = busy_cards(*readings)
    return {"cards": cards, "programs": _programs() if cards and can_ask() else []}


def busy_cards(first: Count, then: Count) -> dict[str, dict[str, float]]:
    """The cards through which much went between two readings."""
    passed_s = then.time_s - first.time_s
    found = {}
    for name, counted in then.bytes.items() if passed_s >= _LEAST_S else ():
        before = first.bytes.get(name)
        if before is None:
            continue
        passed = [counted[number] - before[number] for number in range(len(SIDES))]
        if max(passed) >= max(_LEAST_BYTES, _LEAST_BIT_PER_S * passed_s / 8):
            found[name] = {
                f"{side}_bit_per_s": 8 * passed[number] / passed_s
                for number, side in enumerate(SIDES)
            }
    return found


def _programs() -> list[dict[str, Any]]:
    """Who sends and gets much now, those first that have most."""
    before = dict(_connections())
    time.sleep(_SAMPLE_S)
    found: dict[tuple[int, str, int], dict[str, Any]] = {}
    owners = _owners()
    for place, each in _connections():
        old = before.get(place)
        if old is None:
            continue
        process = owners.get(each.inode)
        pid = 0 if process is None else process[0]
        # Of what listens here its own port tells more than that of who came.
        key = (pid, each.remote[0], min(each.remote[1], each.local[1]))
        mine = found.setdefault(
            key,
            {
                "pid": pid or None,
                "command": "" if process is None else process[1],
                "address": key[1],
                "port": key[2],
                "connections": 0,
                "rx_bit_per_s": 0.0,
                "tx_bit_per_s": 0.0,
            },
        )
        mine["connections"] += 1
        mine["rx_bit_per_s"] += 8 * (each.received_bytes - old.received_bytes) / _SAMPLE_S
        mine["tx_bit_per_s"] += 8 * (each.sent_bytes - old.sent_bytes) / _SAMPLE_S

    def rate(each: dict[str, Any]) -> float:
        return float(max(each["rx_bit_per_s"], each["tx_bit_per_s"]))

    much = [each for each in found.values() if rate(each) >= _LEAST_BIT_PER_S / 10]
    return sorted(much, key=rate, reverse=True)[:_MOST_PROGRAMS]


def _connections() -> Iterator[tuple[tuple[Any, Any], tcp.Connection]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            for each in tcp.connections(family):
                if each.local[0] != each.remote[0]:
                    yield (each.local, each.remote), each
        except OSError:
            continue


def _owners() -> dict[int, tuple[int, str]]:
    """{inode of a socket: (number, command) of its process}, but our own."""
    own = os.getpid()
    return {
        inode: (process.pid, process.command())
        for process in all_processes()
        if process.pid != own
        for inode in socket_inodes(process.pid)
    }
