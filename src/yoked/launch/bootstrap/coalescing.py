"""Sends and receives within torch's coalescing manager, on Gloo.

    with _coalescing_manager(group, device, async_ops=True) as manager:
        dist.isend(there, dst=1)
        dist.irecv(here, src=1)
    manager.wait()

NCCL begins all of them together at the end, and gives the manager one work for all. Gloo knows no
such thing (torch 2.13): with a device the manager raises, and without one each begins at once. The
program lets go of the works, as it has the manager; then nobody waits for them, and a `send` to a
rank that sends too waits for ever. So the works are kept here: within the manager nothing waits
for them, and at its end they are the manager's.
"""

# What stands in for a part of torch must reach into it.
# ruff: noqa: SLF001

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.distributed import distributed_c10d

from yoked.launch.bootstrap.gloo import BETWEEN_TWO, on_gloo, replace_method, serves
from yoked.launch.bootstrap.substitutions import log_substitution, replace_everywhere

# The works of each group whose manager is open.
_open: dict[ProcessGroup, list[Kept]] = {}


class Kept(Work):
    """A work for which nothing waits until its manager is closed."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self.closed = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for it, where its manager is closed."""
        return self._work.wait(timeout) if self.closed else True

    def is_completed(self) -> bool:
        """As of the work."""
        return self._work.is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        """As of the work."""
        return self._work.get_future()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def supply_coalescing() -> None:
    """Have Gloo's sends and receives coalesced as NCCL's are. Once in a process."""
    for name in BETWEEN_TWO:
        replace_method(name, _kept)
    replace_everywhere(distributed_c10d._coalescing_manager, _managed)


def _kept(native: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: ProcessGroup, tensors: Any, *args: Any) -> Any:
        work = native(group, tensors, *args)
        works = _open.get(group)
        if works is None or work is None or not on_gloo(group, tensors):
            return work
        log_substitution(
            "keeps the sends and receives of a coalescing manager until its end",
            "Gloo begins each at once",
        )
        works.append(Kept(work))
        return works[-1]

    return call


def _managed(native: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def manager(
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
        async_ops: bool = False,
    ) -> Iterator[Any]:
        group = group or distributed_c10d._get_default_group()
        if device is not None and serves(group, device):
            # It has no way to begin several at once.
            device = None
        works = _open[group] = []
        try:
            with native(group, device, async_ops) as coalesced:
                yield coalesced
        finally:
            del _open[group]
            for work in works:
                work.closed = True
        for work in works:
            if async_ops:
                coalesced.append(work)
            else:
                work.wait()

    return manager
