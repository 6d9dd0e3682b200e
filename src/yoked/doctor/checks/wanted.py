"""What the program here asks of each host by name: whether it is there, and the same on all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match
from yoked.doctor.checks.environment import where_set
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.checks.wanted_query import asked, besides, odd_among, told_of, wanting
from yoked.doctor.repairs.base import by_hand_later
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
SAW = {
    "variables": "the program takes the variable {name} at {place}, and nothing in its stead; it "
    "is not set on {where}{besides}",
    "settings": "the variable {name}, which the program takes at {place}, is {described}",
    "programs": "the program starts {name} at {place}; there is none in the PATH of {where}",
    "libraries": "the program loads {name} at {place}; the loader finds none on {where}",
    "ports": "the program listens at port {name} at {place}; on {where} it could not: {described}",
    "hosts": "the program calls {name} at {place}; {where} cannot resolve that name, and {others} "
    "can",
    "caches": "{name}, which the program takes out of a cache at {place}, is {described}",
    "fills": "the program writes into {name}/ at {place}, and makes no such folder; the one that "
    "is here would stay here, by git's rules",
    "shuffled": "names of files are taken out of a set as they come, at {place}: `{name}`; that is "
    "another order in each process",
    "overwrites": "the program sets {name} to a value of its own at {place}; the launcher's is "
    "lost",
    "dealt": "`{name}` at {place} deals out by LOCAL_RANK, which each host counts from 0",
    "stops": "the program calls {name}() at {place}, which waits for somebody at a terminal",
    "by_one": "{name}, which the program reads on all ranks at {place}, is written by rank 0 alone",
    "beyond": "{name}, which the program reads at {place}, lies outside of the program's folder, "
    "and would stay here",
}
WHY = {
    "variables": "ranks there end with `KeyError: '{name}'`",
    **dict.fromkeys(
        ("settings", "caches"), "ranks of one run compute with different things, and nobody says so"
    ),
    "programs": "ranks there end with `FileNotFoundError: [Errno 2] No such file or directory: "
    "'{name}'`, or a shell's `not found`",
    "libraries": "ranks there end with `OSError: {name}: cannot open shared object file`",
    "ports": "ranks there end when they bind it",
    "hosts": "ranks there end with `Name or service not known`",
    **dict.fromkeys(
        ("fills", "beyond"), "`No such file or directory` on every host, though it is found here"
    ),
    **dict.fromkeys(
        ("shuffled", "dealt"),
        "a program that deals names out by rank has some files read twice and others never",
    ),
    "stops": "a rank has no terminal: it ends there, or all others wait for it",
    "by_one": "hosts share no folder: ranks of other hosts end with `No such file or directory`",
    "overwrites": "ranks of other hosts wait where nobody is, or take themselves for each other",
}
_SEND_ALONG = by_hand_later("yoked run --env {name} ...    sends the one of this shell along")
_MENDS = {
    "variables": by_hand_later(
        "export {name}=...    in a start file there; or --env {name}=... of `yoked run`"
    ),
    "settings": by_hand_later("set {name} as on the others"),
    "programs": by_hand_later(
        "install {name} there, or have it in the PATH of a login by ssh: `command -v {name}`"
    ),
    "libraries": by_hand_later(
        "install the package that has {name}; `ldconfig -p` lists what the loader finds"
    ),
    "ports": by_hand_later(
        "sudo ss -ltnp 'sport = :{name}'    shows who has it; or give the program another port"
    ),
    "hosts": by_hand_later(
        "getent hosts {name}    there, and on the others; then a line in /etc/hosts, or the name "
        "server of the others"
    ),
    "caches": by_hand_later(
        "fetch {name} anew there, or copy the folder from another host; in the program, name the "
        "revision that is meant"
    ),
    "fills": by_hand_later(
        "os.makedirs(..., exist_ok=True) in front of {place}; or have git's rules let {name}/ "
        "travel"
    ),
    "shuffled": by_hand_later("have {place} take sorted(...) of the set"),
    "overwrites": by_hand_later(
        "take that line out at {place}; or, for a start by hand, have it use os.environ.setdefault"
    ),
    "dealt": by_hand_later("take RANK at {place}, in the place of LOCAL_RANK"),
    "stops": by_hand_later("take it out of {place}"),
    "by_one": by_hand_later(
        "have the first rank of each host write it, where LOCAL_RANK is 0, with a barrier before "
        "{place}; or broadcast it"
    ),
    "beyond": by_hand_later(
        "move it into the program's folder, or `yoked push` it to the hosts and name that folder "
        "at {place}"
    ),
}


def variables(seen: Examination) -> Iterator[Match]:
    """Variables that hosts lack, or have otherwise than each other."""
    set_here = at(seen.controller, "set_here") or ()
    for name, place in asked(seen, "variables", "settings"):
        told = told_of(seen, "variables", name)
        without = [host for host, value in told.items() if value is None]
        needed = name in mapping(at(seen.controller, "asks", "variables"))
        if needed and without:
            has = [host for host in told if host not in without]
            is_here = name in set_here
            mend = [_SEND_ALONG("", name=name)] if is_here else _MENDS["variables"]
            here = besides([*has, *(["this machine"] if is_here else [])], "is set on")
            yield wanting("variables", name, place, without, mend, besides=here)
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
            mend = _MENDS["settings"]
            yield wanting("settings", name, place, odd, mend, described=listed(shown))


def _without_home(seen: Examination, host: str, value: object) -> str | None:
    """A value to compare; where it is a path, each host may well have its own."""
    if value is not None and str(value).startswith(("/", "~")):
        return "a path"
    home = str(seen.host(host).facts.get("home") or "~")
    return None if value is None else str(value).replace(home, "~")


def programs(seen: Examination) -> Iterator[Match]:
    """Programs and libraries that hosts do not find."""
    for kind, none in (("programs", None), ("libraries", False)):
        for name, place in asked(seen, kind):
            lacking = [host for host, own in told_of(seen, kind, name).items() if own is none]
            if lacking:
                yield wanting(kind, name, place, lacking, _MENDS[kind])


def ports(seen: Examination) -> Iterator[Match]:
    """Ports that are taken on hosts, and names that some cannot resolve."""
    for name, place in asked(seen, "ports"):
        bad = {host: own for host, own in told_of(seen, "ports", name).items() if own is not None}
        if bad:
            why = listed(sorted({_TAKEN.get(each, each) for each in bad.values()}))
            yield wanting("ports", name, place, list(bad), _MENDS["ports"], described=why)
    for name, place in asked(seen, "hosts"):
        told = told_of(seen, "hosts", name)
        lost = [host for host, own in told.items() if own is False]
        # Where no host has it, a program may well do without.
        if lost and len(lost) < len(told):
            others = listed(host for host in told if host not in lost)
            yield wanting("hosts", name, place, lost, _MENDS["hosts"], others=others)


def caches(seen: Examination) -> Iterator[Match]:
    """Repositories of hubs of which hosts have others."""
    for kind in ("hub", "torch_hub", "nltk"):
        for name, place in asked(seen, kind):
            told = told_of(seen, kind, name)
            # One that is not there yet is fetched, where that is not forbidden.
            known = {host: own for host, own in told.items()
                     if own["revision"] is not None or own["offline"]}  # fmt: skip
            odd = odd_among({host: (own["revision"], tuple(sorted(mapping(own["files"]).items())))
                        for host, own in known.items()})  # fmt: skip
            shown = [f"{_revision(own)} on {host} ({own['folder']})" for host, own in known.items()]
            if odd:
                mend = _MENDS["caches"]
                yield wanting("caches", name, place, odd, mend, described=listed(shown))


def _revision(own: Mapping[str, Any]) -> str:
    files = f" with {plural(len(own['files']), 'file')}" if own["files"] else ""
    return "missing" if own["revision"] is None else f"at {own['revision']}{files}"


def in_any_place(seen: Examination) -> Iterator[Match]:
    """What goes wrong on every host, by the program's own lines."""
    left = at(seen.controller, "left_folders") or ()
    seeds = {mapping(part(host, "environment")).get("PYTHONHASHSEED") for host in seen.up}
    is_shuffled = bool(seeds & {None, "random"})
    many = len(seen.up) > 1
    for how in ("fills", "shuffled", "overwrites", "dealt", "stops", "by_one", "beyond"):
        for name, place in asked(seen, how):
            matters = {"fills": name in left, "shuffled": is_shuffled, "by_one": many}
            if matters.get(how, True):
                yield wanting(how, name, place, (), _MENDS[how])
