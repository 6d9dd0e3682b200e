"""ssh's ProxyCommand: a TCP connection from the lab's switch to a host. Standard library only.

    connect FOLDER ADDRESS PORT

The connection takes the way that a packet from another machine would: a cable that is out, or a
firewall that is closed, cuts this off too. ssh gets the socket itself (ProxyUseFdpass), still on
its way: so it says in its own words why there is no connection, and nothing stands between.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

from yoked.core.proc import ProcessId
from yoked.lab import syscalls

# Packets that ask for a connection, after the first: 1 and 3 s later; given up after 7 s.
_SYN_AGAIN = 2


def main() -> None:
    """Begin to connect, and hand the socket to ssh."""
    folder, address, port = sys.argv[1:4]
    lab = json.loads((Path(folder) / "lab.json").read_text())
    init = ProcessId.from_json(lab["init"])
    if not init.alive:
        sys.exit(f"the lab {lab['name']} is not up")
    syscalls.enter_namespaces(
        syscalls.open_namespaces(init.pid, ["net"], user_namespace=lab["user"] is not None)
    )
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _SYN_AGAIN)
        connection.setblocking(False)
        # Whatever comes of it, ssh meets it when it writes.
        connection.connect_ex((address, int(port)))
        connection.setblocking(True)
        _hand_over(connection)


def _hand_over(connection: socket.socket) -> None:
    """Send the socket to whoever has the other end of standard output; unix(7), SCM_RIGHTS."""
    handle = array.array("i", [connection.fileno()])
    with socket.socket(fileno=os.dup(1)) as way:
        way.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handle)])
