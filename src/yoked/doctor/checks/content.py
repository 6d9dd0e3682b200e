"""Data and code: whether every host has what the controller has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import fleet_flag
from yoked.records.examination import Examination, HostSeen
from yoked.records.shell import command_line, shell_line
from yoked.units import listed, plural

_SHOWN = 3


def differing(wanted: Mapping[str, str], there: Mapping[str, object]) -> dict[str, str]:
    """{name: "missing", "other" or "extra"} of what is not as wanted.

    Extra is what a run would read too, as far as names tell: none that is hidden, or of a kind
    that is not wanted at all (a log, a note).
    """
    flaws = {
        name: "missing" if there.get(name) is None else "other"
        for name, digest in wanted.items()
        if there.get(name) != digest
    }
    kinds = {PurePosixPath(name).suffix for name in wanted}
    more = (PurePosixPath(name) for name in there if name not in wanted)
    for path in more:
        is_hidden = any(part.startswith(".") for part in path.parts)
        if path.suffix in kinds and not is_hidden:
            flaws[str(path)] = "extra"
    return flaws


def _described(flaws: Mapping[str, str]) -> str:
    words = {"missing": "missing", "other": "of other content", "extra": "extra"}
    parts = []
    for flaw, word in words.items():
        if names := [name for name, own in flaws.items() if own == flaw]:
            more = f" and {plural(len(names) - _SHOWN, 'other')}" if len(names) > _SHOWN else ""
            parts.append(f"{', '.join(names[:_SHOWN])}{more} {word}")
    return listed(parts)


def _hosts_with(
    seen: Examination, name: str, wanted: Mapping[str, str] | None
) -> Iterator[tuple[HostSeen, dict[str, str]]]:
    """Hosts that told their digests, and those have flaws."""
    for host in seen.up if wanted else ():
        there = part(host, name)
        if there is None or wanted is None:
            continue
        if flaws := differing(wanted, mapping(there)):
            yield host, flaws


@check(
    "data-differs",
    question="Does every host have the same data?",
    reads=("need.data", "health.data"),
    severity="error",
    saw="the data on {host} is not the controller's: {described}",
    why="ranks read other rows than they think: the loss is of something else, or an epoch "
    "ends early on one host and all hang",
    symptom="The loss is garbage, or the run hangs at the end of an epoch.",
    cause="Shards are missing on a host, were prepared there with another tokenizer, or "
    "are left from an earlier set, which a program that takes all files reads too.",
    fix="By hand, or by `yoked train`, which sends what is missing by content hash.",
    on_cluster="On a cluster the data lies on one shared file system, so it cannot differ; "
    "a stale cache of it can.",
)
def data_differs(seen: Examination) -> Iterator[Match]:
    for host, flaws in _hosts_with(seen, "data", seen.need.data):
        more = shell_line(", and remove what is extra there")
        yield Match(
            host.name,
            by_hand(
                "",
                "`yoked train` sends the data that is here to {host}; for other programs: "
                "rsync -a DATA-FOLDER {there}{more}",
                host=host.name,
                there=f"{host.name}:",
                more=more if "extra" in flaws.values() else shell_line(""),
            ),
            described=_described(flaws),
        )


@check(
    "code-differs",
    question="Does every host have the same program?",
    reads=("need.code", "health.code"),
    severity="warning",
    saw="the program's folder on {host} is not the one here: {described}",
    why="yoked sends the folder that is here, whatever lies there; torchrun by hand would "
    "run two programs: `different tensors`, or a deadlock",
    symptom="`different tensors`, shapes that do not match, or a deadlock at the first collective.",
    cause="The program was changed on one host, or has files there that are gone here.",
    fix="By hand; `yoked run` sends the folder that is here to all hosts.",
)
def code_differs(seen: Examination) -> Iterator[Match]:
    for host, flaws in _hosts_with(seen, "code", seen.need.code):
        words = ["yoked", "run", *fleet_flag(seen), "--", "PROGRAM"]
        yield Match(
            host.name,
            by_hand(
                "",
                "start it with `{line}`, or copy the folder to {host}",
                line=command_line(*words),
                host=host.name,
            ),
            described=_described(flaws),
        )


CHECKS = (data_differs, code_differs)
