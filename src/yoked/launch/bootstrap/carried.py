"""What torch.distributed carries between this rank and others: the most in one call, in elements.

A call of a program's own passes ProcessGroup's methods, where each is counted. What C++ calls
itself (DistributedDataParallel, functional collectives) does not, and is read from torch's flight
recorder, which has the last 64 calls: it is asked where optimizers step, since gradients come just
before that. Both are counted by the largest call, because a loss or a metric that ranks share at
each step adds up to more than the gradients of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup

from yoked.launch.bootstrap.gloo import METHODS, tensors_in
from yoked.ranks.flights import flights

# As the flight recorder names dtypes of real numbers: Float, Float8_e4m3fn, ComplexFloat.
_REAL = ("Float", "Double", "Half", "BFloat16", "Complex")


class Carried:
    """floats, wholes: the most elements in one call so far, of real and of whole numbers."""

    def __init__(self) -> None:
        self.floats = self.wholes = 0
        # Whether the calls that C++ made are known as well; the backends of which there are some.
        self.known = True
        self._recorded = set[str]()

    def count_calls(self) -> None:
        """Count what passes the methods of ProcessGroup from now on. Once in a process."""
        for name in METHODS:
            native = getattr(ProcessGroup, name, None)
            if native is not None:
                setattr(ProcessGroup, name, self._counting(native))

    def read_flights(self) -> None:
        """Count the calls that torch's flight recorder still has."""
        if not dist.is_initialized():
            return
        for entry in [*(flights() or ()), *(flights(of_nccl=True) or ())]:
            # Such as gloo:all_reduce.
            self._recorded.add(str(entry["profiling_name"]).partition(":")[0])
            name, _ = entry["process_group"]
            if name:
                elements = sum(math.prod(size) for size in entry["input_sizes"])
                self._add(elements, real=str(*entry["input_dtypes"][:1]).startswith(_REAL))
        # One of which nothing is recorded may never be: older ones, or a program's own. Of Gloo
        # there are the trials of yoked.launch.bootstrap.gloo, in a group without a name.
        self.known = set(_backends()) <= self._recorded

    def _counting(self, native: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(native)
        def method(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            # What is wrong with a call is torch's to say.
            with suppress(Exception):
                if group.size() > 1:
                    # Outputs come first; a rank that only gives has none.
                    given = [*tensors_in(args[:1])] or [*tensors_in(args[1:2])]
                    self._add_tensors(given)
            return native(group, *args, **kwargs)

        return method

    def _add_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        tensors = list(tensors)
        if tensors:
            kind = tensors[0].dtype
            elements = sum(tensor.numel() for tensor in tensors)
            self._add(elements, real=kind.is_floating_point or kind.is_complex)

    def _add(self, elements: int, *, real: bool) -> None:
        if real:
            self.floats = max(self.floats, elements)
        else:
            self.wholes = max(self.wholes, elements)


def _backends() -> Iterable[str]:
    """Of the default group: cpu:gloo,cuda:nccl has two."""
    for each in dist.get_backend_config().split(","):
        yield each.rpartition(":")[2].lower()
