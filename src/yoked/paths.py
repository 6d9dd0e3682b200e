"""Where yoked keeps what it can make again (cache, data) and what is going on (state).

The folders need not exist; what is made of them is private, whatever the umask. Source: the XDG
base directory specification, by which a relative path in its variables is ignored.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from yoked.core.faults import fault
from yoked.errors import YokedError

_PRIVATE = 0o700
# In the folder that YOKED_LAUNCH_DIR names: the line that rank 0 would draw on a terminal now.
LIVE_NAME = "live"


def cache_root() -> Path:
    """The cache folder: `$YOKED_CACHE`, else `$XDG_CACHE_HOME/yoked`, else `~/.cache/yoked`."""
    return _root("YOKED_CACHE", "XDG_CACHE_HOME", ".cache")


def state_root() -> Path:
    """The state folder: `$YOKED_STATE`, else `$XDG_STATE_HOME/yoked`, else
    `~/.local/state/yoked`.
    """
    return _root("YOKED_STATE", "XDG_STATE_HOME", ".local/state")


def data_root() -> Path:
    """The data folder: `$YOKED_DATA_HOME`, else `$XDG_DATA_HOME/yoked`, else
    `~/.local/share/yoked`.
    """
    return _root("YOKED_DATA_HOME", "XDG_DATA_HOME", ".local/share")


def home() -> Path:
    """The person's home folder. Raises YokedError where nothing says which it is."""
    try:
        return Path.home()
    except RuntimeError as problem:
        raise YokedError(
            f"nothing says where the home folder of user {os.getuid()} is",
            fix="export HOME=FOLDER    a folder of your own",
        ) from problem


def private_folder(folder: Path) -> Path:
    """Make a folder, and those above it that are missing, for us alone. Raises OSError.

    One that is there stays as it is: who wants others to read it has made it so.
    """
    missing = []
    above = folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        try:
            each.mkdir(_PRIVATE)
        except FileExistsError:
            continue
        # The umask takes away.
        each.chmod(_PRIVATE)
    folder.mkdir(exist_ok=True)
    return folder


def own_folder(folder: Path) -> Path:
    """Make or take a private folder where others write too, as in /tmp. Raises YokedError.

    Somebody may have been there first, with a folder that he reads or a link that leads elsewhere.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(_PRIVATE)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            # Nobody else can put another in its place: /tmp is sticky.
            folder.chmod(_PRIVATE)
            return folder
    except OSError as problem:
        raise YokedError(
            f"{folder} cannot be made: {problem.strerror}",
            fix="set XDG_RUNTIME_DIR to a folder of your own",
        ) from problem
    raise fault("folder-foreign", folder=folder)


def _root(own_variable: str, xdg_variable: str, below_home: str) -> Path:
    if own := os.environ.get(own_variable):
        try:
            return Path(own).expanduser().absolute()
        except RuntimeError as problem:
            raise YokedError(
                f"{own_variable} is {own}: there is no such home",
                fix=f"export {own_variable}=FOLDER    a folder of your own",
            ) from problem
    base = Path(os.environ.get(xdg_variable) or "")
    if not base.is_absolute():
        base = home() / below_home
    return base / "yoked"
