"""Rules of the network of a host and of whom it reaches, in an answer or a saved report."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from yoked.records.rules import (
    OddError,
    address,
    all_of,
    any_of,
    complete,
    count,
    each,
    fields,
    flag,
    interface,
    line,
    mac,
    named,
    number,
    optional,
    path,
    pid,
    port,
    prefix,
    ssh_name,
    symbol,
    text,
    word,
)

_ADDRESS = fields(
    {"address": address, "prefix": prefix, "link_local": flag},
    needed=("address",),
)


def _own_address(value: Any, path: str, odd: list[str]) -> Any:
    """An address of an interface; its prefix is one of its family."""
    found = _ADDRESS(value, path, odd)
    # A link-local address may name its interface behind a % (RFC 4007).
    most = ip_address(found["address"].partition("%")[0]).max_prefixlen
    if (found.get("prefix") or 0) > most:
        raise OddError(f"{path}.prefix")
    return found


INTERFACES = each(
    fields(
        {
            "name": interface,
            "kind": word,
            "mtu_bytes": count,
            "speed_bit_per_s": count,
            "changes": count,  # of its signal, since the start
            "fresh": each(address),  # addresses that came after the agent
            "addresses": each(_own_address),
            "gloo_address": address,
        },
        needed=("name", "kind"),
        strict=("gloo_address",),
    )
)

_HOP = fields({"interface": interface, "gateway": address, "weight": count}, needed=("interface",))
ROUTES = named(
    address,
    fields(
        {
            "source": address,
            "interface": interface,
            "error": symbol,
            "neighbour": word,
            "mac": mac,
            "network": address,  # of the route that it takes
            "prefix": prefix,
            "gateway": address,
            "hops": each(_HOP),  # where the route has several
            "metrics": named(word, any_of(count, word)),  # of the route
            "kind": word,
            "table": count,
            "sending": symbol,  # why the kernel did not send a datagram
            "unkeyed": flag,  # whether an IPsec policy withheld it
        }
    ),
)
FIREWALL = fields(
    {
        "kind": word,
        "active": flag,
        "rules": each(line),
        "tools": each(word),
        "ruleset": each(line),  # as nft has all rules, where `rules` has another form
        "old": each(line),  # of the old iptables, beside others
        "long": named(line, count),  # chains with very many rules, which were not read
        "readers": each(count),  # queues from which a program takes packets
        "policies": each(line),  # of IPsec
    }
)
LINKS = named(
    interface,
    fields(
        {
            "up": flag,
            "carrier": flag,
            "speed_bit_per_s": count,
            "duplex": word,
            "mtu_bytes": count,
            "mac": mac,
            "lower": each(interface),  # that it lies over
            "queues": each(line),  # of a person's choice, as tc has them
            "ends_s": named(address, count),  # until the kernel takes it away
        }
    ),
)
_RATES = dict.fromkeys(("rx_bit_per_s", "tx_bit_per_s"), number)

# What others send before anything of a look is sent.
TRAFFIC = fields(
    {
        "cards": named(interface, fields(_RATES)),
        "programs": each(
            fields(
                {
                    "pid": optional(pid),
                    "command": text,
                    "address": address,
                    "port": port,
                    "connections": count,
                    **_RATES,
                },
                needed=("command", "address", "port"),
            )
        ),
    }
)
# Programs that change the network while they run.
WRITERS = fields(
    {
        "managers": each(word),
        # They make packets by themselves.
        "raw": each(complete({"pid": pid, "command": text})),
        "loops": each(
            fields(
                {"pid": pid, "command": text, "changes": each(word), "words": line},
                needed=("pid", "command", "changes", "words"),
            )
        ),
    }
)
# Of the call `broadcast`: whose words to all came to a program, and to the card; None: it could not
# be heard.
BROADCAST = fields(
    {"sent": flag, "heard": optional(each(ssh_name)), "card": optional(each(ssh_name))}
)
# Programs that carry a tunnel's packets, and what peers may send.
TUNNELS = fields(
    {
        "owners": each(
            complete(
                {
                    "pid": pid,
                    "command": text,
                    "interface": optional(interface),
                    "stopped": flag,
                    "config": optional(path),
                }
            )
        ),
        "allows": each(line),
    }
)

DIAL = fields(
    {
        "ok": flag,
        "answered_by": line,
        "error": symbol,
        "error_text": line,
        "rtt_s": number,
        "echo_s": all_of(number),
        "goodput_bytes_per_s": number,
        "path_mtu_bytes": count,
        "mss_bytes": count,
        "resent": number,
        "source_address": address,
        "took_s": number,
        "connected": flag,
        "arrived_bytes": count,
        "unsent": flag,
    },
    needed=("ok", "echo_s", "connected", "arrived_bytes"),
    strict=("error",),
)
