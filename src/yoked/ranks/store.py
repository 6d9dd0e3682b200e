"""The store through which torch's ranks meet, served until this process is ended.

    python -m yoked.ranks.store DESCRIPTOR PARENT_PID

DESCRIPTOR is a socket that listens: TCPStore itself would listen on all addresses. It is a process
of its own because it must outlive each rank, and because whoever starts ranks need not load torch.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import types
import warnings
from datetime import timedelta
from pathlib import Path

from yoked.parent_death import die_with_parent

# Of a request that waits for a key; whoever asks has a deadline of its own.
_PATIENCE = timedelta(seconds=120)


def serve(descriptor: int) -> object:
    """Serve a store at a socket that listens, as long as what is returned lives."""
    load_libtorch()
    from torch._C._distributed_c10d import TCPStore

    with socket.socket(fileno=os.dup(descriptor)) as listener:
        host, port = listener.getsockname()
    return TCPStore(
        host, port, None, True, _PATIENCE, wait_for_workers=False, master_listen_fd=descriptor
    )


def load_libtorch() -> None:
    """Load torch's C library alone, without the 2 s of Python around it.

    Two empty packages stand in for those that the library imports by name.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    (folder,) = found.submodule_search_locations
    for name in ("torch", "torch.distributed"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(folder, *name.split(".")[1:]))]
        sys.modules[name] = package
    sys.modules["torch"].distributed = sys.modules["torch.distributed"]  # type: ignore[attr-defined]
    # The library loads numpy if it can, which takes a third of the time, and warns otherwise.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    warnings.simplefilter("ignore")
    from torch._C import _c10d_init

    if not _c10d_init():
        raise RuntimeError("this torch was built without torch.distributed")


def main(argv: list[str]) -> None:
    """Serve until this process is ended, or its parent ends."""
    descriptor, parent = map(int, argv)
    die_with_parent(parent)
    # A person's Ctrl-C is for the ranks, which need the store while they save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = serve(descriptor)
    while store:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
