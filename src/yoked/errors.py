"""The exception tree: every failure a person can meet says what happened and what to do.

Exit statuses are part of each command's contract: 0 fine, 1 a finding or an expected
failure, 2 wrong usage, 3 a bug in yoked, 130 interrupted, 143 a run that was ended unsaved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class YokedError(Exception):
    """An expected failure. Never raised for a bug: invariants get asserts.

    what: what happened and where, in one or two sentences.
    fix: what to do about it, one line each: a command to paste, or a sentence.
    """

    exit_status = 1
    # Of yoked.core.faults, where it has one of its own; else that of its kind.
    code = "failure"
    params: Mapping[str, str | int | float | None] = {}
    # What helps with most failures of this kind, where nothing closer is said.
    usual_fix = "yoked doctor    looks at what may be in the way"
    # Of a run: the ranks that may be to blame, where that is not the rank that raises. Several:
    # nobody can tell which.
    of_ranks: tuple[int, ...] = ()

    # Of a run that failed: what --json has beside the error (yoked.agent.verdict).
    verdict: Mapping[str, object] | None = None

    def __init__(self, what: str, *, fix: str | Sequence[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.fix: tuple[str, ...] = (fix,) if isinstance(fix, str) else tuple(fix)

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"fix: {line}" for line in self.fix)])

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries; the default would drop keyword arguments.
        return (_rebuild, (type(self), self.what, self.fix, self.code, dict(self.params)))


def _rebuild(
    kind: type[YokedError],
    what: str,
    fix: tuple[str, ...],
    code: str,
    params: Mapping[str, str | int | float | None],
) -> YokedError:
    error = kind(what, fix=fix)
    error.code, error.params = code, params
    return error


class UsageError(YokedError):
    """The command line, or a combination of its flags, cannot be meant.

    Its parameter is the first flag that its sentence names; None: it names none.
    """

    exit_status = 2
    code = "usage"
    usual_fix = "yoked --help"

    def __init__(self, what: str, *, fix: str | Sequence[str] = ()) -> None:
        super().__init__(what, fix=fix)
        flag = re.search(r"(?<![\w-])--[a-z][a-z0-9-]*", what)
        self.params = {"flag": flag[0] if flag else None}


class DataError(YokedError):
    """A corpus, tokenizer or row file is missing, damaged or unfit."""

    code = "data"


class CheckpointError(YokedError):
    """A checkpoint is missing, damaged, or of another model."""

    code = "checkpoint"
    usual_fix = "take another checkpoint: --resume-from-step N of the run, or --from DIR"


class DeviceError(YokedError):
    """A device, backend or compiler that was asked for is not there."""

    code = "device"


class HostError(YokedError):
    """A host cannot be reached, or lacks what is needed on it."""

    code = "host"


class NoPythonError(HostError):
    """A host has no Python that can run the agent, under that name."""

    code = "no-python"


class FleetError(YokedError):
    """yoked.toml is missing, or says what cannot be meant."""

    exit_status = 2
    code = "fleet"


class JobError(YokedError):
    """A job on the fleet could not start, or failed."""

    code = "job"


class MeetingError(YokedError):
    """Ranks did not connect, or one did not prove that it belongs to the launch.

    Nothing of the run was sent, and none of it has begun. Host programs know it by its name.
    """

    code = "meeting"


class PeerError(YokedError):
    """Another rank sent what cannot be read."""

    code = "peer"


class PeerLostError(YokedError):
    """Another rank died, was cut off, or did not come in time."""

    code = "peer-lost"


class LabError(YokedError):
    """The lab could not do what was asked: this machine lacks something, or a host is down."""

    code = "lab"
    usual_fix = "yoked lab list    says what this machine lacks, and which labs are up"


class LossNotFiniteError(YokedError):
    """The loss, or a weight, is NaN or infinite. Host programs know it by its name."""

    code = "loss-not-finite"


class WeightsApartError(YokedError):
    """Weights differ between ranks. Host programs know it by its name."""

    code = "weights-apart"


def error_kinds() -> list[type[YokedError]]:
    """Every kind of failure, the common ancestor first."""
    kinds = [YokedError]
    for kind in kinds:
        # The list grows while it is walked. Other modules refine a kind, and keep its code.
        kinds += [each for each in kind.__subclasses__() if each.__module__ == __name__]
    return kinds
