"""What the program here asks of each host by name: whether it is there, and the same on all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import where_set
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.checks.wanted_files import above, files, written
from yoked.doctor.checks.wanted_query import asked, besides, odd_among, told_of
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination
from yoked.units import listed, plural

_LONGEST = 60
# Variables that are each host's own affair.
_OWN = re.compile(
    r"HOST(NAME)?|TE?MP(DIR)?|(XDG|CUDA|SSH|SLURM|PBS|LC)_\w+|TERM|DISPLAY|LANG|EDITOR"
    r"|\w*(DEVICE|INTERFACE|IFNAME|PORT|ADDR|CACHE|THREADS|WORKERS|CORES|NODE|HOST)\w*"
)
_TAKEN = {"EADDRINUSE": "another program has it", "EACCES": "only root may (ports below "
          "net.ipv4.ip_unprivileged_port_start)"}  # fmt: skip


@check(
    "program-asks",
    question="Does each host have what the program here asks it for by name?",
    reads=("controller", "health.asked"),
    severity="warning",
    saw={
        "variables": "the program takes the variable {name} at {place}, and nothing in its stead; "
        "it is not set on {where}{besides}",
        "settings": "the variable {name}, which the program takes at {place}, is {described}",
        "missing": "{name}, which the program reads at {place}, is missing on {where}{besides}",
        "alone": "{name}, which the program reads at {place}, is there on {others} alone, and "
        "missing on {where}",
        "other": "{name}, which the program reads at {place}, is not the same on all hosts: "
        "{described}",
        "unreadable": "{name}, which the program reads at {place}, cannot be read on {where}"
        "{besides}",
        "above": "{name}, for which the program looks in the folders above its own at {place}, is "
        "{described}",
        "writes": "{name}, which the program writes at {place}, {described}",
        "creates": "{name}, which the program makes at {place} where there must be none, is there "
        "already on {where}",
        "programs": "the program starts {name} at {place}; there is none in the PATH of {where}",
        "libraries": "the program loads {name} at {place}; the loader finds none on {where}",
        "ports": "the program listens at port {name} at {place}; on {where} it could not: "
        "{described}",
        "hosts": "the program calls {name} at {place}; {where} cannot resolve that name, and "
        "{others} can",
        "caches": "{name}, which the program takes out of a cache at {place}, is {described}",
        "fills": "the program writes into {name}/ at {place}, and makes no such folder; the one "
        "that is here would stay here, by git's rules",
        "shuffled": "names of files are taken out of a set as they come, at {place}: `{name}`; "
        "that is another order in each process",
        "beyond": "{name}, which the program reads at {place}, lies outside of the program's "
        "folder, and would stay here",
    },
    why={
        "variables": "ranks there end with `KeyError: '{name}'`",
        **dict.fromkeys(
            ("settings", "other", "above", "caches"),
            "ranks of one run compute with different things, and nobody says so",
        ),
        **dict.fromkeys(
            ("missing", "alone"),
            "ranks that have none end with `No such file or directory`, or do without it, and so "
            "something else than the others",
        ),
        "unreadable": "ranks there end with an error when they open it",
        "writes": "ranks there end with an error when they open it to write",
        "shuffled": "a program that deals names out by rank has some files read twice and others "
        "never",
        "creates": "ranks there end with `FileExistsError`",
        "programs": "ranks there end with `FileNotFoundError: [Errno 2] No such file or directory: "
        "'{name}'`, or a shell's `not found`",
        "libraries": "ranks there end with `OSError: {name}: cannot open shared object file`",
        "ports": "ranks there end when they bind it",
        "hosts": "ranks there end with `Name or service not known`",
        "fills": "`No such file or directory` on every host, though it is found here",
        "beyond": "`No such file or directory` on every host, though it is found here",
    },
    symptom="`KeyError`, `FileNotFoundError`, `PermissionError`, `FileExistsError` on one host and "
    "not on the others; or ranks that train on different things.",
    cause="A file, a cache or a variable that was set up by hand on some hosts; what an earlier "
    "run or another user left there, in /tmp or /dev/shm; a program that is not installed. Asked "
    "for is what stands in the sources here, in the folder where this was typed, and is used: a "
    "variable with a default, and what the program makes itself, is not missed. Of small packages "
    "that it imports, settings in the home folder and variables count, which hosts have otherwise "
    "than each other.",
    fix="By hand.",
)
def program_asks(seen: Examination) -> Iterator[Match]:
    for judge in (_variables, files, above, written, _lacking, _net, _caches, _here):
        yield from judge(seen)


def _variables(seen: Examination) -> Iterator[Match]:
    set_here = at(seen.controller, "set_here") or ()
    for name, place in asked(seen, "variables", "settings"):
        told = told_of(seen, "variables", name)
        without = [host for host, value in told.items() if value is None]
        needed = name in mapping(at(seen.controller, "asks", "variables"))
        if needed and without:
            along = by_hand(
                "", "yoked run --env {name} ...    sends the one of this shell along", name=name
            )
            fixes = [by_hand(host, "export {name}=...    in a start file there; or --env {name}=..."
                             " of `yoked run`", name=name) for host in without]  # fmt: skip
            has = [host for host in told if host not in without]
            here = [*has, "this machine"] if name in set_here else has
            yield Match(
                without,
                *([along] if name in set_here else fixes),
                how="variables",
                name=name,
                place=place,
                where=listed(without),
                besides=besides(here, "is set on"),
            )
            continue
        # Others checks have the variables that are told of each host.
        is_known = any(name in mapping(part(host, "environment")) for host in seen.up)
        plain = {host: _without_home(seen, host, value) for host, value in told.items()}
        odd = odd_among(plain)
        if odd and not is_known and not _OWN.fullmatch(name):
            shown = [
                f"{'not set' if value is None else value[:_LONGEST]} on {host}"
                f"{where_set(seen.host(host), name)}"
                for host, value in told.items()
            ]
            yield Match(
                odd,
                *(by_hand(host, "set {name} as on the others", name=name) for host in odd),
                how="settings",
                name=name,
                place=place,
                described=listed(shown),
            )


def _without_home(seen: Examination, host: str, value: object) -> str | None:
    """A value to compare; where it is a path, each host may well have its own."""
    if value is not None and str(value).startswith(("/", "~")):
        return "a path"
    home = str(seen.host(host).facts.get("home") or "~")
    return None if value is None else str(value).replace(home, "~")


def _files(seen: Examination) -> Iterator[Match]:
    here = mapping(at(seen.controller, "asks", "here"))
    homes = {str(host.facts.get("home") or "~") for host in seen.up}
    data = str(seen.need.folders.get("data"))
    # What --data names is compared file by file.
    compared = {data, *(data.replace("~", home, 1) for home in homes)}
    for name, place in _asked(seen, "reads", "reads_below"):
        if name in compared:
            continue
        told = _told(seen, "files", name)
        missing = [host for host, own in told.items() if own["kind"] == "missing"]
        shut = [host for host, own in told.items() if own["kind"] == "unreadable"]
        has = {host: own for host, own in told.items() if host not in (*missing, *shut)}
        if missing and (has or name in here):
            others = list(has) or ["this machine"]
            # The few are to mend: one host alone may have what an earlier run left.
            is_few = 0 < len(has) < len(missing)
            yield Match(
                list(has) if is_few else missing if has else (),
                *(_taken_away(name, has, missing) if is_few else _brought(name, has, missing)),
                how="alone" if is_few else "missing",
                name=name,
                place=place,
                where=listed(missing),
                besides=_besides(others),
                others=listed(others),
            )
        if shut:
            reasons = {str(told[host].get("problem")) for host in shut}
            yield Match(
                shut,
                *(by_hand(host, "ls -ld {path}", path=path_word(name)) for host in shut),
                how="unreadable",
                name=name,
                place=place,
                where=listed(shut),
                besides=f" ({listed(sorted(reasons))})",
            )
        is_whole = name in mapping(at(seen.controller, "asks", "reads"))
        if is_whole and not name.startswith(_OF_A_SYSTEM):
            yield from _other(name, place, has)


def _other(name: str, place: str, has: _Told) -> Iterator[Match]:
    """A file or a folder that is there on several hosts, and not the same."""
    odd = _odd({host: _known_by(own) for host, own in has.items()})
    if odd:
        usual = [host for host in has if host not in odd] or list(has)
        model = has[usual[0]]
        # Of two nobody knows which is meant.
        others = [host for host in odd if host != usual[0]]
        shown = [f"{_as_found(own, model)} on {host}" for host, own in has.items()]
        ref = _HUB_REF.fullmatch(name)
        yield Match(
            odd,
            *(_fetched(ref, odd) if ref else _brought(name, usual[:1], others)),
            how="other",
            name=name,
            place=place,
            described=listed(shown),
        )


def _fetched(ref: re.Match[str], hosts: Iterable[str]) -> Iterator[Fix]:
    """A repository of a hub, of which hosts have different revisions."""
    is_model = ref[2] == "model"
    kind = shell_line("") if is_model else shell_line("--repo-type {kind} ", kind=ref[2])
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
    parts = [
        (word, [each for each in sorted({*mine, *theirs}) if holds(each)])
        for word, holds in (
            ("without {}", lambda each: each not in mine),
            ("with {} besides", lambda each: each not in theirs),
            ("with another {}", lambda each: each in mine and each in theirs
             and mine[each] != theirs[each]),
        )
    ]  # fmt: skip
    words = [word.replace("{}", _first(names)) for word, names in parts if names]
    return f"{plural(own.get('count') or 0, 'name')} ({listed(words)})"


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


def _above(seen: Examination) -> Iterator[Match]:
    for name, place in _asked(seen, "above"):
        told = _told(seen, "above", name)
        odd = _odd({host: _known_by(own) for host, own in told.items()})
        if not odd:
            continue
        shown = [
            f"missing on {host}" if own["kind"] == "missing"
            else f"{own.get('path')} ({_as_found(own, own)}) on {host}"
            for host, own in told.items()
        ]  # fmt: skip
        yield Match(
            odd,
            by_hand(
                "",
                "put a {name} of its own into the program's folder, which then travels and is "
                "found first; or remove the others",
                name=name,
            ),
            how="above",
            name=name,
            place=place,
            described=listed(shown),
        )


def _written(seen: Examination) -> Iterator[Match]:
    makes = mapping(at(seen.controller, "asks", "rewrites"))
    for name, place in _asked(seen, "writes", "rewrites"):
        told = _told(seen, "writes", name)
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
            yield Match(
                list(bad),
                *(
                    by_hand(host, "ls -ld {path}    shows whose it is; move it away, or have the "
                            "program write below its own folder", path=path_word(name))
                    for host in bad
                ),
                how="writes",
                name=name,
                place=place,
                described=listed(words),
            )  # fmt: skip
    for name, place in _asked(seen, "creates"):
        there = [host for host, own in _told(seen, "creates", name).items()
                 if own["kind"] != "missing"]  # fmt: skip
        if there:
            yield Match(
                there,
                *(by_hand(host, "rm {path}    once no program there uses it: `fuser -v {path}`",
                          path=path_word(name)) for host in there),
                how="creates",
                name=name,
                place=place,
                where=listed(there),
            )  # fmt: skip


def _of_whom(own: Mapping[str, Any]) -> str:
    return f" (it belongs to {own['owner']})" if own.get("owner") else ""


def _lacking(seen: Examination) -> Iterator[Match]:
    for kind in ("programs", "libraries"):
        for name, place in asked(seen, kind):
            told = told_of(seen, kind, name)
            lacking = [host for host, own in told.items()
                       if (own is None if kind == "programs" else own is False)]  # fmt: skip
            if lacking:
                yield Match(
                    lacking,
                    *(
                        by_hand(host, "install {name} there, or have it in the PATH of a login by "
                                "ssh: `command -v {name}`", name=name)
                        if kind == "programs" else
                        by_hand(host, "install the package that has {name}; `ldconfig -p` lists "
                                "what the loader finds", name=name)
                        for host in lacking
                    ),
                    how=kind,
                    name=name,
                    place=place,
                    where=listed(lacking),
                )  # fmt: skip


def _net(seen: Examination) -> Iterator[Match]:
    for name, place in asked(seen, "ports"):
        bad = {host: own for host, own in told_of(seen, "ports", name).items() if own is not None}
        if bad:
            yield Match(
                list(bad),
                *(by_hand(host, "sudo ss -ltnp 'sport = :{name}'    shows who has it; or give the "
                          "program another port", name=name) for host in bad),
                how="ports",
                name=name,
                place=place,
                where=listed(bad),
                described=listed(sorted({_TAKEN.get(each, each) for each in bad.values()})),
            )  # fmt: skip
    for name, place in asked(seen, "hosts"):
        told = told_of(seen, "hosts", name)
        lost = [host for host, own in told.items() if own is False]
        # Where no host has it, a program may well do without.
        if lost and len(lost) < len(told):
            yield Match(
                lost,
                *(by_hand(host, "getent hosts {name}    there, and on the others; then a line in "
                          "/etc/hosts, or the name server of the others", name=name)
                  for host in lost),
                how="hosts",
                name=name,
                place=place,
                where=listed(lost),
                others=listed(host for host in told if host not in lost),
            )  # fmt: skip


def _caches(seen: Examination) -> Iterator[Match]:
    for kind in ("hub", "torch_hub", "nltk"):
        for name, place in asked(seen, kind):
            told = told_of(seen, kind, name)
            # One that is not there yet is fetched, where that is not forbidden.
            known = {host: own for host, own in told.items()
                     if own["revision"] is not None or own["offline"]}  # fmt: skip
            odd = odd_among({host: (own["revision"], tuple(sorted(mapping(own["files"]).items())))
                        for host, own in known.items()})  # fmt: skip
            if odd:
                shown = [
                    f"{_revision(own)} on {host} ({own['folder']})" for host, own in known.items()
                ]
                yield Match(
                    odd,
                    *(by_hand(host, "fetch {name} anew there, or copy the folder from another "
                              "host; in the program, name the revision that is meant", name=name)
                      for host in odd),
                    how="caches",
                    name=name,
                    place=place,
                    described=listed(shown),
                )  # fmt: skip


def _revision(own: Mapping[str, Any]) -> str:
    files = f" with {plural(len(own['files']), 'file')}" if own["files"] else ""
    return "missing" if own["revision"] is None else f"at {own['revision']}{files}"


def _here(seen: Examination) -> Iterator[Match]:
    left = at(seen.controller, "left_folders") or ()
    for name, place in asked(seen, "fills"):
        if name in left:
            make = by_hand("", "os.makedirs(..., exist_ok=True) in front of {place}; or have git's "
                           "rules let {name}/ travel", place=place, name=name)  # fmt: skip
            yield Match((), make, how="fills", name=name, place=place)
    seeds = {mapping(part(host, "environment")).get("PYTHONHASHSEED") for host in seen.up}
    for name, place in asked(seen, "shuffled") if seeds & {None, "random"} else ():
        take = by_hand("", "have {place} take sorted(...) of the set", place=place)
        yield Match((), take, how="shuffled", name=name, place=place)
    for name, place in asked(seen, "beyond"):
        move = by_hand("", "move it into the program's folder, or `yoked push` it to the hosts and "
                       "name that folder at {place}", place=place)  # fmt: skip
        yield Match((), move, how="beyond", name=name, place=place)


CHECKS = (program_asks,)
