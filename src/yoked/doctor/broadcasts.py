"""Whom each host hears when it speaks to all of a network at once, where connections fail.

The question for a network card is asked so. A switch may hand on what is for one card, and nothing
that is for all.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_interface
from typing import Any

from yoked.core.parallel import at_once
from yoked.doctor.dials import Endpoint
from yoked.errors import YokedError
from yoked.fleet.discover import Agent
from yoked.records.examination import Dial

_WAIT_S, _ANSWER_S = 0.9, 2.5
_MAY_BE = frozenset({"ETIMEDOUT", "EHOSTUNREACH"})
# Below those that kernels pick from, and above those that are known.
_PORTS = range(20_000, 29_000)


def heard_by(
    endpoints: Sequence[Endpoint],
    interfaces: Mapping[str, Sequence[Mapping[str, Any]]],
    dials: Sequence[Dial],
    agents: Mapping[str, Agent],
) -> dict[str, Mapping[str, Any]]:
    """By host the agent's answer to `broadcast`; empty where no connection met silence.

    interfaces: of each host, as the agent's call of this name tells them.
    """
    if not any(each.chosen and each.error in _MAY_BE for each in dials):
        return {}
    groups = {
        each.host: (each, group)
        for each in endpoints
        if each.chosen and (group := _group(each, interfaces[each.host])) is not None
    }
    token, port = secrets.token_hex(8), secrets.choice(_PORTS)

    def ask(name: str) -> Mapping[str, Any] | None:
        own, group = groups[name]
        others = [other for host, (_, other) in groups.items() if host != name]
        try:
            told: Mapping[str, Any] = agents[name].call(
                "broadcast",
                timeout_s=_ANSWER_S,
                token=token,
                host=name,
                interface=own.interface.partition(":")[0],
                address=own.address,
                group=group,
                groups=list(dict.fromkeys(others)),
                port=port,
                wait_s=_WAIT_S,
            )
        except YokedError:
            return None
        return told

    if len(groups) < 2:
        return {}
    answers = zip(groups, at_once(ask, groups), strict=True)
    return {name: told for name, told in answers if told is not None}


def _group(own: Endpoint, interfaces: Sequence[Mapping[str, Any]]) -> str | None:
    """Where a question for the card of an address goes; None: nobody asks one there."""
    for interface in interfaces:
        if interface["name"] != own.interface or interface["kind"] not in ("physical", "wireless"):
            continue
        for each in interface.get("addresses") or ():
            prefix = each.get("prefix")
            if each["address"] != own.address or prefix is None:
                continue
            address = ip_address(own.address)
            if address.version == 4:
                network = ip_interface(f"{address}/{prefix}").network
                return str(network.broadcast_address) if network.num_addresses > 2 else None
            last = int(address) & 0xFFFFFF
            return str(ip_address(int(ip_address("ff02::1:ff00:0")) | last))
    return None
