"""Flags of the commands that start a job on a fleet. Light: every command line loads this."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from yoked.errors import UsageError

FLEET = Group("Fleet", sort_key=0)
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _flag(help_text: str, **more: Any) -> Parameter:
    return Parameter(help=help_text, group=FLEET, **more)


@dataclass(frozen=True)
class JobFlags:
    """Flags of every command that starts a job on a fleet."""

    fleet: Annotated[
        Path | None, _flag("The fleet's file. Default: yoked.toml, where there is one.")
    ] = None
    restarts: Annotated[
        int, _flag("Start again so often after a failure, from the last checkpoint.")
    ] = 0
    detach: Annotated[
        bool, _flag("Return as soon as the job runs; `yoked attach` shows it.", negative="")
    ] = False
    doctor: Annotated[
        bool, _flag("Look for what would keep the run from working before it starts.")
    ] = True

    def checked_restarts(self) -> int:
        """Restarts; raises UsageError below 0."""
        if self.restarts < 0:
            raise UsageError(f"--restarts {self.restarts}: below 0", fix="--restarts 1")
        return self.restarts


def check_run_name(name: str) -> str:
    """The name; raises UsageError for one that is no plain folder's name."""
    if not _RUN_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            fix="letters, digits and . _ - only, at most 80, a letter or digit first",
        )
    return name
