"""Two looks at this host with time between them: how its clocks go, whether its limits stay, what
becomes of files that are written as a launch writes them, and whether this agent stood meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import resource
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from yoked.agent.limits import LIMITS, probe_limits
from yoked.agent.server import Call
from yoked.core.fs import nearest_folder, write_bytes
from yoked.core.parallel import gather_within
from yoked.paths import cache_root, state_root

# A folder of a server that is gone must not hold up what the clocks say.
_LIMIT_S = 0.3
# Of this agent, in the names of its files: one that is told of on another host lies there too.
_MARK = secrets.token_hex(6)
_PREFIX, _SUFFIX = "yoked-look-", ".json"
_LEFT = re.compile(rf"{_PREFIX}([0-9a-f]{{12}})-")
_left: dict[str, Path] = {}
# How often it is looked whether all stood; what a busy host leaves waiting is shorter than the
# other.
_BEAT_S, _STOOD_S = 0.05, 1.0
# Who stood does not wait for a processor: of a busy host's wait most is that.
_BUSY = 0.2


def answer_watch(call: Call) -> dict[str, Any]:
    """time_s, since 1970; monotonic_s; limits, of getrlimit(2); folders, by `_look`.

    args: files, "leave" (one in each folder of a run), "look" (and remove them), or null.
    """
    time_s, monotonic_s = time.time(), time.monotonic()
    acts: dict[str, Callable[[], Any]] = {}
    if call.args.get("files") == "leave":
        BEAT.begin()
        acts = {name: partial(_leave, name, path) for name, path in _folders().items()}
    elif call.args.get("files") == "look":
        acts = {name: partial(_look, name) for name in list(_left)}
    told, _ = gather_within(_LIMIT_S, acts)
    limits = probe_limits()
    return {
        "time_s": time_s,
        "monotonic_s": monotonic_s,
        "limits": {name: limits[name] for name in LIMITS},
        "folders": {name: each for name, each in told.items() if each is not None},
    }


class Beat:
    """Tells the times at which nothing ran here, by a thread that does nothing else.

    A thread that only waited for a processor, for the others of this program or for a disk is of a
    busy host, and counts for nothing: of one that was stopped the kernel counts none of these.
    """

    def __init__(self) -> None:
        self._gaps: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def begin(self) -> None:
        """From now on."""
        if not self._thread.ident:
            self._thread.start()

    def stood(self) -> dict[str, Any] | None:
        """times and lost_s; gaps, each with ago_s, when it ended, and lost_s; None: it never stood
        for long.
        """
        now_s, found = time.monotonic(), list(self._gaps)
        gaps = [{"ago_s": round(now_s - end_s, 1), "lost_s": round(s, 1)} for end_s, s in found]
        lost_s = round(sum(s for _, s in found), 1)
        return {"times": len(gaps), "lost_s": lost_s, "gaps": gaps} if gaps else None

    def _beat(self) -> None:
        seen_s, busy_s, faults = time.monotonic(), _busy_s(), _faults()
        while True:
            time.sleep(_BEAT_S)
            now_s, now_busy_s, now_faults = time.monotonic(), _busy_s(), _faults()
            gap_s = now_s - seen_s
            if gap_s > _STOOD_S and now_busy_s - busy_s < _BUSY * gap_s and now_faults == faults:
                self._gaps.append((now_s, gap_s))
            seen_s, busy_s, faults = now_s, now_busy_s, now_faults


def _busy_s() -> float:
    """How long this thread has waited for a processor, and this program has had one."""
    own_s = time.process_time()
    # Not everywhere; a list of threads may be closed.
    with contextlib.suppress(OSError, ValueError, IndexError):
        told = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
        own_s += int(told[1]) / 1e9
    return own_s


def _faults() -> int:
    """How often this thread has waited for a page from a disk."""
    whose = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(whose).ru_majflt


BEAT = Beat()


def _folders() -> dict[str, Path]:
    """Those of a run; where one is still to be made, the nearest above it."""
    tmp = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - where programs write
    wanted = {"state": state_root(), "cache": cache_root(), "tmp": tmp}
    places = {name: nearest_folder(path) for name, path in wanted.items()}
    # Nobody empties a whole home.
    return {name: place for name, place in places.items() if place not in (Path.home(), Path("/"))}


def _leave(name: str, folder: Path) -> None:
    # As a job's files are written, and called.
    path = folder / f"{_PREFIX}{_MARK}-{name}{_SUFFIX}"
    _left[name] = path
    write_bytes(path, _MARK.encode(), durable=False)


def _look(name: str) -> dict[str, Any]:
    """kept: whether the file is there as it was; now, what became of it, null: nothing; mark, in
    its name; beside: the marks of such files there that this agent did not leave.
    """
    path = _left.pop(name)
    # Whoever renames one keeps most of its name.
    found = {each.name for each in path.parent.glob(f"{_PREFIX}*")}
    own = {each for each in found if each.startswith(path.stem)}
    kept = path.name in own and path.read_bytes() == _MARK.encode()
    changed = "another file" if path.name in own else "gone"
    now = None if kept else next(iter(own - {path.name}), changed)
    for each in own:
        with contextlib.suppress(OSError):
            (path.parent / each).unlink()
    marks = {match[1] for each in found if (match := _LEFT.match(each))} - {_MARK}
    return {"kept": kept, "now": now, "mark": _MARK, "beside": sorted(marks)}


@atexit.register
def _clear() -> None:
    """A controller that leaves early leaves nothing here."""
    for path in _left.values():
        with contextlib.suppress(OSError):
            path.unlink()
    _left.clear()
