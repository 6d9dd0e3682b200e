"""Ranks meet: they connect a process group, and prove the secret before they use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from yoked.errors import HostError, MeetingError
from yoked.ranks.door import shut_the_door
from yoked.ranks.proof import DEADLINE_S, first_line, prove_ranks
from yoked.ranks.secret import MAKE_ONE, launch_secret

_T = TypeVar("_T")


def meet(
    connect: Callable[[], _T],
    name: str = "the default group",
    *,
    deadline_s: float = DEADLINE_S,
) -> _T:
    """Connect a Gloo group, and return it once all its ranks have proved the secret.

    connect: makes the group, or starts the default one and returns None. name: of the group, the
    same on all its ranks. Collective. Raises MeetingError, and UsageError for a secret that
    cannot be used; HostError where a peer never came.
    """
    secret = launch_secret(os.environ)
    with marked():
        try:
            group = connect()
        except RuntimeError as problem:
            kind = HostError if _took_all_its_time(problem) else MeetingError
            raise kind(
                f"the ranks did not connect: {first_line(problem)}",
                fix=(
                    "yoked doctor    shows which host cannot reach which",
                    "now and then alone: somebody dials their ports (docs/concepts/security.md)",
                ),
            ) from problem
        of = group if isinstance(group, dist.ProcessGroup) else None
        prove_ranks(secret, launch_id(), group=of, name=name, deadline_s=deadline_s)
    shut_the_door(of)
    return group


def launch_id() -> str:
    """What this start of the ranks is called; the same on all of them.

    Of a run that is started again, each attempt has its own, so that no proof counts twice.
    """
    names = (os.environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "YOKED_ATTEMPT"))
    return "-".join(filter(None, names))


def tell_if_unproved(*, rank: int, world_size: int, local_world_size: int) -> None:
    """Say on rank 0 that a launch on several hosts has no secret.

    Ranks of one host meet on loopback, where only its other users reach them: there it would be
    said at each `torchrun --standalone` of everybody who has a machine for himself.
    """
    if rank != 0 or world_size == local_world_size or launch_secret(os.environ) is not None:
        return
    sys.stderr.write(
        "yoked: ranks are not proved to each other: without a secret, whoever reaches the ports "
        f"of this run can take a rank's place.\nfix: {MAKE_ONE}\n"
    )
    sys.stderr.flush()


@contextmanager
def marked() -> Iterator[None]:
    """While ranks meet, a file beside the errors of this attempt says that this one does.

    A stranger who has taken a rank's seat can make Gloo abort the process, which then leaves no
    word of its own. By the file the host program knows, and starts once more. A deadline of
    minutes that passed is a network's doing, and would pass again.
    """
    folder = os.environ.get("YOKED_LAUNCH_DIR")
    if folder is None:
        yield
        return
    mark = Path(folder) / mark_name(int(os.environ["RANK"]))
    mark.touch()
    try:
        yield
    except BaseException as problem:
        may_be_a_stranger = isinstance(problem, RuntimeError | MeetingError)
        if not may_be_a_stranger or _took_all_its_time(problem):
            mark.unlink()
        raise
    mark.unlink()


def _took_all_its_time(problem: BaseException) -> bool:
    """Whether torch gave up on a peer that never came."""
    said = str(problem).lower()
    return isinstance(problem, RuntimeError) and ("timeout" in said or "timed out" in said)


def mark_name(rank: int) -> str:
    """The file's name in the folder of the attempt."""
    return f"meeting.{rank}"
