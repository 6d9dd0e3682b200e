"""Two looks at this host with time between them: how its clocks go, and whether files stay."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from yoked.agent.server import Call
from yoked.core.fs import nearest_folder
from yoked.core.parallel import gather_within
from yoked.paths import cache_root, state_root

# A folder of a server that is gone must not hold up what the clocks say.
_LIMIT_S = 0.3
_left: dict[str, Path] = {}


def answer_watch(call: Call) -> dict[str, Any]:
    """time_s, since 1970; monotonic_s; kept: by folder, whether the file is there that was left.

    args: files, "leave" (one in each folder of a run), "look" (and remove them), or null.
    """
    told: dict[str, Any] = {"time_s": time.time(), "monotonic_s": time.monotonic(), "kept": {}}
    if call.args.get("files") == "leave":
        gather_within(
            _LIMIT_S, {name: partial(_leave, name, path) for name, path in _folders().items()}
        )
    elif call.args.get("files") == "look":
        told["kept"], _ = gather_within(
            _LIMIT_S, {name: partial(_look, name) for name in list(_left)}
        )
    return told


def _folders() -> dict[str, Path]:
    """Those of a run; where one is still to be made, the nearest above it."""
    tmp = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - where programs write
    wanted = {"state": state_root(), "cache": cache_root(), "tmp": tmp}
    places = {name: nearest_folder(path) for name, path in wanted.items()}
    # Nobody empties a whole home.
    return {name: place for name, place in places.items() if place not in (Path.home(), Path("/"))}


def _leave(name: str, folder: Path) -> None:
    descriptor, path = tempfile.mkstemp(dir=folder)
    _left[name] = Path(path)
    os.close(descriptor)


def _look(name: str) -> bool:
    path = _left.pop(name)
    is_there = path.exists()
    with contextlib.suppress(OSError):
        path.unlink()
    return is_there


@atexit.register
def _clear() -> None:
    """A controller that leaves early leaves nothing here."""
    for name in list(_left):
        _look(name)
