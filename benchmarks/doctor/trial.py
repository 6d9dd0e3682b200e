"""One case from beginning to end: break, ask, compare, mend as printed, train."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from cases import Case
from stage import Stage, stage
from topologies import entries, topology

from yoked.errors import YokedError
from yoked.lab import faults

QUICK_LAUNCH = ("--no-doctor",)


@dataclass
class Row:
    """What came of a case.

    named: the finding that was expected. invented: others of severity error. mended: how the
    cause went away, "" where it did not. trained: whether the next launch did.
    """

    case: str
    injected: list[str]
    network: str
    named: str = ""
    hosts: list[str] = field(default_factory=list)
    severity: str = ""
    fix: list[str] = field(default_factory=list)
    mended: str = ""
    trained: bool = False
    invented: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    doctor_s: float = 0.0
    took_s: float = 0.0
    skipped: str = ""
    trouble: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        return bool(self.named and self.mended and self.trained and not self.invented)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fine": self.fine}


def blocked(cases: Sequence[Case], own: Stage) -> str | None:
    """Why this machine cannot bring a case about; None: it can."""
    for case in cases:
        for line in case.lines:
            if "$ " not in line:
                kind = faults.kind_named(line.split()[0])
                if reason := kind.unsupported(own.lab):
                    return reason
    return None


@contextmanager
def broken(*cases: Case) -> Iterator[Stage]:
    """A lab in which all of that is wrong at once."""
    wanted, interface = topology(cases[0].network)
    with stage(wanted, entries(wanted, interface)) as own:
        for case in cases:
            if case.user is not None:
                for host in wanted.hosts:
                    own.add_user(host.name, case.user)
            for host_name, address in case.aliases.items():
                own.alias(host_name, address)
            for host_name, entry in case.toml.items():
                first = own.entries[wanted.hosts[-1].name]
                own.entries[host_name] = {**own.entries.get(host_name, first), **entry}
        own.write_fleet()
        if blocked(cases, own) is None:
            # A full disk last: nothing can be written to it any more.
            for case in sorted(cases, key=lambda case: case.group == "disk"):
                own.inject(case.lines)
        yield own


def wrong_file(case: Case) -> str:
    """What is wrong in yoked.toml, or in ~/.ssh/config, or about the network itself."""
    wrong = [
        f"{host}: {key} = {value!r}"
        for host, entry in case.toml.items()
        for key, value in entry.items()
    ]
    wrong += [f"ssh: {name} is {of}" for name, of in case.aliases.items()]
    return "; ".join(wrong) or f"the network {case.network}"


def is_named(case: Case, finding: Mapping[str, Any]) -> bool:
    on = set(case.on.split()) & set(finding["hosts"])
    return finding["check"] in case.checks.split() and bool(on)


def examine(case: Case) -> Row:
    """The whole of a case."""
    row = Row(case.name, case.lines or [wrong_file(case)], case.network)
    began_s = time.monotonic()
    with broken(case) as own:
        if reason := blocked([case], own):
            row.skipped = reason
            return row
        try:
            _ask(own, case, row)
            _mend(own, case, row)
            said = own.launch()
            row.trained = said is None
            if said is not None:
                row.trouble.append(said)
        except (YokedError, RuntimeError, OSError) as problem:
            row.trouble.append(str(problem))
    row.took_s = round(time.monotonic() - began_s, 1)
    return row


def _ask(own: Stage, case: Case, row: Row) -> None:
    verdict = own.doctor(*case.flags)
    row.doctor_s = round(verdict.took_s, 2)
    for finding in verdict.findings():
        if is_named(case, finding) and not row.named:
            row.named, row.severity = finding["check"], finding["severity"]
            row.hosts = list(finding["hosts"])
            row.fix = [f"{each['host'] or 'here'}: {each['command']}" for each in finding["fix"]]
            own.fixes = list(finding["fix"])
        elif finding["severity"] == "error":
            row.invented.append(f"{finding['check']} ({', '.join(finding['hosts'])})")
        else:
            row.warned.append(f"{finding['check']} ({', '.join(finding['hosts'])})")
    if not row.named:
        row.trouble.append(f"not found: {case.checks}")


def _mend(own: Stage, case: Case, row: Row) -> None:
    """As printed, where that can be; else what only a person can do is done by healing."""
    lines = [fix for fix in own.fixes if not fix.get("by_hand")]
    if case.cure in ("printed", "warns"):
        row.trouble += [problem for fix in lines if (problem := own.carry_out(fix))]
        done = bool(lines) and not row.trouble
        row.mended = "as printed" if done else "trains anyway" if case.cure == "warns" else ""
        return
    if case.cure == "install":
        says = any(" install " in str(each["command"]) for each in own.fixes)
        row.mended = "from a registry" if says else ""
    else:
        row.mended = "by hand" if own.fixes else ""
    own.repair(case)
