"""What goes wrong in a program, at its first step after somebody said so. Knows nothing of yoked.

A trigger is a file; the moment at which the act begins is left in another one.
"""

from __future__ import annotations

import os
import pdb
import threading
import time

FOLDER = "/run/bench"
TRIGGER, STAMP, STUCK = f"{FOLDER}/act", f"{FOLDER}/stamp", f"{FOLDER}/stuck"
# What a person types into the debugger comes from there.
TYPED = f"{FOLDER}/typed"
_PIECE_BYTES = 4 << 20


def due() -> str:
    """The act that this rank is to do now, once; else ""."""
    try:
        with open(TRIGGER) as file:
            act = file.read()
        os.unlink(TRIGGER)
    except OSError:
        return ""
    return act


def stamp() -> None:
    """Leave the time; the first stays."""
    try:
        with open(STAMP, "x") as file:
            file.write(repr(time.time()))
    except OSError:
        pass


def do(act: str) -> None:
    """What has nothing to do with the program's own work."""
    if act in _ACTS:
        stamp()
        _ACTS[act]()


def _raise() -> None:
    raise ValueError("row 417 has a label of 10, and there are 10 classes")


def _leak() -> None:
    kept = []
    while True:
        kept.append(b"\1" * _PIECE_BYTES)


def _lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _read() -> None:
    with open(STUCK, "rb") as file:
        file.read()


def _debug() -> None:
    if not os.path.exists(TYPED):
        os.mkfifo(TYPED)
    # For both ways: neither opening it nor reading on after a first line must end.
    pipe = os.open(TYPED, os.O_RDWR)
    with open(pipe) as typed, open(os.devnull, "w") as screen:
        pdb.Pdb(stdin=typed, stdout=screen, nosigint=True).set_trace()
        time.sleep(0)


_ACTS = {"raise": _raise, "leak": _leak, "lock": _lock, "read": _read, "debug": _debug}
