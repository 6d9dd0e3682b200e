"""Free a rank that is blocked in a collective: end its connections to the other ranks.

Gloo's call then raises within milliseconds; its own `abort` frees nothing (torch 2.13 to 2.15).
NCCL's is aborted by torch: within a host it has no connections. The store's connection stays, so
that a new group can meet. Source: shutdown(2), ProcessGroupNCCL::abort in torch 2.13.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any

from yoked.errors import PeerLostError
from yoked.ranks.own_sockets import own_sockets

# Where ranks of this run are: addresses, with blanks between them.
ADDRESSES_VARIABLE = "YOKED_RANK_ADDRESSES"
# torch waits for an abort as long as the group waits for a collective.
_ABORT_S = 1.0
# The daemon says its word for each cause; each would interrupt the main thread anew.
_ONCE = threading.Lock()


class NcclAbortedError(PeerLostError):
    """Raised in the main thread of a rank that NCCL held."""

    def __init__(
        self,
        # Another thread can only name the class.
        what: str = "a peer was lost in a collective of NCCL, which was aborted",
        *,
        fix: str | Sequence[str] = (),
    ) -> None:
        super().__init__(what, fix=fix)


def free_rank() -> int:
    """Shut this process's TCP connections to hosts of the run; returns their number.

    Called by another thread than the main one.
    """
    # First: a watchdog of torch's that sees a connection end has the process stay for a minute.
    _abort_nccl()
    addresses = os.environ.get(ADDRESSES_VARIABLE, "").split()
    store_port = int(os.environ.get("MASTER_PORT", "0"))
    shut = 0
    for connection in own_sockets():
        with connection, suppress(OSError):
            address, port = connection.getpeername()[:2]
            at_store = port == store_port and ip_address(address).is_loopback
            if not at_store and plain_address(address) in addresses:
                connection.shutdown(socket.SHUT_RDWR)
                shut += 1
    return shut


def _abort_nccl() -> None:
    """Have torch abort its groups, once, if one of them is NCCL's."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not _has_nccl(c10d) or not _ONCE.acquire(blocking=False):
        return
    import ctypes

    # What waits for an aborted collective goes on as if it had ended well, with whatever lies in
    # its tensors. Nothing may be computed or saved of that.
    main = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(main or 0), ctypes.py_object(NcclAbortedError)
    )
    aborts = threading.Thread(target=c10d._abort_process_group, daemon=True)  # noqa: SLF001
    aborts.start()
    aborts.join(_ABORT_S)


def _has_nccl(c10d: Any) -> bool:
    kind = getattr(c10d, "ProcessGroupNCCL", None)
    if kind is None:
        # A torch for CPUs.
        return False
    cuda = c10d.torch.device("cuda")
    for group in list(c10d._world.pg_map):  # noqa: SLF001 - as torch's own abort finds them
        # A group without a backend for GPUs.
        with suppress(RuntimeError):
            if isinstance(group._get_backend(cuda), kind):  # noqa: SLF001
                return True
    return False


def plain_address(address: str) -> str:
    """An address without a zone; ::ffff:10.0.0.1 is 10.0.0.1."""
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
