"""Gloo's listening sockets, once all ranks have connected: nobody else needs them any more.

Gloo keeps each open as long as its group lives, and accepts whoever dials; every such connection
takes a file descriptor of the rank. So what arrives there is dropped. Linux alone can do it.
Source: socket(7) for SO_ATTACH_FILTER, linux/filter.h for the one instruction.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# With it Gloo connects a pair of ranks when they first have something to say.
_LATE_CONNECTIONS = "TORCH_GLOO_LAZY_INIT"
# asm-generic/socket.h; Python's socket module does not have it.
_SO_ATTACH_FILTER = 26
# BPF_RET | BPF_K with 0: keep nothing of the packet.
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)


@contextmanager
def closed_behind() -> Iterator[None]:
    """Close what begins to listen within the block to newcomers, when the block is through."""
    before = _listening()
    yield
    if os.environ.get(_LATE_CONNECTIONS):
        return
    for inode, descriptor in _listening().items():
        if inode not in before:
            drop_newcomers(descriptor)


def drop_newcomers(descriptor: int) -> None:
    """Have a listening socket drop every packet; connections that it has accepted go on."""
    instructions = ctypes.create_string_buffer(_DROP, len(_DROP))
    # struct sock_fprog: a count, and after its padding a pointer.
    program = struct.pack("HP", 1, ctypes.addressof(instructions))
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _listening() -> dict[str, int]:
    """Descriptors of this process's listening TCP sockets, by what the kernel calls each."""
    if not sys.platform.startswith("linux"):
        return {}
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is wanted
        with contextlib.suppress(OSError):
            inode = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - a label, no path
            if inode.startswith("socket:") and _listens(int(name)):
                found[inode] = int(name)
    return found


def _listens(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as each:
        if each.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        # Gloo takes an address; what listens on all of them is another program's part.
        listens = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(listens) and each.getsockname()[0] not in ("0.0.0.0", "::")  # noqa: S104
