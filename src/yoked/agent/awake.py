"""Keep this host from falling asleep while it trains, as far as its system lets us.

Linux with systemd: an inhibitor lock for sleep, idleness and the lid. macOS: caffeinate. The lock
is held by a helper that ends with its standard input, so it goes when its holder does, however
that ends. Source: systemd-inhibit(1), caffeinate(8).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

# Asking for the lock may fail at once: no session bus, no permission.
_SETTLE_S = 0.3


def inhibitor_argv(run: str) -> list[str] | None:
    """The command that holds the lock until its standard input ends; None: no such program."""
    if sys.platform == "darwin":
        # -i: not idle, -s: not at all on mains power.
        return ["caffeinate", "-i", "-s", "cat"] if shutil.which("caffeinate") else None
    if shutil.which("systemd-inhibit") is None:
        return None
    why = f"run {run} trains on this host"
    return [
        "systemd-inhibit",
        "--what=sleep:idle:handle-lid-switch",
        "--who=yoked",
        f"--why={why}",
        "--mode=block",
        "cat",
    ]


class Awake:
    """Holds the lock from its making until `release`. reason: why there is none, or empty."""

    def __init__(self, argv: Sequence[str] | None) -> None:
        self._helper: subprocess.Popen[bytes] | None = None
        self.reason = ""
        if argv is None:
            self.reason = "there is neither systemd-inhibit nor caffeinate here"
            return
        try:
            helper = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as problem:
            self.reason = f"{argv[0]} cannot be started: {problem.strerror}"
            return
        try:
            helper.wait(_SETTLE_S)
        except subprocess.TimeoutExpired:
            self._helper = helper
            return
        assert helper.stderr is not None
        said = helper.stderr.read().decode(errors="replace").strip()
        self.reason = f"{argv[0]}: {said or 'refused'}"
        _close(helper)

    def release(self) -> None:
        """Let the host sleep again; twice is harmless."""
        if self._helper is not None:
            _close(self._helper)
            self._helper.wait()
            self._helper = None


def _close(helper: subprocess.Popen[bytes]) -> None:
    for stream in (helper.stdin, helper.stderr):
        assert stream is not None
        stream.close()
