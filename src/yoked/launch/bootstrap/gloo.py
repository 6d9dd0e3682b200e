"""What NCCL has and Gloo lacks, for programs that count on it.

Found in torch 2.13, by trying every collective, operator and dtype over two ranks:

- the work of reduce_scatter, send and recv has no get_future;
- ReduceOp.AVG of whole numbers fails after the sum is done (NCCL rounds towards zero);
- ReduceOp.PREMUL_SUM is refused;
- float8 can be moved by nothing (NCCL moves it, and reduces it on no common GPU);
- all_gather wants tensors of one size (NCCL makes it of broadcasts where they differ).

AVG of floats, bfloat16, the names with _base, _into_tensor and _tensor, and all other futures
work, so they are left alone. Whether a gap is still there is tried at the start, on a group of
one rank, in about 50 ms: a later Gloo that fills it is left alone too.

The methods of ProcessGroup are replaced, since all of torch.distributed's Python functions end
there. What C++ calls itself (DistributedDataParallel, functional collectives) does not pass
here and needs none of it.
"""

# What stands in for a part of torch must reach into it.
# ruff: noqa: SLF001

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, Work

from yoked.launch.bootstrap.substitutions import log_substitution

# Methods of ProcessGroup, by the shape of their arguments. First come the outputs.
_REDUCING_IN_PLACE = ("allreduce", "allreduce_coalesced", "reduce")
_REDUCING = (
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
)
BETWEEN_TWO = ("send", "recv", "recv_anysource")
_MOVING = (
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
METHODS = (*_REDUCING_IN_PLACE, *_REDUCING, *_MOVING)
_FLOAT8 = frozenset(
    (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
)
_PROBE_TIMEOUT = timedelta(seconds=10)

_Call = Callable[..., Any]


class Supplied(Work):
    """Works that count as one: complete when all are and `finish` has run, once.

    outputs: what the collective fills, the value of its future as NCCL has it.
    """

    def __init__(
        self,
        works: Sequence[Work],
        outputs: list[Tensor],
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._works = works
        self._outputs = outputs
        self._finish = finish
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the outputs are there; raises what a part raised."""
        for work in self._works:
            work.wait(timeout)
        self._finish_once()
        return True

    def is_completed(self) -> bool:
        """Whether the outputs are there."""
        if not all(work.is_completed() for work in self._works):
            return False
        self._finish_once()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the outputs. A thread waits for it: programs chain callbacks to it."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                name = "yoked-future"
                threading.Thread(target=self._complete, name=name, daemon=True).start()
            return self._future

    def _finish_once(self) -> None:
        with self._lock:
            if self._finish is not None:
                self._finish()
                self._finish = None

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
    gaps = missing()
    for name in (*_REDUCING_IN_PLACE, *_REDUCING):
        if gaps & {"average of integers", "scaled sum"}:
            replace_method(name, partial(_reduce_by_sum, name=name, gaps=gaps))
    if "float8" in gaps:
        for name in _MOVING:
            replace_method(name, _move_as_bytes)
    if "future" in gaps:
        for name in (*_REDUCING, *BETWEEN_TWO):
            replace_method(name, _with_future)
    replace_method("allgather", _gather_unequal)


def missing() -> set[str]:
    """What this torch's Gloo lacks, by trying it on a group of one rank."""
    # Its type stubs lack most of it.
    backend: Any = c10d.ProcessGroupGloo
    options = backend._Options()
    # Loopback: the group has no peers, and the host's own name may resolve to nothing.
    options._devices = [backend.create_device(hostname="127.0.0.1")]
    options._timeout = _PROBE_TIMEOUT
    alone = backend(c10d.HashStore(), 0, 1, options)
    whole, real = torch.ones(2, dtype=torch.int64), torch.ones(2)
    trials: dict[str, Callable[[], object]] = {
        "average of integers": lambda: _try_sum(alone, whole, dist.ReduceOp.AVG),
        "scaled sum": lambda: _try_sum(alone, real, c10d._make_nccl_premul_sum(0.5)),
        "float8": lambda: alone.broadcast(
            [real.to(torch.float8_e4m3fn)], dist.BroadcastOptions()
        ).wait(),
        "future": lambda: _try_future(alone, real),
    }
    return {name for name, trial in trials.items() if _fails(trial)}


def _fails(trial: Callable[[], object]) -> bool:
    try:
        trial()
    except RuntimeError:
        return True
    return False


def _try_sum(alone: Any, tensor: Tensor, op: Any) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    alone.allreduce([tensor.clone()], options).wait()


def _try_future(alone: Any, tensor: Tensor) -> None:
    work = alone._reduce_scatter_base(tensor.clone(), tensor, dist.ReduceScatterOptions())
    work.wait()
    work.get_future()


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
        if work is None or isinstance(work, Supplied) or not on_gloo(group, outputs):
            return work
        return _Sole(work, list(tensors_in(outputs)))

    return call


class _Sole(Supplied):
    """One work, with what it lacks itself."""

    def __init__(self, work: Work, outputs: list[Tensor]) -> None:
        super().__init__([work], outputs)
        self._work = work

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """As its class has it."""
        log_substitution("gives reduce_scatter, send and recv a future", "Gloo's have none")
        return super().get_future()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _reduce_by_sum(native: _Call, *, name: str, gaps: set[str]) -> _Call:
    """Make AVG of whole numbers, and PREMUL_SUM, of a sum."""

    def call(group: ProcessGroup, *args: Any) -> Any:
        op = getattr(args[-1], "reduceOp", None)
        if op is None or not on_gloo(group, args):
            return native(group, *args)
        if op == dist.ReduceOp.PREMUL_SUM and "scaled sum" in gaps:
            return _scaled_sum(native, group, name, args)
        if op == dist.ReduceOp.AVG and _whole(args) and "average of integers" in gaps:
            return _whole_average(native, group, args)
        return native(group, *args)

    return call


def _whole(args: tuple[Any, ...]) -> bool:
    """Whether these are whole numbers. Of truth values NCCL refuses the average too."""
    kind = next(tensors_in(args)).dtype
    return not (kind.is_floating_point or kind.is_complex or kind == torch.bool)


def _scaled_sum(native: _Call, group: ProcessGroup, name: str, args: tuple[Any, ...]) -> Any:
    log_substitution("multiplies before it sums for ReduceOp.PREMUL_SUM", "Gloo does not know it")
    *tensors, options = args
    _, factor = options.reduceOp.__getstate__()
    if name in _REDUCING_IN_PLACE:
        for tensor in tensors_in(tensors):
            tensor.mul_(factor)
    else:
        tensors = [tensors[0], _mapped(lambda tensor: tensor * factor, tensors[1])]
    return _as_sum(native, group, [*tensors, options])


def _whole_average(native: _Call, group: ProcessGroup, args: tuple[Any, ...]) -> Any:
    log_substitution(
        "divides after the sum for ReduceOp.AVG of integers", "Gloo averages floats alone"
    )
    outputs = list(tensors_in(args[:1]))
    root = getattr(args[-1], "rootRank", group.rank())
    ranks = group.size()

    def divide() -> None:
        for output in outputs if group.rank() == root else ():
            output.div_(ranks, rounding_mode="trunc")

    work = _as_sum(native, group, args)
    if work is None:
        divide()
        return None
    return Supplied([work], outputs, divide)


def _as_sum(native: _Call, group: ProcessGroup, args: Sequence[Any]) -> Any:
    """The call with ReduceOp.SUM; the caller's options are as before afterwards."""
    options = args[-1]
    op = options.reduceOp
    options.reduceOp = dist.ReduceOp.SUM
    try:
        return native(group, *args)
    finally:
        options.reduceOp = op


def _move_as_bytes(native: _Call) -> _Call:
    """Move float8 as the bytes it is made of."""

    def call(group: ProcessGroup, *args: Any) -> Any:
        first = next(tensors_in(args), None)
        if first is None or first.dtype not in _FLOAT8 or not on_gloo(group, args):
            return native(group, *args)
        log_substitution("moves float8 as bytes", "Gloo does not know its dtypes")
        work = native(group, *_mapped(_bytes_of, args))
        return work if work is None else _Sole(work, list(tensors_in(args[:1])))

    return call


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype in _FLOAT8 else tensor


def _gather_unequal(native: _Call) -> _Call:
    """all_gather of tensors of unequal size, as one broadcast from each rank."""

    def call(group: ProcessGroup, *args: Any) -> Any:
        try:
            return native(group, *args)
        except RuntimeError:
            if not _unequal(args) or not on_gloo(group, args):
                raise
        log_substitution(
            "gathers by a broadcast from each rank", "Gloo gathers tensors of one size alone"
        )
        outputs, source = args[0][0], args[1][0]
        outputs[group.rank()].copy_(source)
        return Supplied([_broadcast(group, out, rank) for rank, out in enumerate(outputs)], outputs)

    return call


def _unequal(args: tuple[Any, ...]) -> bool:
    """Whether the arguments of allgather are one tensor and outputs of several sizes."""
    outputs = list(tensors_in(args[:1]))
    return len(args) > 1 and len({output.numel() for output in outputs}) > 1


def _broadcast(group: ProcessGroup, tensor: Tensor, root: int) -> Work:
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    return group.broadcast([tensor], options)


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


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Nested lists and tuples with each tensor changed and all else kept."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, part) for part in value)
    return value
