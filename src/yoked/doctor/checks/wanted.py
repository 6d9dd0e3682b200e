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
