"""`yoked doctor`: what will go wrong on these hosts, why, and the lines that mend it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from yoked.cli.flags import FleetFile, JsonFlag
from yoked.cli.output import Output
from yoked.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from yoked.doctor.check import Check
    from yoked.doctor.judge import Seen
    from yoked.doctor.mending import Mended
    from yoked.fleet.model import Fleet

LOOK = Group("What is looked at", sort_key=1)
MEND = Group("Mending", sort_key=2)
PAPERS = Group("Words and papers", sort_key=3)


def _flag(group: Group, help_text: str, **more: Any) -> Parameter:
    return Parameter(help=help_text, group=group, **more)


def _switch(group: Group, help_text: str) -> Parameter:
    return _flag(group, help_text, negative="")


@dataclass(frozen=True)
class DoctorFlags:
    """What is wanted of the doctor."""

    quick: Annotated[bool, _switch(LOOK, "Only what takes less than two seconds.")] = False
    bandwidth: Annotated[bool, _switch(LOOK, "Measure the bandwidth of every link too.")] = False
    depth: Annotated[
        int | None, _flag(LOOK, "Layers of the model to be trained: is there room for it?")
    ] = None
    data: Annotated[
        Path | None,
        _flag(LOOK, "A folder that every host should have as it is here, compared by content."),
    ] = None
    code: Annotated[Path | None, _flag(LOOK, "The same for the folder of a program.")] = None
    fix: Annotated[
        bool, _switch(MEND, "Carry out the fixes of errors that need no root, one by one, asking.")
    ] = False
    sudo: Annotated[
        bool,
        _switch(
            MEND,
            "Use `sudo -n` on hosts: to read what only root reads, and with --fix to carry out "
            "what needs root too.",
        ),
    ] = False
    only: Annotated[
        tuple[str, ...],
        _flag(
            MEND,
            "With --fix: carry out the fixes of these checks alone, of warnings too. Default: "
            "those of errors.",
        ),
    ] = ()
    yes: Annotated[bool, _switch(MEND, "With --fix or --undo: do not ask.")] = False
    undo: Annotated[
        bool, _switch(MEND, "Take back what --fix did on this fleet, newest first.")
    ] = False
    explain: Annotated[str | None, _flag(PAPERS, "Say what a check is about, by its name.")] = None
    bundle: Annotated[
        Path | None, _flag(PAPERS, "Write a zip file for a bug report, secrets left out.")
    ] = None
    from_file: Annotated[
        Path | None,
        _flag(PAPERS, "Judge a saved examination (a bundle) instead of hosts.", name="--from"),
    ] = None

    def check(self) -> None:
        """Raise UsageError for what cannot be meant, alone or together."""
        looks = self._given("quick", "bandwidth", "depth", "data", "code", "sudo")
        wishes = self._given("explain", "from_file", "fix", "undo")
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
        for flag, folder in (("--data", self.data), ("--code", self.code)):
            if folder is not None and not folder.is_dir():
                raise UsageError(
                    f"{flag} {folder}: there is no such folder here",
                    fix="name one as it is on this machine, with what all hosts should have",
                )
        self._check_bundle()

    def _check_bundle(self) -> None:
        if self.bundle is None:
            return
        if self.undo or self.explain is not None:
            raise UsageError("--bundle keeps what was seen", fix="yoked doctor --bundle FILE.zip")
        if self.bundle.exists():
            raise UsageError(
                f"--bundle {self.bundle}: there is such a file, and it is left as it is",
                fix=f"name another, or rm {self.bundle}",
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
    from yoked.doctor.judge import replayed

    output = Output(json_mode=json_output)
    flags.check()
    if flags.explain is not None:
        return _explain(flags.explain, output)
    if flags.from_file is not None:
        return _report(replayed(flags.from_file), flags, output)
    if flags.undo:
        from yoked.cli.commands.doctor_fix import take_all_back
        from yoked.fleet.file import open_fleet

        return take_all_back(open_fleet(fleet), output, ask=_asker(flags, output))
    return _examine(fleet, flags, output)


def _examine(named: Path | None, flags: DoctorFlags, output: Output) -> int:
    """Look, mend where that is wanted, and report; the exit status."""
    from yoked.cli.live import StatusLine
    from yoked.doctor.judge import Examiner
    from yoked.fleet.file import open_fleet
    from yoked.train.config import TrainConfig
    from yoked.workflows.need import need_of

    fleet = open_fleet(named)
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
    )
    if flags.only:
        from yoked.doctor.catalog import check_named

        for name in flags.only:
            check_named(name)
    # Whoever cannot be asked learns it before anything is looked at.
    ask = _asker(flags, output) if flags.fix else None
    seen = examiner(fleet)
    mended: Sequence[Mended] = ()
    if ask is not None:
        from yoked.cli.commands.doctor_fix import outcome_text
        from yoked.doctor.mending import mend

        seen, mended = mend(
            seen,
            examiner,
            lambda: open_fleet(named),
            ask=ask,
            note=lambda outcome: output.note(outcome_text(outcome)),
            sudo=flags.sudo,
            only=flags.only,
        )
    return _report(seen, flags, output, fleet, mended)


def _asker(flags: DoctorFlags, output: Output) -> Callable[[Sequence[str]], bool]:
    from yoked.cli.commands.doctor_fix import asker

    return asker(output, yes=flags.yes, flag="--undo" if flags.undo else "--fix")


def _report(
    seen: Seen,
    flags: DoctorFlags,
    output: Output,
    fleet: Fleet | None = None,
    mended: Sequence[Mended] = (),
) -> int:
    """Say what was found; the exit status. fleet: None for a saved examination."""
    from yoked.cli.commands.doctor_fix import mended_lines
    from yoked.doctor import render as text

    payload = text.payload(seen.examination, seen.findings)
    verdict = text.verdict(seen.fleet, seen.examination, seen.findings)
    evidence = text.evidence(seen.examination, seen.findings, bandwidth=flags.bandwidth)
    if mended:
        payload["fixed"] = [each.to_dict() for each in mended]
        evidence = [*mended_lines(mended), "", *evidence]
    if flags.bundle is not None:
        _write_bundle(flags.bundle, seen, "\n".join([verdict, *evidence, ""]), fleet)
        payload["bundle"] = str(flags.bundle)
        kept = f"kept in {flags.bundle}, for a bug report: read it before you send it"
        evidence = [*evidence, "", kept]
    output.result(
        payload,
        verdict=verdict,
        evidence=evidence,
        next_commands=[] if fleet is None else _next(seen, fleet, fixed=flags.fix),
    )
    return 1 if text.errors_of(seen.findings) else 0


def _next(seen: Seen, fleet: Fleet, *, fixed: bool) -> list[str]:
    from yoked.doctor.fixing import plan_fixes
    from yoked.doctor.render import errors_of

    flag = fleet.flag
    if not errors_of(seen.findings):
        return [f"yoked train{flag}"]
    name = errors_of(seen.findings)[0].check
    found = [f"yoked doctor --explain {name}    says more of it"]
    able = [not each.left for each in plan_fixes(seen.findings, seen.examination, sudo=False)]
    as_root = [not each.left for each in plan_fixes(seen.findings, seen.examination, sudo=True)]
    if any(as_root) and not fixed:
        sudo = "" if any(able) else " --sudo"
        found.append(f"yoked doctor --fix{sudo}{flag}    carries out what it can, asking")
    return found


def _write_bundle(path: Path, seen: Seen, report: str, fleet: Fleet | None) -> None:
    from yoked.doctor.bundle import bundle, write_bundle
    from yoked.doctor.render import finding_payload
    from yoked.doctor.replay import to_json

    has_file = fleet is not None and fleet.path.is_file()
    files = bundle(
        to_json(seen.examination),
        [finding_payload(each, seen.examination) for each in seen.findings],
        report,
        fleet.path.read_text(encoding="utf-8") if fleet is not None and has_file else None,
    )
    write_bundle(path, files)


def _explain(name: str, output: Output) -> int:
    """Print a check's page. Raises UsageError with the nearest for a name that no check has."""
    from yoked.doctor.catalog import CHECKS
    from yoked.doctor.render import page_lines

    known: dict[str, Check] = {check.code: check for check in CHECKS}
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise UsageError(
            f"--explain {name}: there is no such check", fix=f"yoked doctor --explain {near[0]}"
        )
    check = known[name]
    payload = {
        "check": check.code,
        "question": check.question,
        "severity": check.severity,
        "needs": list(check.reads),
        "page": check.page,
    }
    verdict = f"{check.code}: {check.question}"
    output.result(payload, verdict=verdict, evidence=page_lines(check.page))
    return 0
