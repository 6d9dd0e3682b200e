"""Where yoked keeps what it can make again (the cache) and what is going on (the state).

The folders need not exist. Source: the XDG base directory specification, by which a relative
path in its variables is ignored.
"""

from __future__ import annotations

import os
from pathlib import Path

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


def _root(own_variable: str, xdg_variable: str, below_home: str) -> Path:
    if own := os.environ.get(own_variable):
        return Path(own).expanduser().absolute()
    base = Path(os.environ.get(xdg_variable) or "")
    if not base.is_absolute():
        base = Path.home() / below_home
    return base / "yoked"
