"""Why a launch failed: the rank that failed first, in its own words.

torchrun reports that a rank failed. What of, the rank says in its error file; and a rank
that was killed says nothing, but its peers' complaints about it are not the cause.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yoked import errors
from yoked.errors import UsageError, YokedError

_LAST_LINES = 15
# torch.distributed.elastic.multiprocessing.api names the process that failed first.
_EXIT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
# Its report lists all that failed in one look at them; the first in the list need not be the
# one that was killed.
_LISTED = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)")
# torchrun ends the other ranks with this one, so it is no cause.
_SECONDARY = -signal.SIGTERM


class RankCrash(Exception):  # noqa: N818 - a crash is what it is
    """A rank ended by an exception that yoked did not foresee: a bug."""

    def __init__(self, rank: int, trace: str) -> None:
        super().__init__(f"rank {rank} failed:\n{trace}")


def first_failure(folder: Path, logs: Path, status: int, report: str) -> Exception:
    """The exception that explains a launch.

    folder: the launch's, with error.<rank>.json of each rank that raised; logs: the run's;
    status: torchrun's exit status; report: what torchrun printed.
    """
    killed = _killed_rank(report)
    if killed is not None:
        return _killed(*killed, logs)
    raised = sorted(_read_errors(folder), key=lambda error: float(error["time_s"]))
    if raised:
        return _raised(raised)
    lines = "\n".join(report.strip().splitlines()[-_LAST_LINES:]) or "it printed nothing"
    return YokedError(
        f"the ranks ended with status {status} before they could say why:\n{lines}",
        fix=f"read the logs in {logs}",
    )


def _killed_rank(report: str) -> tuple[int, int] | None:
    """(rank, signal) of the first rank that died of a signal that torchrun did not send."""
    listed = [(code, rank) for rank, code in _LISTED.findall(report)]
    for code, rank in [*_EXIT.findall(report), *listed]:
        if int(code) < 0 and int(code) != _SECONDARY:
            return int(rank), -int(code)
    return None


def _killed(rank: int, number: int, logs: Path) -> YokedError:
    name = signal.Signals(number).name
    what = f"rank {rank} was killed by {name}"
    if number == signal.SIGKILL:
        what += "; if you did not do it, the kernel did, for want of memory"
    if tail := _tail(logs.glob(f"*.{rank}.log")):
        what += f". Its last lines:\n{tail}"
    fix = "yoked train --resume goes on from the last checkpoint"
    if number == signal.SIGKILL:
        return YokedError(what, fix=(fix, "a smaller --device-batch-size takes less memory"))
    return YokedError(what, fix=fix)


def _tail(paths: Iterable[Path]) -> str:
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
    return "\n".join(line for line in lines[-_LAST_LINES:] if line.strip())


def _read_errors(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in folder.glob("error.*.json"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError:
            # The rank was killed while it wrote; its peers have said the same.
            continue
    return found


def _raised(raised: list[dict[str, Any]]) -> Exception:
    error = raised[0]
    rank = int(error["rank"])
    if error["exit_status"] == 3:
        return RankCrash(rank, str(error["traceback"]))
    kind = getattr(errors, str(error["kind"]), YokedError)
    assert issubclass(kind, YokedError), error
    # What all ranks say alike is said of the run; only a rank's own trouble names it.
    alone = sum(other["what"] == error["what"] for other in raised) == 1
    prefix = f"rank {rank}: " if alone and rank and kind is not UsageError else ""
    return kind(prefix + str(error["what"]), fix=tuple(error["fix"]))
