"""What NCCL has and Gloo lacks, for programs that count on it: a future of some works.

Found in torch 2.13, by trying every collective over two ranks: the work of reduce_scatter, send and
recv has no get_future. Gloo also refuses ReduceOp.AVG of whole numbers, ReduceOp.PREMUL_SUM,
float8, and all_gather of tensors of unequal size; no program was seen that needs these, and torch's
own error names them. Whether the futures are still missing is tried at the start, on a group of one
rank: a later Gloo that has them is left alone.

The methods of ProcessGroup are replaced, since all of torch.distributed's Python functions end
there. What C++ calls itself (DistributedDataParallel, functional collectives) does not pass
here and needs none of it.
"""

# What stands in for a part of torch must reach into it.
# ruff: noqa: SLF001

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, Work

from yoked.launch.bootstrap.substitutions import log_substitution

# Methods of ProcessGroup, whose first argument are the outputs.
_REDUCE_SCATTER = (
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
)
BETWEEN_TWO = ("send", "recv", "recv_anysource")
METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    *_REDUCE_SCATTER,
    *BETWEEN_TWO,
    "broadcast",
    "allgather",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "gather",
    "scatter",
)
_PROBE_TIMEOUT = timedelta(seconds=10)

_Call = Callable[..., Any]


class Supplied(Work):
    """A work of Gloo's, with a future. outputs: its value, as NCCL has it: what was filled."""

    def __init__(self, work: Work, outputs: list[Tensor]) -> None:
        super().__init__()
        self._work = work
        self._outputs = outputs
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """As of the work."""
        return self._work.wait(timeout)

    def is_completed(self) -> bool:
        """As of the work."""
        return self._work.is_completed()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the outputs. A thread waits for it: programs chain callbacks to it."""
        log_substitution("gives reduce_scatter, send and recv a future", "Gloo's have none")
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                name = "yoked-future"
                threading.Thread(target=self._complete, name=name, daemon=True).start()
            return self._future

    def _source_rank(self) -> int:
        return self._work._source_rank()

    def _complete(self) -> None:
        assert self._future is not None
        try:
            self.wait()
        except Exception as problem:  # noqa: BLE001 - who waits for the future must get it
            self._future.set_exception(problem)  # type: ignore[arg-type]  # its stub errs
        else:
            self._future.set_result(self._outputs)


def supply_what_gloo_lacks() -> None:
    """Replace the methods of ProcessGroup that need it. Once in a process, before any group."""
    if lacks_futures():
        for name in (*_REDUCE_SCATTER, *BETWEEN_TWO):
            replace_method(name, _with_future)


def lacks_futures() -> bool:
    """Whether this torch's Gloo lacks them, by trying it on a group of one rank."""
    # Its type stubs lack most of it.
    backend: Any = c10d.ProcessGroupGloo
    options = backend._Options()
    # Loopback: the group has no peers, and the host's own name may resolve to nothing.
    options._devices = [backend.create_device(hostname="127.0.0.1")]
    options._timeout = _PROBE_TIMEOUT
    alone = backend(c10d.HashStore(), 0, 1, options)
    tensor = torch.ones(2)
    try:
        work = alone._reduce_scatter_base(tensor.clone(), tensor, dist.ReduceScatterOptions())
        work.wait()
        work.get_future()
    except RuntimeError:
        return True
    return False


def replace_method(name: str, make: Callable[[_Call], _Call]) -> None:
    """Put `make(method)` in place of a method of ProcessGroup, where this torch has it."""
    native = getattr(ProcessGroup, name, None)
    if native is None:
        return
    supplied = make(native)

    @wraps(native)
    def method(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        # torch's own functions give no keywords; who does means this very method.
        use_native = kwargs or not args
        return native(group, *args, **kwargs) if use_native else supplied(group, *args)

    setattr(ProcessGroup, name, method)


def _with_future(native: _Call) -> _Call:
    def call(group: ProcessGroup, outputs: Any, *args: Any) -> Any:
        work = native(group, outputs, *args)
        if work is None or not on_gloo(group, outputs):
            return work
        return Supplied(work, list(tensors_in(outputs)))

    return call


def on_gloo(group: ProcessGroup, args: Any) -> bool:
    """Whether Gloo serves this group's tensors on their device."""
    first = next(tensors_in(args), None)
    return first is not None and serves(group, first.device)


def serves(group: ProcessGroup, device: torch.device) -> bool:
    """Whether Gloo is the backend of this group for a device."""
    try:
        return bool(group._get_backend(device).name() == "gloo")
    except RuntimeError:
        # The group serves no such device, and its own error says so best.
        return False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
