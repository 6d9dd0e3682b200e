"""`yoked doctor`: what will go wrong on these hosts, why, and the lines that mend it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from yoked.cli.completers import checks, host_names
from yoked.cli.flags import FleetFile, JsonFlag, flag, switch
from yoked.cli.live import StatusLine
from yoked.cli.output import Output
from yoked.core.names import path_word
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.fleet.model import Fleet
from yoked.train.config import TrainConfig

if TYPE_CHECKING:
    from yoked.doctor.judge import Seen
    from yoked.doctor.mending import Mended

LOOK = Group("What is looked at", sort_key=1)
MEND = Group("Mending", sort_key=2)
PAPERS = Group("Words and papers", sort_key=3)


@dataclass(frozen=True)
class DoctorFlags:
    """What is wanted of the doctor."""

    quick: Annotated[bool, switch(LOOK, "Only what takes less than two seconds.")] = False
    bandwidth: Annotated[bool, switch(LOOK, "Measure the bandwidth of every link too.")] = False
    depth: Annotated[
        int | None, flag(LOOK, "Layers of the model to be trained: is there room for it?")
    ] = None
    data: Annotated[
        Path | None,
        flag(LOOK, "A folder that every host should have as it is here, compared by content."),
    ] = None
    code: Annotated[Path | None, flag(LOOK, "The same for the folder of a program.")] = None
    fix: Annotated[
        bool, switch(MEND, "Carry out the fixes of errors that need no root, one by one, asking.")
    ] = False
    sudo: Annotated[
        bool,
        switch(
            MEND,
            "Use `sudo -n` on hosts: to read what only root reads, and with --fix to carry out "
            "what needs root too.",
        ),
    ] = False
    only: Annotated[
        tuple[str, ...],
        flag(
            MEND,
            "With --fix: carry out the fixes of these checks alone, of warnings too. Default: "
            "those of errors.",
        ),
    ] = ()
    yes: Annotated[bool, switch(MEND, "With --fix or --undo: do not ask.")] = False
    undo: Annotated[bool, switch(MEND, "Take back what --fix did on this fleet, newest first.")] = (
        False
    )
    explain: Annotated[
        str | None, flag(PAPERS, "Say what a check is about, by its name.", completer=checks)
    ] = None
    console: Annotated[
        str | None,
        flag(
            PAPERS,
            "Print a script for root's shell on a host that lets no login in: it names the link "
            "of a login that fails there.",
            completer=host_names,
        ),
    ] = None
    bundle: Annotated[
        Path | None, flag(PAPERS, "Write a zip file for a bug report, secrets left out.")
    ] = None
    from_file: Annotated[
        Path | None,
        flag(PAPERS, "Judge a saved examination (a bundle) instead of hosts.", name="--from"),
    ] = None

    def check(self) -> None:
        """Raise UsageError for what cannot be meant, alone or together."""
        looks = self._given("quick", "bandwidth", "depth", "data", "code", "sudo")
        wishes = self._given("explain", "console", "from_file", "fix", "undo")
        if len(wishes) > 1:
            raise UsageError(f"{' and '.join(wishes)} are different wishes", fix="give one of them")
        if looks and wishes and wishes != ["--fix"]:
            raise UsageError(f"{wishes[0]} looks at no host", fix=f"leave {', '.join(looks)} out")
        if self.only and not self.fix:
            raise UsageError("--only is for --fix", fix="yoked doctor --fix --only CHECK")
        if self.yes and not (self.fix or self.undo):
            raise UsageError("--yes is for --fix and --undo", fix="yoked doctor --fix --yes")
        if self.quick and self.bandwidth:
            raise UsageError("--quick measures no bandwidth", fix="yoked doctor --bandwidth")
        if self.depth is not None and self.depth < 1:
            raise UsageError(f"--depth {self.depth}: a model has a layer at least", fix="--depth 4")
        for named, folder in (("--data", self.data), ("--code", self.code)):
            if folder is not None and not folder.is_dir():
                raise UsageError(
                    f"{named} {folder}: there is no such folder here",
                    fix="name one as it is on this machine, with what all hosts should have",
                )
        self._check_bundle()

    def _check_bundle(self) -> None:
        if self.bundle is None:
            return
        if self.undo or self.explain is not None or self.console is not None:
            raise UsageError("--bundle keeps what was seen", fix="yoked doctor --bundle FILE.zip")
        if self.bundle.exists():
            raise UsageError(
                f"--bundle {self.bundle}: there is such a file, and it is left as it is",
                fix=f"name another, or rm {path_word(self.bundle)}",
            )

    def _given(self, *names: str) -> list[str]:
        told = {name: f"--{name.removesuffix('_file')}" for name in names}
        return [told[name] for name in names if getattr(self, name) not in (None, False, ())]


def command(
    *,
    flags: Annotated[DoctorFlags, Parameter(name="*")] = DoctorFlags(),
    fleet: FleetFile = None,
    json_output: JsonFlag = False,
) -> int:
    """Look at all hosts and links before a run: what will fail, why, and the lines that mend it.

    Real sockets are opened between all hosts, and a small world of ranks is started. Nothing is
    changed on any host without --fix. The exit status is 1 when something keeps a run from working.
    """
    from yoked.cli.commands import doctor_text as text
    from yoked.doctor.judge import replayed
    from yoked.workflows.passed import forget_passed, note_passed

    output = Output(json_mode=json_output)
    flags.check()
    if flags.explain is not None:
        return text.explain(flags.explain, output)
    if flags.console is not None:
        return text.console_script(open_fleet(fleet), flags.console, output)
    if flags.undo:
        ask = text.asker(output, yes=flags.yes, flag="--undo")
        return text.take_all_back(open_fleet(fleet), output, ask=ask)
    if flags.from_file is not None:
        seen, opened, mended = replayed(flags.from_file), None, None
    else:
        opened = open_fleet(fleet)
        seen, mended = _examine(opened, lambda: open_fleet(fleet), flags, output)
    status = text.report(
        seen, output, opened, mended, bandwidth=flags.bandwidth, bundle_path=flags.bundle
    )
    if opened is not None and status == 0 and not flags.quick:
        note_passed(opened, "doctor", "nothing is in the way of a run")
    elif opened is not None and status:
        forget_passed(opened, "doctor")
    return status


def _examine(
    fleet: Fleet, reopen: Callable[[], Fleet], flags: DoctorFlags, output: Output
) -> tuple[Seen, Sequence[Mended] | None]:
    """Look, and mend where that is wanted: None where it is not."""
    from yoked.cli.commands.doctor_text import asker
    from yoked.doctor.catalog import check_named
    from yoked.doctor.judge import Examiner
    from yoked.doctor.mending import mend
    from yoked.workflows.need import need_of
    from yoked.workflows.travelling import what_travels

    examiner = Examiner(
        need_of(None if flags.depth is None else TrainConfig(depth=flags.depth)),
        lambda: StatusLine(output),
        quick=flags.quick,
        bandwidth=flags.bandwidth,
        folders={
            kind: path
            for kind, path in (("data", flags.data), ("code", flags.code))
            if path is not None
        },
        sudo=flags.sudo,
        travelling=what_travels,
    )
    for name in flags.only:
        check_named(name, "--only")
    if not flags.fix:
        return examiner(fleet), None
    # Whoever cannot be asked learns it before anything is looked at.
    ask = asker(output, yes=flags.yes, flag="--fix")
    return mend(
        examiner(fleet),
        examiner,
        reopen,
        ask=ask,
        note=lambda outcome: output.note(outcome.text),
        sudo=flags.sudo,
        only=flags.only,
    )
