"""What names mean on this host: asked as Gloo, torch's store and every program here ask."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from yoked.agent.ask import named_values, text
from yoked.core.parallel import gather_within

# The resolver itself gives up after 5 s a server.
_LIMIT_S = 1.5
# Ranks of one host meet there, and torch's store asks for the name of each that connects.
_LOOPBACK = "127.0.0.1"
_ORDER = Path("/etc/nsswitch.conf")


def probe_names(names: Sequence[str] = (), addresses: Sequence[str] = ()) -> dict[str, Any]:
    """This host's own name, `names`, and whose `addresses` are: hostname; own and others {name:
    {addresses, error, took_s}}; reverse {address: {error, took_s}}, of loopback too; order, of
    nsswitch.conf(5) for hosts, None where there is none.
    """
    own, asked = socket.gethostname(), {*addresses, _LOOPBACK}
    acts: dict[str, Callable[[], dict[str, Any]]] = {
        **{name: partial(resolve, name) for name in {own, *names}},
        **{f"of {address}": partial(ask_name, address) for address in asked},
    }
    told, untold = gather_within(_LIMIT_S, acts)
    late = {name: {"error": why, "took_s": _LIMIT_S} for name, why in untold.items()}
    named = {name: told.get(name) or {"addresses": [], **late[name]} for name in {own, *names}}
    return {
        "hostname": own,
        "order": named_values(text(_ORDER)).get("hosts"),
        "own": named[own],
        "others": {name: named[name] for name in names},
        "reverse": {
            address: told.get(f"of {address}") or late[f"of {address}"] for address in asked
        },
    }


def resolve(name: str) -> dict[str, Any]:
    """The addresses of a name, in the resolver's order: the first is the one that is taken."""
    began_s = time.monotonic()
    addresses: list[str] = []
    error = None
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    except OSError as problem:
        error = problem.strerror or str(problem)
    except UnicodeError:
        error = "no name that a resolver could be asked for"
    return {"addresses": addresses, "error": error, "took_s": time.monotonic() - began_s}


def ask_name(address: str) -> dict[str, Any]:
    """What it takes to ask whose an address is, as torch's store asks of each that connects.

    The answer is nobody's business: a provider's name for an address has the address in it.
    """
    began_s = time.monotonic()
    error = None
    try:
        socket.getnameinfo((address, 0), socket.NI_NUMERICSERV)
    except OSError as problem:
        error = problem.strerror or str(problem)
    return {"error": error, "took_s": time.monotonic() - began_s}
