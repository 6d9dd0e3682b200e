"""Once the ranks of a Gloo group have met, nobody else is let in at its port.

Gloo goes on listening, though all its connections are there, and aborts the process when a stranger
has opened as many as it may have files (gloo/transport/tcp/listener.cc: accept). It offers no
way to stop. Closing the socket under it would end it too; but Linux can drop what arrives.
Source: socket(7), SO_ATTACH_FILTER; bpf(4) of the BSDs for the instruction.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from yoked.ranks.own_sockets import own_sockets

# Of asm-generic/socket.h; Python has no name for it.
_SO_ATTACH_FILTER = 26
# BPF_RET | BPF_K with 0: keep no byte of any packet.
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)


def shut_the_door(group: dist.ProcessGroup | None = None) -> None:
    """Let nobody in any more where a Gloo group of this rank listens.

    Called when all its pairs are connected: no packet of theirs comes to the listening socket.
    Where the port is not found, or the kernel is not Linux, it stays open.
    """
    if sys.platform != "linux":
        return
    told = _told_by_gloo(group)
    for listener in _listening():
        # Other parts of a program may listen as well.
        with listener, suppress(OSError):
            if _as_gloo_tells(listener.getsockname()) in told:
                _drop_all(listener)


def _told_by_gloo(group: dist.ProcessGroup | None) -> bytes:
    """What this rank told the others in the store, where it listens among it."""
    of = group or dist.group.WORLD
    assert of is not None, "its ranks have met"
    # No public way leads to a group's store.
    _, store = distributed_c10d._world.pg_map[of]  # noqa: SLF001
    key = f"cpu//0/{dist.get_rank(of)}"
    # A program's own kind of store may lack what is asked here.
    with suppress(RuntimeError):
        if store.check([key]):
            return bytes(store.get(key))
    return b""


def _as_gloo_tells(name: Any) -> bytes:
    """An address as the kernel has it in a sockaddr."""
    host, port = name[:2]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # An IPv6 address has 4 bytes of flow information before it.
    flow = bytes(4) if family == socket.AF_INET6 else b""
    return (
        struct.pack("=H", family) + struct.pack("!H", port) + flow + socket.inet_pton(family, host)
    )


def _listening() -> Iterator[socket.socket]:
    """A second descriptor of each socket at which this process waits for TCP connections."""
    for found in own_sockets():
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield found
        else:
            found.close()


def _drop_all(listener: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    # struct sock_fprog: the number of instructions, and where they lie.
    listener.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program))
    )
