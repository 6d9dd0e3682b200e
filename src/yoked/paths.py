"""Where yoked keeps what it can make again: corpora, tokenizers, packed rows."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The cache folder: `$YOKED_CACHE`, else `$XDG_CACHE_HOME/yoked`, else `~/.cache/yoked`.

    The folder need not exist. A relative `XDG_CACHE_HOME` is ignored, as its specification asks.
    """
    if own := os.environ.get("YOKED_CACHE"):
        return Path(own).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "yoked"
