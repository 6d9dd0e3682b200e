"""Flags that several commands have, once. Light: every command line loads this."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from cyclopts import Group, Parameter

from yoked.cli.completers import checkpoints, run_names
from yoked.core.names import RUN_NAME, RUN_NAME_RULE, path_word
from yoked.core.patterns import MOST_PATTERNS, pattern_flaw
from yoked.errors import UsageError

if TYPE_CHECKING:
    from yoked.launch.start import OnFault

FLEET = Group("Fleet", sort_key=0)


def flag(group: Group, help_text: str, **more: Any) -> Parameter:
    """A flag of a group of the help page."""
    return Parameter(help=help_text, group=group, **more)


def switch(group: Group, help_text: str) -> Parameter:
    """A flag that is on or left out: there is no `--no-` form."""
    return flag(group, help_text, negative="")


def given_flags(flags: Any) -> dict[str, Any]:
    """The values that differ from the defaults, by the flags as they are typed."""
    return {
        f"--{field.name.replace('_', '-')}": value
        for field in fields(flags)
        if (value := getattr(flags, field.name)) != field.default
    }


FleetFlag = Annotated[
    Path | None,
    Parameter(
        name="--fleet",
        help="The fleet's file. Default: yoked.toml, where there is one; else this machine.",
    ),
]
FleetFile = Annotated[
    Path | None, Parameter(help="The fleet's file. Default: yoked.toml, where there is one.")
]
FleetHere = Annotated[
    Path | None, Parameter(help="The fleet's file. Default: yoked.toml of this folder.")
]
RunName = Annotated[
    str | None, Parameter(help="The run. Default: the newest.", completer=run_names)
]
CheckpointFlag = Annotated[
    str,
    Parameter(
        name="--checkpoint",
        help="latest, best (that which validation found so) or the step of one.",
        completer=checkpoints,
    ),
]
RunsDir = Annotated[Path, Parameter(help="Folder that holds the runs.")]
JsonFlag = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")
]
RawFlag = Annotated[
    bool,
    Parameter(
        name="--raw",
        negative="",
        help="Show it unfiltered: its escape sequences act on this terminal. Otherwise colours, "
        "carriage returns and erased lines pass, and nothing more.",
    ),
]


def check_folder_of(flag: str, path: Path | None) -> None:
    """Raise UsageError for a file that is to be written where no folder is. None: not given."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(
            f"{flag} {path}: there is no folder {path.parent}",
            fix=f"mkdir -p {path_word(path.parent)}",
        )


def check_seconds(flag: str, value_s: float, *, fix: str, zero: bool = False) -> None:
    """Raise UsageError for seconds that nobody can wait. zero: not to wait at all is possible."""
    if not math.isfinite(value_s):
        raise UsageError(f"{flag} {value_s:g}: not a number of seconds", fix=fix)
    if value_s < 0 and zero:
        raise UsageError(f"{flag} {value_s:g}: below 0", fix=fix)
    if value_s <= 0 and not zero:
        raise UsageError(f"{flag} {value_s:g}: not above 0", fix=fix)


def same_fleet(named: Path | None) -> str:
    """` --fleet FILE` for a command line about the same hosts; "" where no file was named."""
    return "" if named is None else f" --fleet {path_word(named)}"


@dataclass(frozen=True)
class JobFlags:
    """Flags of every command that starts a job on a fleet."""

    fleet: Annotated[
        Path | None, flag(FLEET, "The fleet's file. Default: yoked.toml, where there is one.")
    ] = None
    restarts: Annotated[
        int, flag(FLEET, "Start again so often after a failure, from the last checkpoint.")
    ] = 0
    detach: Annotated[
        bool, switch(FLEET, "Return as soon as the job runs; `yoked attach` shows it.")
    ] = False
    on_fault: Annotated[
        Literal["report", "stop", "restart", "wait"] | None,
        flag(
            FLEET,
            "Where ranks do not get on and it is sure why: report it (`yoked diagnose`), stop the "
            "run, start it again as often as --restarts says, or wait: report it, and give a "
            "silent host ten minutes. Default: restart with --restarts; else stop for `yoked "
            "train`, and report for `yoked run`.",
        ),
    ] = None
    nice: Annotated[
        int | None,
        flag(
            FLEET,
            "Niceness of the ranks, 0 to 19: above 0, a person's own programs come first. "
            "Default: yoked.toml's, or 0.",
        ),
    ] = None
    beside: Annotated[
        bool, switch(FLEET, "Start although another run is on these hosts: both are slower.")
    ] = False
    doctor: Annotated[
        bool, flag(FLEET, "Look for what would keep the run from working before it starts.")
    ] = True

    def __new__(cls, **values: Any) -> Self:
        """Take note of what is named, also with its default."""
        made = super().__new__(cls)
        object.__setattr__(made, "_named", frozenset(values))
        return made

    def on_top_of(self, others: Mapping[str, Any]) -> JobFlags:
        """These flags, and below them those of a file. others: by field."""
        named = {name: getattr(self, name) for name in self.__dict__["_named"]}
        return JobFlags(**{**others, **named})

    def checked_nice(self) -> int | None:
        """Niceness; raises UsageError for one that an ordinary user cannot have."""
        if self.nice is not None and not 0 <= self.nice <= 19:
            raise UsageError(f"--nice {self.nice}: 0 to 19 is possible", fix="--nice 10")
        return self.nice

    def resolved_on_fault(self, default: OnFault) -> OnFault:
        """What to do about ranks that do not get on. default: for a run that is not restarted."""
        if self.on_fault == "restart" and not self.restarts:
            raise UsageError("--on-fault restart: how often?", fix="--restarts 3")
        if self.on_fault == "stop" and self.restarts:
            raise UsageError(
                "--on-fault stop ends the run, and --restarts starts it again: which?",
                fix=("--on-fault restart", "--restarts 0"),
            )
        return self.on_fault or ("restart" if self.restarts else default)

    def checked_restarts(self) -> int:
        """Restarts; raises UsageError below 0."""
        if self.restarts < 0:
            raise UsageError(f"--restarts {self.restarts}: below 0", fix="--restarts 1")
        return self.restarts


def check_checkpoint(which: str) -> str:
    """The checkpoint that --checkpoint names; raises UsageError for one that cannot be meant."""
    if which not in ("latest", "best") and not (which.isascii() and which.isdecimal()):
        raise UsageError(
            f"--checkpoint {which} is neither latest nor best nor a step",
            fix="--checkpoint best, or the step of a checkpoint, as in --checkpoint 500",
        )
    return which


def named_checkpoint(which: str) -> str:
    """The checkpoint that --checkpoint names, in words."""
    return f"the {which} checkpoint" if which in ("latest", "best") else f"the one of step {which}"


def same_checkpoint(which: str) -> str:
    """` --checkpoint WHICH` for a command line about the same one; "" for the default."""
    return "" if which == "latest" else f" --checkpoint {which}"


def check_patterns(name: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of a flag; raises UsageError for one that is none."""
    for pattern in patterns:
        if (flaw := pattern_flaw(pattern)) is not None:
            raise UsageError(
                f"{name} {pattern!r} {flaw}", fix=f"{name} 'out/*.pt'    as .gitignore has them"
            )
    if len(patterns) > MOST_PATTERNS:
        raise UsageError(f"{name}: at most {MOST_PATTERNS} patterns", fix="name a folder: out/")
    return patterns


def check_run_name(name: str) -> str:
    """The name; raises UsageError for one that is no plain folder's name."""
    if not RUN_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            fix=RUN_NAME_RULE,
        )
    return name
