"""Act on every rank, and fail on every rank: none waits for one that could not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from yoked.errors import YokedError
from yoked.ranks.exchange import Read, checked, read_list, read_table, read_text
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.heartbeat import run_with_heartbeat

T = TypeVar("T")


def run_on_all_ranks(comm: Communicator, act: Callable[[], T]) -> T:
    """Act on all ranks; where one fails, all raise its error instead of waiting for it."""
    failure: Exception | None = None
    result: T | None = None
    try:
        result = act()
    except Exception as problem:  # noqa: BLE001 - raised again below, when all know of it
        failure = problem
    told = None if failure is None else _told(failure, comm.rank)
    heard = comm.all_gather_json(told, _failure)
    if failure is not None:
        raise failure  # its own keeps the traceback
    for rank, error in enumerate(heard):
        if error is not None:
            error.of_ranks = (comm.global_rank(rank),)
            raise error
    return result  # type: ignore[return-value]


def _told(failure: Exception, rank: int) -> dict[str, Any]:
    if isinstance(failure, YokedError):
        kind = type(failure).__name__
        return {"kind": kind, "what": failure.what, "fix": list(failure.fix)}
    what = f"rank {rank} ended with a bug in yoked: {type(failure).__name__}: {failure}"
    return {"kind": "YokedError", "what": what, "fix": [f"look at the output of rank {rank}"]}


def _failure(value: Any) -> YokedError | None:
    """The error that another rank told of, or None."""
    if value is None:
        return None
    told = read_table(value)
    # A kind that is not ours is only a word of another host.
    kinds = {kind.__name__: kind for kind in _kinds(YokedError)}
    kind = kinds.get(read_text(told["kind"]), YokedError)
    return kind(read_text(told["what"]), fix=read_list(read_text)(told["fix"]))


def _kinds(kind: type[YokedError]) -> Iterator[type[YokedError]]:
    yield kind
    for more in kind.__subclasses__():
        yield from _kinds(more)


def run_on_ranks(
    comm: Communicator,
    works: bool,
    act: Callable[[], T],
    what: str,
    waits_for: Callable[[int], None] = lambda _: None,
) -> T | None:
    """Act on the ranks that work, however long it takes; errors as in `run_on_all_ranks`.

    waits_for: as in `run_with_heartbeat`.
    """

    def attempt() -> tuple[T | None, YokedError | None]:
        try:
            return act(), None
        except YokedError as problem:
            return None, problem  # a heartbeat tells the end, not the error: `tell` does

    result, failure = run_with_heartbeat(comm, works, attempt, what, waits_for) or (None, None)

    def tell() -> T | None:
        if failure is not None:
            raise failure
        return result

    return run_on_all_ranks(comm, tell)


def run_on_rank0(comm: Communicator, act: Callable[[], object], read: Read[T]) -> T:
    """Act on rank 0 alone and give every rank its plain result as `read` has it, or its error."""
    result = run_on_all_ranks(comm, lambda: act() if comm.rank == 0 else None)
    first, *_ = comm.all_gather_json(result, lambda value: value)  # the others' are None
    return checked(first, 0, read)
