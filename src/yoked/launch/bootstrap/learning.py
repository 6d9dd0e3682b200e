"""Whether this rank learns together with the others: what it tells of that to its host.

After steps 1, 2, 4, 8 ... of each optimizer it takes a checksum of a sample of the parameters, and
notes what torch.distributed has carried until then. No message is sent for it: the recorder writes
it beside what else the rank does, and hosts compare (yoked.diagnosis.alone).

The sample is 64 elements of each parameter, spread over it, and of at most 512 parameters. So ranks
whose checksums differ hold unlike weights; of those whose checksums are equal it is likely that
they hold equal ones. On a GPU it waits for what is queued there, as `loss.item()` does.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from yoked.diagnosis.alone import LIBRARIES, OTHER_WAYS
from yoked.launch.bootstrap.carried import Carried

_SAMPLED, _MOST_TENSORS = 64, 512
_GOLDEN = 2_654_435_769
# A program may make optimizers without end, such as one for each parameter or each trial.
_MOST_OPTIMIZERS = 4
# Of powers of 2: eight million steps.
_MOST_SUMS = 24


class Learning:
    """What this rank tells. is_ours: whether the default group is the bootstrap's."""

    def __init__(self, carried: Carried, is_ours: Callable[[], bool]) -> None:
        self._carried, self._is_ours = carried, is_ours
        self._known = WeakKeyDictionary[Optimizer, _Watched]()
        # In the order of their first steps. Kept, though the program may have dropped its own.
        self._watched: list[_Watched] = []
        # A program may have ended its own by the time at which it ends itself.
        self._group = "none"

    def install(self) -> None:
        """Look on at each step of the program's optimizers. Once in a process."""
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def told(self) -> dict[str, Any] | None:
        """As `yoked.diagnosis.vitals.Learning` has it. Another thread calls it."""
        if not self._watched:
            return None
        self._note_group()
        # First: what was carried until a sum was taken is then known too.
        optimizers = [each.told() for each in self._watched.copy()]
        known, carried = self._carried.known, self._carried
        return {
            "optimizers": optimizers,
            "group": self._group,
            "floats": carried.floats if known else None,
            "wholes": carried.wholes if known else None,
            "libraries": [name for name in LIBRARIES if name in sys.modules],
            "other_ways": any(name in sys.modules for name in OTHER_WAYS),
        }

    def _note_group(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self._group = "bootstrap" if self._is_ours() else "program"

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling() or optimizer in self._known:
            return
        watched = _Watched()
        self._known[optimizer] = watched
        if len(self._watched) < _MOST_OPTIMIZERS:
            watched.look(optimizer)
            self._watched.append(watched)

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling() or (watched := self._known.get(optimizer)) is None:
            return
        watched.steps += 1
        if watched in self._watched and watched.is_due:
            # Before the sum: whoever reads both meanwhile must not find that nothing was carried.
            with suppress(Exception):
                self._carried.read_flights()
            self._note_group()
            watched.look(optimizer)


class _Watched:
    """An optimizer, by what it trains."""

    def __init__(self) -> None:
        self.steps = 0
        self._layout = self._elements = self._largest = 0
        self._sums: tuple[tuple[int, int], ...] = ()

    @property
    def is_due(self) -> bool:
        """Whether it has taken 1, 2, 4, 8 ... steps."""
        return self.steps & (self.steps - 1) == 0 and len(self._sums) < _MOST_SUMS

    def look(self, optimizer: Optimizer) -> None:
        """Take the sum of its parameters as they are now; none where they cannot be read."""
        # A CUDA graph that is being recorded takes no copy to the host, and would be lost by it.
        begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if begun and torch.cuda.is_current_stream_capturing():
            return
        # Parameters may be of any class of the program's. A look at it must not end it.
        with suppress(Exception), torch.no_grad():
            tensors = list(_local(optimizer))
            if not self._elements:
                kinds = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
                self._layout = zlib.crc32(repr(kinds).encode())
                self._largest = max(tensor.numel() for tensor in tensors)
                self._elements = sum(tensor.numel() for tensor in tensors)
            self._sums = (*self._sums, (self.steps, checksum(tensors)))

    def told(self) -> dict[str, Any]:
        """As `yoked.diagnosis.vitals.Trained` has it."""
        return {
            "layout": self._layout,
            "elements": self._elements,
            "largest": self._largest,
            "sums": self._sums,
        }


def _local(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters, of those that are cut up this rank's part."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            local = getattr(parameter, "to_local", None)
            tensor = parameter.detach() if local is None else local().detach()
            if tensor.numel():
                yield tensor


@cache
def _places(elements: int) -> tuple[int, ...]:
    """Where the sample of so many elements lies.

    At a fixed distance they could all lie in one column of a matrix, whose input is always 0.
    """
    if elements <= _SAMPLED:
        return tuple(range(elements))
    # Multiples of the golden ratio leave no gap. Source: Knuth, Sorting and Searching, 6.4.
    return tuple((number * _GOLDEN % 2**32) * elements >> 32 for number in range(_SAMPLED))


def checksum(tensors: list[Tensor]) -> int:
    """CRC-32 of the sample that the head of this file describes."""
    every = -(-len(tensors) // _MOST_TENSORS)
    samples = defaultdict[torch.device, list[Tensor]](list)
    for tensor in islice(tensors, 0, None, max(1, every)):
        places = torch.tensor(_places(tensor.numel()), device=tensor.device)
        # Unlike reshape(-1), it copies no tensor that is laid out otherwise.
        sample = torch.take(tensor, places)
        samples[tensor.device].append(sample.view(torch.uint8))
    # One copy from each device.
    found = [torch.cat(each).cpu().tolist() for each in samples.values()]
    return zlib.crc32(bytes(byte for each in found for byte in each))
