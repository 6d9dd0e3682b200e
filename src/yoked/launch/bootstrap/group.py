"""The process group: started where the program does not, on what its ranks have.

A program that runs over several ranks and starts no group trains that many models, each on its
part of the data: nanochat does so on CPUs. The group is started when the program shows that
it needs one, and not before:

- something asks torch.distributed for the default group, which could only fail without one;
- an optimizer of the program's own is about to step, and no group exists: it may share gradients
  in its step where there is one. torch's own optimizers never do, so for them none is started: a
  program in which rank 0 alone trains would wait for the others there.

Asking whether a group exists starts none: most programs ask so that they can start their own,
with their own backend and deadline. A program that is known to ask for another reason
(nanochat) has it started beforehand. When a program does start its own after all, ours gives
way; it has keys of its own in the store, so that the two do not meet. It is started at most
once, since all ranks must take part and a rank that is ending would wait for the others.

The ranks of both groups prove the launch's secret as soon as they are connected
(`yoked.ranks.proof`); those of groups that the program adds do not.

NCCL serves ranks with CUDA alone. If any rank of the run has none, a group asked for on NCCL
is made on Gloo, on all of them.
"""

# What stands in for a part of torch must reach into it.
# ruff: noqa: SLF001

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from yoked.launch.bootstrap.substitutions import log_substitution, replace_everywhere
from yoked.ranks.door import shut_the_door
from yoked.ranks.meeting import launch_id, marked, meet
from yoked.ranks.proof import prove_ranks
from yoked.ranks.recorder import RECORDER
from yoked.ranks.secret import launch_secret

_T = TypeVar("_T")


def has_cuda() -> bool:
    """Whether NCCL could serve this rank. Starts no CUDA: the program may yet choose devices."""
    return torch.cuda.device_count() > 0 and dist.is_nccl_available()


class Ranks:
    """The ranks of this attempt, and a store in which they agree before any group exists.

    Every rank makes one as it starts. It says there whether it has CUDA, so that whoever asks
    later waits for no rank to do the same, only to have been started.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.count = int(os.environ["WORLD_SIZE"])
        if self.count > 1:
            self.store.set(f"cuda/{self.rank}", str(has_cuda()))

    @cached_property
    def store(self) -> Store:
        """Keys of ours alone, in the store that torchrun's environment names."""
        store, _, _ = next(rendezvous("env://", self.rank, self.count))
        return PrefixStore("yoked", store)

    def gather(self, name: str, value: str) -> list[str]:
        """What every rank says of `name`, by rank. Every rank must call it; it waits for all."""
        self.store.set(f"{name}/{self.rank}", value)
        return self._read(name)

    @cached_property
    def all_have_cuda(self) -> bool:
        """Whether NCCL could serve every rank. Waits until all have started."""
        if self.count == 1:
            return has_cuda()
        return all(said == str(True) for said in self._read("cuda"))

    def _read(self, name: str) -> list[str]:
        return [self.store.get(f"{name}/{rank}").decode() for rank in range(self.count)]


class Starter:
    """Starts the group when it is needed and the program has not."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._armed = True
        self._ours: dist.ProcessGroup | None = None
        self._native_init = distributed_c10d.init_process_group
        self._stepped: set[int] = set()

    def install(self) -> None:
        """Wait for the program to need a group. Once in a process."""
        replace_everywhere(distributed_c10d._get_default_group, self._found_or_started)
        replace_everywhere(distributed_c10d.init_process_group, self._program_starts)
        replace_everywhere(distributed_c10d.new_group, self._program_adds)
        if self._ranks.count > 1:
            register_optimizer_step_pre_hook(self._before_a_step)

    def start(self, because: str) -> None:
        """Start the group, if none exists or existed. Collective: every rank must call it."""
        if not self._armed or dist.is_initialized():
            return
        self._armed = False
        backend = "cpu:gloo,cuda:nccl" if self._ranks.all_have_cuda else "gloo"
        store = PrefixStore("group", self._ranks.store)
        meet(
            lambda: self._native_init(
                backend, store=store, rank=self._ranks.rank, world_size=self._ranks.count
            )
        )
        # The others may still be connecting, and the program may close the group at once.
        self._ranks.gather("started", "yes")
        self._ours = dist.group.WORLD
        log_substitution(f"started the process group on {backend}", because)

    @property
    def is_ours(self) -> bool:
        """Whether the default group is the one that was started here."""
        return self._ours is not None and dist.group.WORLD is self._ours

    def close(self) -> None:
        """End the group if it is ours and still there."""
        if self.is_ours:
            dist.destroy_process_group()
        self._ours = None

    def _before_a_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # A program may have several optimizers, each of which steps once in a step.
        if not self._stepped or id(optimizer) in self._stepped:
            RECORDER.step_done()
            self._stepped.clear()
        self._stepped.add(id(optimizer))
        if not type(optimizer).__module__.startswith("torch.optim."):
            self.start("an optimizer steps on several ranks and the program has started none")

    def _found_or_started(self, native: Callable[[], _T]) -> Callable[[], _T]:
        def default_group() -> _T:
            self.start("the program uses torch.distributed and has started none")
            return native()

        return default_group

    def _program_starts(self, native: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(native)

        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if self._ours is not None:
                log_substitution("closed its process group", "the program starts its own")
            self.close()
            self._armed = False
            call = signature.bind(*args, **kwargs)
            # Without a name torch takes NCCL if it was built with it, GPU or not.
            unnamed = "nccl" if dist.is_nccl_available() else "gloo"
            self._without_nccl(call, call.arguments.get("backend") or unnamed)
            self._connect(lambda: native(*call.args, **call.kwargs))

        return init_process_group

    def _connect(self, start: Callable[[], None]) -> None:
        """Start the program's group; its ranks prove the secret where they have Gloo.

        NCCL's own are not asked: a message between two of its ranks makes a communicator for
        this pair, hundreds of megabytes on a GPU. NCCL itself lets in who knows 64 random bits
        that lie in the launch's store alone (ncclUniqueId, bootstrap.cc).
        """
        with marked():
            # What it raises is what the program expects of torch.
            start()
            if dist.get_world_size() == 1:
                return
            # Processes that a rank started may be among them, which do not know of a proof.
            ours = (self._ranks.rank, self._ranks.count)
            if (dist.get_rank(), dist.get_world_size()) != ours:
                log_substitution(
                    "left its ranks unproved", "its process group is not that of the launch"
                )
            elif "cpu:gloo" not in dist.get_backend_config():
                log_substitution("left its ranks unproved", "its process group has no Gloo")
            else:
                prove_ranks(launch_secret(os.environ), launch_id())
                shut_the_door()

    def _program_adds(self, native: Callable[..., _T]) -> Callable[..., _T]:
        signature = inspect.signature(native)

        def new_group(*args: Any, **kwargs: Any) -> _T:
            call = signature.bind(*args, **kwargs)
            # Without a name it takes the default group's.
            self._without_nccl(call, call.arguments.get("backend") or "")
            return native(*call.args, **call.kwargs)

        return new_group

    def _without_nccl(self, call: inspect.BoundArguments, backend: str) -> None:
        """Ask for Gloo in place of NCCL, where a rank of the run cannot have it."""
        if "nccl" not in backend.lower() or self._ranks.all_have_cuda:
            return
        whose = "another rank" if has_cuda() else "this rank"
        log_substitution("made the process group on gloo in place of nccl", f"{whose} has no CUDA")
        call.arguments["backend"] = "gloo"
        # Both are for NCCL, and may name what this rank does not have.
        call.arguments.pop("device_id", None)
        call.arguments.pop("pg_options", None)
