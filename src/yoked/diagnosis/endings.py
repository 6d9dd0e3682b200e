"""The cause of a rank's end, by its signal, the error that it left and its last lines.

Pure; standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from yoked.errors import LossNotFiniteError, WeightsApartError

EndCode = Literal[
    "rank-killed",
    "rank-crashed",
    "rank-exited",
    "out-of-memory",
    "disk-full",
    "data-ran-out",
    "collective-mismatch",
    "loss-not-finite",
    "weights-apart",
    # Told apart in absent.py, of what is an exception here.
    "gpu-missing",
    "module-missing",
    "file-missing",
    "exception",
]

# How Gloo ends a process that is sent more than its call has room for (torch 2.13: by SIGABRT).
MISMATCH_WORDS = (
    "Is there a distributed collective mismatch",
    "op.preamble.length <= op.nbytes",
)
# torch has it for devices alone: on the CPU it raises a RuntimeError.
_OF_TORCH, _OF_CUDA = "OutOfMemoryError", "CUDA out of memory"
_MEMORY_KINDS = ("MemoryError", _OF_TORCH)
_MEMORY_WORDS = (
    "can't allocate memory",
    "not enough memory: you tried to allocate",
    "Cannot allocate memory",
    "std::bad_alloc",
    _OF_CUDA,
)
_DISK_WORDS = ("No space left on device", "Disk quota exceeded", "the disk is full")
# torch.save on a full disk says no more than this.
_WRITE_WORDS = ("PytorchStreamWriter failed writing", "inline_container.cc")
# Signals that somebody sends, or the kernel; others follow from what the process did itself.
_SENT = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")


def cause_of_end(
    *,
    signal: str | None,
    kind: str | None,
    what: str,
    last_lines: Iterable[str] = (),
    oom_killed: bool = False,
    disk_full: bool = False,
) -> EndCode:
    """What ended a rank.

    signal: a name such as SIGKILL. kind, what: the class of the exception and its words.
    oom_killed: the kernel ended a process for want of memory at that moment. disk_full: a folder of
    the run has no room.
    """
    said = (what, *last_lines) if kind is None else (what,)
    if signal is not None and any(_has(line, MISMATCH_WORDS) for line in last_lines):
        return "collective-mismatch"
    if (signal == "SIGKILL" and oom_killed) or kind in _MEMORY_KINDS:
        return "out-of-memory"
    if any(_has(line, _MEMORY_WORDS) for line in said):
        return "out-of-memory"
    if any(_has(line, _DISK_WORDS) for line in said):
        return "disk-full"
    if disk_full and any(_has(line, _WRITE_WORDS) for line in said):
        return "disk-full"
    if signal is not None:
        return "rank-killed" if signal in _SENT else "rank-crashed"
    if kind == "StopIteration":
        return "data-ran-out"
    if kind == LossNotFiniteError.__name__:
        return "loss-not-finite"
    if kind == WeightsApartError.__name__:
        return "weights-apart"
    return "rank-exited" if kind in (None, "SystemExit") else "exception"


def is_of_a_gpu(kind: str | None, said: Iterable[str]) -> bool:
    """Whether it is the memory of a GPU that was at its end. kind, said: as in `cause_of_end`."""
    return kind == _OF_TORCH or any(_OF_CUDA in line for line in said)


def _has(line: str, words: Iterable[str]) -> bool:
    return any(word in line for word in words)
