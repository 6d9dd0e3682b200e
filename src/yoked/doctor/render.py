"""What `yoked doctor` says: lines for people, one object for programs. Nothing is done here."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.doctor.fixing import as_typed, is_root
from yoked.doctor.link_matrix import link_payload, links_lines
from yoked.records.examination import Examination, Finding, Fix, HostSeen
from yoked.text import paragraphs
from yoked.units import format_duration, plural

# Longer lines are hard to read, whatever the terminal.
_WIDEST = 100
_NARROWEST = 40
# Two columns are added in front of evidence.
_INDENT = 2


def payload(examination: Examination, findings: Sequence[Finding]) -> dict[str, Any]:
    """As --json has it."""
    return {
        "ok": not errors_of(findings),
        "took_s": examination.took_s,
        "quick": examination.quick,
        "hosts": [host.name for host in examination.hosts],
        "up": [host.name for host in examination.up],
        "findings": [finding_payload(each, examination) for each in findings],
        "links": link_payload(examination),
        "world": None if examination.world is None else {"ok": examination.world.ok},
        "not_looked_at": gaps(examination),
    }


def finding_payload(finding: Finding, examination: Examination) -> dict[str, Any]:
    """A finding of --json; its fixes are as a person would type them."""
    return {
        "check": finding.check,
        "severity": finding.severity,
        "hosts": list(finding.hosts),
        "link": None if finding.link is None else list(finding.link),
        "saw": finding.saw,
        "why": finding.why,
        "fix": [
            {
                "host": fix.host,
                "command": typed(fix, examination),
                "root": fix.root,
                "by_hand": fix.by_hand,
                "undo": fix.undo,
            }
            for fix in finding.fix
        ],
        "follows": [finding_payload(each, examination) for each in finding.follows],
    }


def typed(fix: Fix, examination: Examination) -> str:
    """The line as it is typed on its host."""
    return as_typed(fix, root_there=is_root(examination, fix.host))


def errors_of(findings: Sequence[Finding]) -> list[Finding]:
    """Those that keep a run from working."""
    return [each for each in findings if each.severity == "error"]


def warnings_of(findings: Sequence[Finding]) -> list[Finding]:
    """Those that make a run slow or fragile."""
    return [each for each in findings if each.severity == "warning"]


def counts_text(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning`, or nothing."""
    both = (("error", errors_of(findings)), ("warning", warnings_of(findings)))
    return ", ".join(plural(len(own), noun) for noun, own in both if own)


def verdict(fleet: str, examination: Examination, findings: Sequence[Finding]) -> str:
    """The first line: whether a run would work."""
    pairs = {(each.source, each.target) for each in examination.dials}
    looked = [plural(len(examination.hosts), "host")]
    if pairs:
        looked.append(plural(len(pairs), "link"))
    if examination.world is not None and examination.world.ok:
        looked.append("a real world of ranks")
    seen = f"({', '.join(looked)}; {format_duration(examination.took_s)})"
    if errors_of(findings):
        return f"fleet {fleet}: {counts_text(findings)}: a run would not work yet {seen}"
    if findings:
        return f"fleet {fleet}: a run will work; {counts_text(findings)} {seen}"
    if len(examination.up) < len(examination.hosts):
        return f"fleet {fleet}: not all hosts could be looked at {seen}"
    return f"fleet {fleet}: nothing is in the way of a run {seen}"


def evidence(
    examination: Examination, findings: Sequence[Finding], *, bandwidth: bool = False
) -> list[str]:
    """All lines below the verdict: findings by host, links, what was not looked at."""
    return paragraphs(
        *_error_sections(examination, findings),
        _warning_lines(examination, findings),
        links_lines(examination, width()),
        _gap_lines(examination, bandwidth),
    )


def width() -> int:
    """Columns for a line of evidence."""
    columns = shutil.get_terminal_size((_WIDEST, 24)).columns
    return max(_NARROWEST, min(columns, _WIDEST)) - _INDENT - 1


def _error_sections(examination: Examination, findings: Sequence[Finding]) -> list[list[str]]:
    """A section for each host that has something to mend, in the order to mend."""
    by_host: dict[str, list[str]] = {}
    for finding in errors_of(findings):
        host = finding.hosts[0] if finding.hosts else "this machine"
        lines = by_host.setdefault(host, [f"{host}:"])
        lines += indented(error_lines(finding, examination), 2)
    return list(by_host.values())


def error_lines(finding: Finding, examination: Examination) -> Iterator[str]:
    """An error: its name and place, what was seen, what follows, and the lines that mend it."""
    yield f"error  {finding.check}{_place(finding)}"
    room = width() - 4
    yield from indented(_seen_lines(finding, room), 2)
    yield from indented(fix_lines(finding.fix, examination, room), 2)


def problem_lines(finding: Finding) -> Iterator[str]:
    """An error without the lines that mend it, with all its hosts."""
    yield f"{finding.check}, {_where(finding)}:"
    yield from indented(_seen_lines(finding, width() - 2), 2)


def _seen_lines(finding: Finding, room: int) -> Iterator[str]:
    yield from wrapped("saw  ", finding.saw, room)
    yield from wrapped("why  ", finding.why, room)
    for each in finding.follows:
        yield from wrapped("so   ", f"{each.check}{_place(each)}: {each.saw}", room)


def _place(finding: Finding) -> str:
    """Where it is, when that is more than the host under whose name it stands."""
    if finding.link is not None:
        return f", {finding.link[0]} to {finding.link[1]}"
    return f", {', '.join(finding.hosts)}" if len(finding.hosts) > 1 else ""


def fix_lines(fixes: Sequence[Fix], examination: Examination, room: int) -> Iterator[str]:
    """The lines that mend something, each by itself and whole: ready to be pasted.

    What is the same on several hosts is said once.
    """
    shown: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for (host, by_hand), own in itertools.groupby(fixes, key=lambda fix: (fix.host, fix.by_hand)):
        lines = tuple(typed(fix, examination) for fix in own)
        shown.setdefault((by_hand, lines), []).append(host or "this machine")
    for (by_hand, lines), hosts in shown.items():
        yield f"on {', '.join(hosts)}{', by hand' if by_hand else ''}:"
        for line in lines:
            told = wrapped("", line, room - 2) if by_hand else line.splitlines()
            yield from indented(told, 2)


def _warning_lines(examination: Examination, findings: Sequence[Finding]) -> Iterator[str]:
    """Warnings are short: what was seen, check by check, and the lines that mend it."""
    found = warnings_of(findings)
    if found:
        yield "warnings:"
    for check, group in itertools.groupby(found, key=lambda each: each.check):
        own = list(group)
        for number, finding in enumerate(own):
            label = f"{check}  " if number == 0 else " " * len(f"{check}  ")
            told = f"{_where(finding)}: {finding.saw}"
            yield from indented(wrapped(label, told, width() - 2, hang=4), 2)
        fixes = [fix for finding in own for fix in finding.fix]
        yield from indented(fix_lines(fixes, examination, width() - 4), 4)


def _where(finding: Finding) -> str:
    if finding.link is not None:
        return " to ".join(finding.link)
    return ", ".join(finding.hosts) or "this machine"


def gaps(examination: Examination) -> list[str]:
    """What was not looked at, and why."""
    found = [
        f"{host.name}: no agent came up there, so nothing of it, nor its links"
        for host in examination.hosts
        if not host.up
    ]
    found += _parts_left_out(examination)
    silent: dict[str, list[str]] = {}
    for host in examination.up:
        silent.setdefault(", ".join(_silent_parts(host)), []).append(host.name)
    return [*found, *(f"unknown on {', '.join(on)}: {told}" for told, on in silent.items() if told)]


def _parts_left_out(examination: Examination) -> Iterator[str]:
    """What was tried on no host or link; the quick form leaves out what takes long."""
    many = len(examination.up) > 1
    reason = "the quick form" if examination.quick else "it was not tried"
    world = examination.world
    if many and not any(dial.purpose == "bulk" for dial in examination.dials):
        yield f"bulk data on the links: {reason}"
    if many and (world is None or world.ok is None):
        yield f"a real world of ranks: {(world and world.reason) or reason}"
    late = [host.name for host in examination.up if (host.torch or {}).get("imported") is None]
    if late:
        reason = "the quick form" if examination.quick else "it was not waited for"
        yield f"all of torch's import on {', '.join(late)}: {reason}"


def _silent_parts(host: HostSeen) -> list[str]:
    """Parts of a host's health that it could not tell; to have no gateway is an answer."""
    nulls = [name for name, part in host.health.items() if part is None and name != "gateway"]
    silent = list(host.health.get("untold", nulls) or ())
    firewall: Mapping[str, Any] = host.health.get("firewall") or {}
    if firewall.get("active") is not False and firewall and firewall.get("rules") is None:
        silent.append("the rules of its firewall (only root reads them: --sudo)")
    silent += [f"{place} (not understood)" for place in host.odd]
    return silent


def _gap_lines(examination: Examination, bandwidth: bool) -> Iterator[str]:
    found = gaps(examination)
    if not bandwidth and not examination.quick and len(examination.up) > 1:
        found.append("bandwidth: --bandwidth measures it")
    if examination.need.checkpoint_bytes is None and not examination.quick:
        found.append("room for checkpoints: --depth N says of which model")
    if found:
        yield "not looked at:"
    for line in found:
        yield from indented(wrapped("", line, width() - 2), 2)


def page_lines(page: str) -> list[str]:
    """A check's page for a terminal: paragraphs in lines, emphasis without its stars."""
    lines: list[str] = []
    for paragraph in page.strip().split("\n\n"):
        lines += ["", *wrapped("", paragraph.replace("**", ""), width())]
    return lines


def wrapped(label: str, text: str, room: int, *, hang: int | None = None) -> list[str]:
    """A text behind its label, in lines of at most `room` columns.

    hang: columns in front of all lines but the first; None: those of the label.
    """
    lines: list[str] = []
    for number, paragraph in enumerate(text.splitlines() or [""]):
        indent = " " * (len(label) if hang is None else hang)
        lines += textwrap.wrap(
            paragraph,
            max(room, _NARROWEST // 2),
            initial_indent=indent if number else label,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def indented(lines: Iterator[str] | Sequence[str], columns: int) -> Iterator[str]:
    """Lines further to the right."""
    return (" " * columns + line for line in lines)
