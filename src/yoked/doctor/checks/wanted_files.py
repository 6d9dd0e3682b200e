"""Files and folders that the program here names: whether hosts have them, and can write there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match
from yoked.doctor.checks.query import at, mapping
from yoked.doctor.checks.wanted_query import Told, asked, besides, odd_among, told_of, wanting
from yoked.doctor.repairs.base import by_hand, by_hand_later
from yoked.records.examination import Examination, Fix
from yoked.records.shell import joined, path_word, shell_line
from yoked.units import format_bytes, listed, plural

_SHOWN = 3
# Programs, libraries and settings of a system: they are another in each release.
_OF_A_SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/opt/")
_WORDS = {
    "EACCES": "may not be written",
    "EROFS": "lies on a file system that is mounted read-only",
    "EISDIR": "is a folder",
    "ENOENT": "lies in a folder that is missing",
    "ENOTDIR": "lies in a folder that is none",
}
_HUB_REF = re.compile(r"(.*/(model|dataset|space)s--([^/]+))/refs/[^/]+")
SAW = {
    "missing": "{name}, which the program reads at {place}, is missing on {where}{besides}",
    "alone": "{name}, which the program reads at {place}, is there on {others} alone, and missing "
    "on {where}",
    "resumes": "{name}, for which the program looks at {place} and from which it goes on, is there "
    "on {others}, and missing on {where}",
    "other": "{name}, which the program reads at {place}, is not the same on all hosts: "
    "{described}",
    "unreadable": "{name}, which the program reads at {place}, cannot be read on {where} "
    "({reasons})",
    "above": "{name}, for which the program looks in the folders above its own at {place}, is "
    "{described}",
    "writes": "{name}, which the program writes at {place}, {described}",
    "creates": "{name}, which the program makes at {place} where there must be none, is there "
    "already on {where}",
}
WHY = {
    **dict.fromkeys(
        ("missing", "alone"),
        "ranks that have none end with `No such file or directory`, or do without it, and so "
        "something else than the others",
    ),
    **dict.fromkeys(
        ("other", "above"), "ranks of one run compute with different things, and nobody says so"
    ),
    "resumes": "ranks of one run begin at different steps, and wait for each other in vain",
    "unreadable": "ranks there end with an error when they open it",
    "writes": "ranks there end with an error when they open it to write",
    "creates": "ranks there end with `FileExistsError`",
}
_MENDS = {
    "unreadable": by_hand_later("ls -ld {path}"),
    "above": by_hand_later(
        "put a {name} of its own into the program's folder, which then travels and is found first; "
        "or remove the others"
    ),
    "writes": by_hand_later(
        "ls -ld {path}    shows whose it is; move it away, or have the program write below its own "
        "folder"
    ),
    "creates": by_hand_later("rm {path}    once no program there uses it: `fuser -v {path}`"),
}


def files(seen: Examination) -> Iterator[Match]:
    """Files and folders that hosts lack, cannot read, or have otherwise than each other."""
    here = mapping(at(seen.controller, "asks", "here"))
    homes = {str(host.facts.get("home") or "~") for host in seen.up}
    data = str(seen.need.folders.get("data"))
    # What --data names is compared file by file.
    compared = {data, *(data.replace("~", home, 1) for home in homes)}
    for name, place in asked(seen, "reads", "reads_below"):
        if name in compared:
            continue
        told = told_of(seen, "files", name)
        missing = [host for host, own in told.items() if own["kind"] == "missing"]
        shut = [host for host, own in told.items() if own["kind"] == "unreadable"]
        has = {host: own for host, own in told.items() if host not in (*missing, *shut)}
        if missing and (has or name in here):
            others = list(has) or ["this machine"]
            # The few are to mend: one host alone may have what an earlier run left.
            is_few = 0 < len(has) < len(missing)
            how, hosts = ("alone", list(has)) if is_few else ("missing", missing if has else ())
            fixes = (_taken_away if is_few else _brought)(name, has, missing)
            yield wanting(how, name, place, hosts, fixes, where=listed(missing),
                          besides=besides(others), others=listed(others))  # fmt: skip
        if shut:
            reasons = listed(sorted({str(told[host].get("problem")) for host in shut}))
            yield wanting("unreadable", name, place, shut, _MENDS["unreadable"], reasons=reasons)
        is_whole = name in mapping(at(seen.controller, "asks", "reads"))
        if is_whole and not name.startswith(_OF_A_SYSTEM):
            yield from _other(name, place, has)


def resumed(seen: Examination) -> Iterator[Match]:
    """Checkpoints that some hosts lack: a rank begins at another step there."""
    for name, place in asked(seen, "resumes"):
        told = told_of(seen, "files", name)
        missing = [host for host, own in told.items() if own["kind"] == "missing"]
        has = [host for host in told if host not in missing]
        if missing and has:
            yield wanting("resumes", name, place, missing, _brought(name, has, missing),
                          others=listed(has))  # fmt: skip


def _other(name: str, place: str, has: Told) -> Iterator[Match]:
    """A file or a folder that is there on several hosts, and not the same."""
    odd = odd_among({host: _known_by(own) for host, own in has.items()})
    if odd:
        usual = [host for host in has if host not in odd] or list(has)
        model = has[usual[0]]
        # Of two nobody knows which is meant.
        others = [host for host in odd if host != usual[0]]
        shown = [f"{_as_found(own, model)} on {host}" for host, own in has.items()]
        ref = _HUB_REF.fullmatch(name)
        fixes = _fetched(ref, odd) if ref else _brought(name, usual[:1], others)
        yield wanting("other", name, place, odd, fixes, described=listed(shown))


def _fetched(ref: re.Match[str], hosts: Iterable[str]) -> Iterator[Fix]:
    """A repository of a hub, of which hosts have different revisions."""
    kind = shell_line("") if ref[2] == "model" else shell_line("--repo-type {kind} ", kind=ref[2])
    for host in hosts:
        yield by_hand(
            host,
            "hf download {kind}{name}    fetches the newest where that host has an older one; or "
            "copy {folder} there; in the program, name the revision that is meant",
            kind=kind,
            name=ref[3].replace("--", "/"),
            folder=path_word(ref[1]),
        )


def _known_by(own: Mapping[str, Any]) -> object:
    entries = tuple(sorted(mapping(own.get("entries")).items()))
    return own["kind"], own.get("digest") or own.get("size"), own.get("count"), entries


def _as_found(own: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """A file in words; of a folder, what it has otherwise than the model."""
    kind = own["kind"]
    if kind == "file":
        if own.get("begins"):
            return f"`{own['begins']}`"
        content = f", content {str(own['digest'])[:8]}" if own.get("digest") else ""
        return f"{format_bytes(own.get('size') or 0)}{content}"
    if kind != "folder" or own == model or model["kind"] != "folder":
        return plural(own.get("count") or 0, "name") if kind == "folder" else "no file"
    mine, theirs = mapping(own.get("entries")), mapping(model.get("entries"))
    # The letters are the same, and the bytes are not: as macOS writes names, and others do not.
    spelt = {_normal(each) for each in theirs if each not in mine} & {
        _normal(each) for each in mine if each not in theirs
    }
    names = [each for each in sorted({*mine, *theirs}) if _normal(each) not in spelt]
    parts = [
        (word, [each for each in names if holds(each)])
        for word, holds in (
            ("without {}", lambda each: each not in mine),
            ("with {} besides", lambda each: each not in theirs),
            ("with another {}", lambda each: each in mine and each in theirs
             and mine[each] != theirs[each]),
        )
    ]  # fmt: skip
    parts.append(("with {} in another Unicode spelling (NFC, NFD)", sorted(spelt)))
    words = [word.replace("{}", _first(names)) for word, names in parts if names]
    return f"{plural(own.get('count') or 0, 'name')} ({listed(words)})"


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _first(names: list[str]) -> str:
    more = [plural(len(names) - _SHOWN, "other")] if len(names) > _SHOWN else []
    return listed([*names[:_SHOWN], *more])


def _taken_away(name: str, has: Iterable[str], lacking: Iterable[str]) -> Iterator[Fix]:
    for host in has:
        yield by_hand(
            host,
            "move {path} away there, where it is left from an earlier run; or copy it to {others}",
            path=path_word(name),
            others=joined(" and ", list(lacking)),
        )


def _brought(name: str, has: Iterable[str], lacking: Iterable[str]) -> Iterator[Fix]:
    source = next(iter(has), None)
    for host in lacking:
        if source is None:
            yield by_hand("", "copy {path} to {host}", path=path_word(name), host=host)
        else:
            yield by_hand(
                host,
                "bring {path} there as it is on {source}, if that is as it is meant",
                path=path_word(name),
                source=source,
            )


def above(seen: Examination) -> Iterator[Match]:
    """Files of a name in folders above the program's, of which hosts find others."""
    for name, place in asked(seen, "above"):
        told = told_of(seen, "above", name)
        odd = odd_among({host: _known_by(own) for host, own in told.items()})
        shown = [
            f"missing on {host}" if own["kind"] == "missing"
            else f"{own.get('path')} ({_as_found(own, own)}) on {host}"
            for host, own in told.items()
        ]  # fmt: skip
        if odd:
            fix = _MENDS["above"]("", name=name)
            yield wanting("above", name, place, odd, [fix], described=listed(shown))


def written(seen: Examination) -> Iterator[Match]:
    """What the program could not write on hosts, and what it makes and is there already."""
    makes = mapping(at(seen.controller, "asks", "rewrites"))
    for name, place in asked(seen, "writes", "rewrites"):
        told = told_of(seen, "writes", name)
        bad = {
            host: own for host, own in told.items() if own["problem"] is not None
            and not (own["problem"] == "ENOENT" and name in makes)
        }  # fmt: skip
        # A folder that is nowhere may be one of a machine that is not of the fleet.
        if bad and (len(bad) < len(told) or name not in makes):
            words = [
                f"{_WORDS.get(own['problem'], own['problem'])} on {host}"
                f"{_of_whom(own)}" for host, own in bad.items()
            ]  # fmt: skip
            mend = _MENDS["writes"]
            yield wanting("writes", name, place, list(bad), mend, described=listed(words))
    for name, place in asked(seen, "creates"):
        there = [host for host, own in told_of(seen, "creates", name).items()
                 if own["kind"] != "missing"]  # fmt: skip
        if there:
            yield wanting("creates", name, place, there, _MENDS["creates"])


def _of_whom(own: Mapping[str, Any]) -> str:
    return f" (it belongs to {own['owner']})" if own.get("owner") else ""
