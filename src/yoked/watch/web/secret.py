"""The token in the address of the page: it keeps other users of this machine out.

It stays the same, so that a page that is open finds the server again after it was started anew.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from yoked.core.fs import write_bytes
from yoked.paths import private_folder, state_root

_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,64}")


def kept_token() -> str:
    """The token of this user, made where there is none. Raises OSError."""
    path = private_folder(state_root() / "watch") / "token"
    return _read(path) or _make(path)


def _read(path: Path) -> str | None:
    """What the file holds, if nobody else could have read or written it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(100).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    is_ours = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return text if is_ours and _TOKEN.fullmatch(text) else None


def _make(path: Path) -> str:
    # 128 bits: nobody guesses it over a socket.
    token = secrets.token_urlsafe(16)
    write_bytes(path, f"{token}\n".encode(), mode=0o600)
    return token
