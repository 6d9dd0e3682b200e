"""The secret of a launch, by which its ranks know each other.

A launch of yoked's own puts it into a file of the job's folder on every host; where a person or a
scheduler starts torchrun, it is text in the environment, the same on all hosts.
Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from yoked.errors import UsageError

FILE_VARIABLE = "YOKED_SECRET_FILE"
TEXT_VARIABLE = "YOKED_SECRET"
SECRET_BYTES = 32
SHORTEST_TEXT = 16
MAKE_ONE = "export YOKED_SECRET=$(openssl rand -hex 32)    once; the same text on all hosts"


def launch_secret(environment: Mapping[str, str]) -> bytes | None:
    """The key of 32 bytes; None where the launch has no secret.

    Raises UsageError where one is named that cannot be used: a launch that was to be proved is
    not started unproved.
    """
    if path := environment.get(FILE_VARIABLE):
        return _from_file(Path(path))
    text = environment.get(TEXT_VARIABLE)
    if text is None:
        return None
    if len(text) < SHORTEST_TEXT:
        # Its length is said, and not the text: this goes into logs.
        raise UsageError(
            f"YOKED_SECRET has {len(text)} characters, and can be guessed", fix=MAKE_ONE
        )
    # Of any length, and so no key yet; not by the plain SHA-256 that people compare it by.
    return hashlib.sha256(b"yoked: " + text.encode(errors="surrogateescape")).digest()


def _from_file(path: Path) -> bytes:
    """What a launch wrote: the hexadecimal digits of the secret."""
    # Neither a link that another user laid here, nor a pipe that would block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as problem:
        raise _unusable(path, f"it cannot be read: {problem.strerror}") from problem
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(path, "it is no regular file")
        if found.st_uid != os.geteuid():
            raise _unusable(path, f"it belongs to user {found.st_uid}")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _unusable(path, "other users have rights to it", f"chmod 600 {path}")
        content = file.read(2 * SECRET_BYTES + 2)
    try:
        secret = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise _unusable(path, f"it does not hold {SECRET_BYTES} bytes in hexadecimal")
    return secret


def _unusable(path: Path, why: str, fix: str = "") -> UsageError:
    return UsageError(
        f"the secret of this launch in {path} cannot be used: {why}",
        fix=fix or "start the run again; the launch writes a new one",
    )
