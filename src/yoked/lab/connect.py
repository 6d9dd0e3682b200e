"""ssh's ProxyCommand: a TCP connection from the lab's switch to a host. Standard library only.

    connect FOLDER ADDRESS PORT

The connection takes the way that a packet from another machine would: a cable that is out, or a
firewall that is closed, cuts this off too.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from pathlib import Path

from yoked.lab import syscalls
from yoked.lab.process import ProcessId

CONNECT_TIMEOUT_S = 10.0
_PIECE = 1 << 16


def main() -> None:
    """Connect, then carry bytes both ways until one side ends."""
    folder, address, port = sys.argv[1:4]
    lab = json.loads((Path(folder) / "lab.json").read_text())
    init = ProcessId.from_json(lab["init"])
    if not init.alive:
        sys.exit(f"the lab {lab['name']} is not up")
    syscalls.enter_namespaces(
        syscalls.open_namespaces(init.pid, ["net"], user_namespace=lab["user"] is not None)
    )
    try:
        connection = socket.create_connection((address, int(port)), CONNECT_TIMEOUT_S)
    except OSError as problem:
        sys.exit(f"{address} port {port}: {problem}")
    connection.settimeout(None)
    _carry(connection)


def _carry(connection: socket.socket) -> None:
    sources = {0: connection.fileno(), connection.fileno(): 1}
    open_sources = set(sources)
    while open_sources:
        for source in select.select(list(open_sources), [], [])[0]:
            piece = os.read(source, _PIECE)
            if piece:
                _write_all(sources[source], piece)
                continue
            open_sources.discard(source)
            if source == 0:
                connection.shutdown(socket.SHUT_WR)
            else:
                return


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
