"""The acts in a program that has no place for them and stays as it is: in a thread beside it.

A .pth file of the host's Python imports this in every rank, and in what a rank starts.
"""

from __future__ import annotations

import sys
import threading
import time

import acts

_RANK_PROGRAM = "yoked.launch.bootstrap.rank"
_LOOK_S = 0.1


def _await_act() -> None:
    while not (act := acts.due()):
        time.sleep(_LOOK_S)
    acts.do(act)


if _RANK_PROGRAM in sys.orig_argv:
    threading.Thread(target=_await_act, name="bench", daemon=True).start()
