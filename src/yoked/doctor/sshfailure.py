"""Why a host has no agent: as ssh said it, and where it said nothing, by trying."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path
from typing import IO

from yoked.errors import NoPythonError, YokedError
from yoked.records.examination import SshFailure, SshKind
from yoked.remote.ssh import NoAgentError, ssh_argv
from yoked.remote.transport import kill_way

_CAME_IN = b"Authenticated to"
_PIECE_BYTES = 65_536
_TRY_S = 2
# A busy host may take seconds to start a program. What its shell prints is not this by chance.
_PROGRAM_S = 8
_PRINTED = b"yoked-is-in"


def failure_of(host: str, ssh_config: Path | None, problem: YokedError) -> SshFailure:
    """What kept the agent of a host from coming."""
    kind: SshKind = "other"
    text = problem.what
    if isinstance(problem, NoPythonError):
        kind = "python"
    elif isinstance(problem, NoAgentError):
        kind = problem.kind
        text = problem.said or problem.what
        if kind == "timeout" and not problem.said and comes_in_for_nothing(host, ssh_config):
            kind = "shell"
            text = "ssh comes in, but the login shell there does not start a program"
    user = user_of(host, ssh_config) if kind == "shell" else None
    return SshFailure(kind, text, problem.fix, user)


def user_of(host: str, ssh_config: Path | None) -> str | None:
    """Whom ssh comes in as on a host, as its configuration has it; None: it does not say."""
    config = [] if ssh_config is None else ["-F", str(ssh_config)]
    lines = (ask_ssh("-G", *config, host) or "").splitlines()
    return next((line[5:] for line in lines if line.startswith("user ")), None)


def ask_ssh(*flags: str) -> str | None:
    """What ssh says of itself, here; None: nothing, or not in time."""
    try:
        done = subprocess.run(
            ["ssh", *flags],  # noqa: S607 - the one that connects is found alike
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr).strip() or None


def comes_in_for_nothing(host: str, ssh_config: Path | None) -> bool:
    """Whether ssh gets as far as the login, and no program starts there: a host may also be slow.

    On a connection of its own: a shared one may lead to a machine that is gone, and not know it.
    """
    config = None if ssh_config is None else str(ssh_config)
    program, *rest = ssh_argv(host, config, patience_s=_TRY_S, shared=False)
    try:
        process = subprocess.Popen(
            [program, "-v", *rest, f"echo {_PRINTED.decode()}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError:
        return False
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        return _says(process.stderr, _CAME_IN, _TRY_S) and not _says(
            process.stdout, _PRINTED, _PROGRAM_S
        )
    finally:
        kill_way(process)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def _says(stream: IO[bytes], words: bytes, limit_s: float) -> bool:
    """Whether these words come on a stream in time."""
    said = b""
    until_s = time.monotonic() + limit_s
    while (left_s := until_s - time.monotonic()) > 0:
        if not select.select([stream], [], [], left_s)[0]:
            return False
        piece = os.read(stream.fileno(), _PIECE_BYTES)
        said += piece
        if words in said:
            return True
        if not piece:
            return False
    return False
