"""What tells a rank's spans of torch's own functions: there while the rank is traced, gone after.

Put around the methods of ProcessGroup in which torch.distributed's Python functions end; a future's
callback says when Gloo was done. Of a program of one's own also around backward(), the steps of
optimizers, the loading of data, and torch.save.

What C++ calls itself (DistributedDataParallel) does not pass there. After a backward() torch's
flight recorder has it, with the start. All of it was waited for by then, so it ended before; the
last one just before, since the end of backward() is what waits for it.
"""

# What stands around a part of torch must reach into it.
# ruff: noqa: SLF001

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from yoked.ranks.flights import flights
from yoked.ranks.spans import COLLECTIVES, SPANS

# Its stubs lack what is private.
_C10D: Any = distributed_c10d
# By method of ProcessGroup: as people call it. At its end every rank knows that all have begun.
_MEETINGS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "all_gather_single": "all_gather",
    "_allgather_base": "all_gather",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "barrier": "barrier",
}
_OTHERS = {
    "reduce": "reduce",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
}
_MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
_OPS = {**_MEETINGS, **_OTHERS, **_MESSAGES}
# Of an element, by the flight recorder's names of dtypes.
_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1}


class Instruments:
    """own_steps: the program tells its steps and phases itself, as the trainer does."""

    def __init__(self, *, own_steps: bool) -> None:
        self._own_steps = own_steps
        self._undo: list[Callable[[], None]] = []
        # Where the program or the bootstrap has put its own around ours meanwhile, ours stay.
        self._works = True
        self._numbers = Numbers()
        self._last_flight = -1
        # Of several ranks the bootstrap tells the recorder of steps.
        self._alone = os.environ.get("WORLD_SIZE", "1") == "1"
        self._steps = 0
        # Of a program that has several, the one that steps first counts.
        self._optimizer: Optimizer | None = None
        self._stepping_ns = 0

    def install(self) -> None:
        """Put them there."""
        if dist.is_available():
            from torch._C._distributed_c10d import ProcessGroup

            for name, op in _OPS.items():
                if hasattr(ProcessGroup, name):
                    self._put(ProcessGroup, name, self._collective(name, op))
        if self._own_steps:
            return
        self._put(torch.autograd, "backward", self._backward)
        self._put(torch, "save", self._named("save"))
        self._put(dataloader._BaseDataLoaderIter, "__next__", self._named("data"))
        for register, hook in (
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            self._undo.append(register(hook).remove)

    def remove(self) -> None:
        """Take all of them away."""
        self._works = False
        while self._undo:
            self._undo.pop()()

    def _put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        # A method of C++ is another thing there than what getattr has of it, which takes no self.
        had = vars(owner).get(name)
        ours = make(getattr(owner, name))
        setattr(owner, name, ours)

        def undo() -> None:
            if vars(owner).get(name) is not ours:
                return
            if had is None:
                delattr(owner, name)
            else:
                setattr(owner, name, had)

        self._undo.append(undo)

    def _collective(self, name: str, op: str) -> Callable[[Any], Any]:
        def make(native: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(native)
            def method(group: Any, *args: Any, **kwargs: Any) -> Any:
                began_ns = time.monotonic_ns()
                work = native(group, *args, **kwargs)
                # Whatever fails of it, the program goes on with its work.
                with suppress(Exception):
                    if self._works and SPANS.recording and group.size() > 1:
                        return self._note(group, name, op, args, began_ns, work)
                return work

            return method

        return make

    def _named(self, name: str) -> Callable[[Any], Any]:
        """Puts a span around a function."""

        def make(native: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(native)
            def function(*args: Any, **kwargs: Any) -> Any:
                if not self._works:
                    return native(*args, **kwargs)
                with SPANS.span(name):
                    return native(*args, **kwargs)

            return function

        return make

    def _backward(self, native: Callable[..., Any]) -> Callable[..., Any]:
        native = self._named("backward")(native)

        @wraps(native)
        def backward(*args: Any, **kwargs: Any) -> Any:
            result = native(*args, **kwargs)
            if self._works and SPANS.recording:
                # Another torch may have it in another form.
                with suppress(Exception):
                    self._note_flights()
            return result

        return backward

    def _note_flights(self) -> None:
        """Add what C++ called of Gloo's collectives in a backward() that has just ended."""
        now_ns = time.monotonic_ns()
        epoch_ns = time.time_ns() - now_ns
        row = None
        for entry in flights() or ():
            record, name = int(entry["record_id"]), str(entry["process_group"][0])
            if record <= self._last_flight or entry["is_p2p"]:
                continue
            self._last_flight = record
            number = int(entry["collective_seq_id"])
            began_ns = int(entry["time_created_ns"]) - epoch_ns
            backend, _, op = str(entry["profiling_name"]).partition(":")
            if (name, number) in self._numbers.told or backend != "gloo" or not name:
                continue
            # What came before this trace is still there when it is read first.
            if not SPANS.covers(began_ns):
                continue
            sizes = zip(entry["input_sizes"], entry["input_dtypes"], strict=True)
            size_bytes = sum(math.prod(size) * _BYTES.get(kind, 4) for size, kind in sizes)
            detail = {
                "op": op,
                "group": name[:80],
                "size": _C10D._resolve_process_group(name).size(),
                "number": number,
                "bytes": size_bytes,
                "peers": [],
                "meets": op in _MEETINGS.values() and size_bytes > 0,
                "done": False,
            }
            row = SPANS.add(COLLECTIVES, op, began_ns, now_ns, detail) or row
        if row is not None:
            row[4]["done"] = True

    def _note(
        self, group: Any, name: str, op: str, args: tuple[Any, ...], began_ns: int, work: Any
    ) -> Any:
        """Add a collective's span; returns the work that the program gets."""
        tensors = [*_tensors(args[:1])] or [*_tensors(args[1:2])]
        is_message, peers = name in _MESSAGES, []
        if is_message and name != "recv_anysource" and isinstance(args[1], int):
            peers = [dist.get_global_rank(group, args[1])]
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        on_gloo = _is_gloo(group, tensors)
        detail = {
            "op": op,
            "group": str(group.group_name)[:80],
            "size": group.size(),
            "number": self._numbers.of(group, is_message=is_message),
            "bytes": size_bytes,
            "peers": peers,
            # Nothing is exchanged of a tensor without elements.
            "meets": name in _MEETINGS and on_gloo and (size_bytes > 0 or op == "barrier"),
            # Until it is known when it was done.
            "done": False,
        }
        issued_ns = time.monotonic_ns()
        row = SPANS.add(COLLECTIVES, SPANS.purpose or op, began_ns, issued_ns, detail)
        if row is None:
            return work
        if is_message:
            return Awaited(work, row)
        # NCCL's future is done when the collective is queued.
        if work is not None and on_gloo:
            work.get_future().add_done_callback(lambda _: _end(row))
        return work

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        del optimizer
        self._stepping_ns = time.monotonic_ns()

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not SPANS.recording or torch.compiler.is_compiling():
            return
        SPANS.since(self._stepping_ns, f"optimizer: {type(optimizer).__name__}")
        self._optimizer = self._optimizer or optimizer
        if self._alone and optimizer is self._optimizer:
            self._steps += 1
            SPANS.step_done(self._steps)


class Numbers:
    """The number of a collective in its group, equal on all ranks, by torch's flight recorder.

    That is asked once for each group, which takes 1 ms. From there on it is counted by the group's
    own number, which counts messages between two ranks as well: those are taken off.
    """

    def __init__(self) -> None:
        # By group: its own number, and the flight recorder's, as it was asked.
        self._first: dict[str, tuple[int, int] | None] = {}
        self._messages = Counter[str]()
        # What passed here, by group and number.
        self.told = set[tuple[str, int]]()

    def of(self, group: Any, *, is_message: bool) -> int | None:
        """The number of what was started last; None: a message, or nobody knows."""
        name = str(group.group_name)
        if is_message:
            self._messages[name] += 1
            return None
        own = int(group._get_sequence_number_for_group())
        if name not in self._first:
            told = [
                int(entry["collective_seq_id"])
                for entry in flights() or ()
                if str(entry["process_group"][0]) == name and not entry["is_p2p"]
            ]
            self._first[name] = (own, max(told)) if told else None
            self._messages[name] = 0
        first = self._first[name]
        if first is None:
            return None
        number = first[1] + own - first[0] - self._messages[name]
        self.told.add((name, number))
        return number


class Awaited(dist.Work):
    """A message's work, whose span ends where the program has waited for it: Gloo tells no end."""

    def __init__(self, work: Any, row: list[Any]) -> None:
        super().__init__()
        self._work, self._row = work, row

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """As of the work."""
        done = bool(self._work.wait(timeout))
        _end(self._row)
        return done

    def is_completed(self) -> bool:
        """As of the work."""
        return bool(self._work.is_completed())

    def get_future(self) -> Any:
        """As of the work."""
        return self._work.get_future()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


def _end(row: list[Any]) -> None:
    row[3] = time.monotonic_ns()
    row[4]["done"] = True


def _is_gloo(group: Any, tensors: list[Tensor]) -> bool:
    device = tensors[0].device if tensors else torch.device("cpu")
    return bool(group._get_backend(device).name() == "gloo")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
