"""Data and code: whether every host has what the controller has."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from yoked.doctor.check import Check, page
from yoked.doctor.checks.reading import by_hand, finding, fleet_flag, listed, mapping, part, plural
from yoked.records.examination import Examination, Finding, HostSeen

_SHOWN = 3


def differing(wanted: Mapping[str, str], there: Mapping[str, object]) -> dict[str, str]:
    """{name: "missing" or "other"} of what is not as wanted."""
    return {
        name: "missing" if there.get(name) is None else "other"
        for name, digest in wanted.items()
        if there.get(name) != digest
    }


def _described(flaws: Mapping[str, str]) -> str:
    missing = [name for name, flaw in flaws.items() if flaw == "missing"]
    other = [name for name, flaw in flaws.items() if flaw == "other"]
    parts = []
    for names, word in ((missing, "missing"), (other, "of other content")):
        if names:
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


def _data(seen: Examination) -> Iterator[Finding]:
    for host, flaws in _hosts_with(seen, "data", seen.need.data):
        yield finding(
            "data-differs",
            "error",
            host.name,
            f"the data on {host.name} is not the controller's: {_described(flaws)}",
            "ranks read other rows than they think: the loss is of something else, or an epoch "
            "ends early on one host and all hang",
            by_hand("", f"`yoked train` sends the data that is here to {host.name}; for other "
                        "programs: rsync -a DATA-FOLDER " + shlex.quote(f"{host.name}:")),
        )  # fmt: skip


def _code(seen: Examination) -> Iterator[Finding]:
    for host, flaws in _hosts_with(seen, "code", seen.need.code):
        words = ["yoked", "run", *fleet_flag(seen), "--", "PROGRAM"]
        yield finding(
            "code-differs",
            "warning",
            host.name,
            f"the program's folder on {host.name} is not the one here: {_described(flaws)}",
            "yoked sends the folder that is here, whatever lies there; torchrun by hand would run "
            "two programs: `different tensors`, or a deadlock",
            by_hand("", f"start it with `{shlex.join(words)}`, or copy the folder to {host.name}"),
        )


CHECKS = (
    Check(
        "data-differs",
        "Does every host have the same data?",
        ("need.data", "health.data"),
        "error",
        page(
            symptom="The loss is garbage, or the run hangs at the end of an epoch.",
            cause="Shards are missing on a host, or were prepared there with another tokenizer.",
            fix="By hand, or by `yoked train`, which sends what is missing by content hash.",
            elsewhere="On a cluster the data lies on one shared file system, so it cannot differ; "
            "a stale cache of it can.",
        ),
        _data,
    ),
    Check(
        "code-differs",
        "Does every host have the same program?",
        ("need.code", "health.code"),
        "warning",
        page(
            symptom="`different tensors`, shapes that do not match, or a deadlock at the first "
            "collective.",
            cause="The program was changed on one host.",
            fix="By hand; `yoked run` sends the folder that is here to all hosts.",
        ),
        _code,
    ),
)
