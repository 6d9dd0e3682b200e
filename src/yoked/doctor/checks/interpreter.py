"""Whether the interpreters of all hosts take in the same before a program's own code runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import shown_places, take_out
from yoked.doctor.checks.folder_query import is_below
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import (
    close_environment,
    drop_dead_links,
    drop_library_folder,
    let_use,
    move_package_aside,
    remove_files,
)
from yoked.doctor.repairs.packages import get_package
from yoked.doctor.repairs.startfiles import leave_out_lines
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import first_listed, listed

_SHOWN = 3
# By these every rank computes; in others a flaw may never be met.
_OF_ALL = ("torch", "numpy")
# Variables that decide a setting; the first that is set does.
_DECIDED_BY = {
    "encoding of names": ("LC_ALL", "LC_CTYPE", "LANG"),
    "optimisation": ("PYTHONOPTIMIZE",),
}
_FLAWS = {
    "content": "not what was installed",
    "empty": "empty",
    "missing": "missing",
    "dangling": "a link to what is gone",
    "unreadable": "not to be read",
}
# What a package lacks, and not only has otherwise.
LOST = frozenset(_FLAWS) - {"content"}


@dataclass(frozen=True)
class Taken:
    """Something that an interpreter takes in. kind: what it is; see `_TOLD_IN`. key: equal on
    hosts where it is the same. fix: what takes it out.
    """

    kind: str
    key: str
    words: str
    fix: tuple[Fix, ...] = ()


# Known only of a host where the import of torch was waited for, or at least that of its library.
_TOLD_IN = {"torch setting": "torch_settings", "torch function": "torch_settings",
            "library": "foreign"}  # fmt: skip
# What a host may lack that most others have.
_LACKED = ("start", "plugin", "torch setting")


def _taken(host: HostSeen) -> Iterator[Taken]:
    """What a host's interpreter takes in that another's need not."""
    told = mapping(host.torch)
    for each in told.get("starts") or ():
        file, because = str(each["file"]), each.get("because")
        reason = f" (include-system-site-packages is true in {because})" if because else ""
        yield Taken(
            "start",
            f"{file.rpartition('/')[2]} {each['digest']}",
            f"Python runs {file} whenever it starts{reason}",
            (move_package_aside(host.name, file),),
        )
    for each in told.get("plugins") or ():
        whole = " ".join(filter(None, (str(each["package"]), each.get("version"))))
        file = f" in {each['file']}" if each.get("file") else ""
        yield Taken(
            "plugin",
            f"{each['value']} {whole}",
            f"torch loads {whole} whenever it is imported: {each['value']}{file}, its entry point "
            "in the group torch.backends",
            (move_package_aside(host.name, str(each["folder"])),),
        )
    for each in told.get("foreign") or ():
        fix = library_fix(host.name, each)
        yield Taken("library", str(each["file"]), library_words(each), fix)
    for prefix, of_torch in (("", ""), ("torch_", "torch ")):
        for what, value in mapping(told.get(f"{prefix}settings")).items():
            source, fix = _source(host, what)
            kind = f"{of_torch}setting"
            yield Taken(kind, f"{what} {value}", f"{what}: {value}{source}", fix)
        for what, file in mapping(told.get(f"{prefix}replaced")).items():
            yield Taken(f"{of_torch}function", what, f"{what} is replaced by that of {file}")


def _source(host: HostSeen, what: str) -> tuple[str, tuple[Fix, ...]]:
    """(who has a setting of a host's Python so, for the end of its words; what undoes that)."""
    names, told = _DECIDED_BY.get(what, ()), mapping(part(host, "environment"))
    if name := next((each for each in names if told.get(each)), None):
        places = mapping(part(host, "set_by")).get(name) or ()
        return f", by {name}={told[name]}{shown_places(places)}", tuple(take_out(host, [name]))
    # A signal.
    places = mapping(part(host, "set_limits")).get(what.rpartition(" ")[2]) or ()
    return shown_places(places), leave_out_lines(host.name, places)


def library_words(each: Mapping[str, Any]) -> str:
    """A library that is loaded in the place of one of the system's."""
    by = f", by {each['set_by']}" if each.get("set_by") else ""
    return f"{each['file']} is loaded in the place of {each['hides']}{by}"


def library_fix(host: str, each: Mapping[str, Any]) -> tuple[Fix, ...]:
    """What has the loader take the system's own again."""
    file, set_by = str(each["file"]), str(each.get("set_by") or "")
    if set_by.startswith("/etc/ld.so.conf"):
        return (drop_library_folder(host, set_by, file.rpartition("/")[0]),)
    if set_by:
        return (by_hand(host, "take {folder} out of {name}", folder=file.rpartition("/")[0],
                        name=set_by),)  # fmt: skip
    return (by_hand(host, "sudo mv {file} {aside} && sudo ldconfig", file=file,
                    aside=f"{file}.yoked-moved"),)  # fmt: skip


@check(
    "unlike-python",
    question="Does each host's Python take in the same before a program begins?",
    reads=("torch", "health.environment", "health.set_limits", "controller"),
    severity="error",
    saw={
        "": "on {host}, and not on {others:list}: {what}",
        "lacking": "not on {host}, as on {others:list}: {what}",
    },
    why="ranks there run or compute otherwise than the others, and nobody says so",
    symptom="Gradients of another size or type on one host, other sums, a program that runs "
    "twice; the code, the versions and the data are the same on all hosts.",
    cause="A sitecustomize, a usercustomize or a .pth file; a plugin that torch loads by itself "
    "(entry points in torch.backends); a library of another program in the place of the system's; "
    "functions that one of these replaces; options that a script in the interpreter's place adds "
    "(-W error, -X dev); a folder before Python's own library; a start file that ignores a signal "
    "(`trap '' CHLD`), or sets a locale without UTF-8. It is an error where a setting of torch "
    "itself is another after its import.",
    fix="Moves the file, or what makes a package a plugin, out of the way; takes the variable, or "
    "the line, out of the start file.",
    explains=("world-failed", "gloo-missing"),
    quick=True,
)
def unlike_python(seen: Examination) -> Iterator[Match]:
    told = {host.name: {(each.kind, each.key): each for each in _taken(host)} for host in seen.up
            if "starts" in mapping(host.torch)}  # fmt: skip
    imported = [name for name in told if "torch_settings" in mapping(seen.host(name).torch)]
    if len(told) < 2:
        return
    for name, taken in told.items():
        own: list[Taken] = []
        lacking: dict[tuple[str, str], Taken] = {}
        for kind, key in {key: None for each in told.values() for key in each}:
            part_of = _TOLD_IN.get(kind, "starts")
            known = [each for each in told if part_of in mapping(seen.host(each).torch)]
            holders = [each for each in known if (kind, key) in told[each]]
            is_most = 2 * len(holders) > len(known)
            if (kind, key) in taken and len(known) > 1 and not is_most:
                own.append(taken[kind, key])
            elif is_most and name in known and name not in holders and kind in _LACKED:
                lacking[kind, key] = told[holders[0]][kind, key]
        if own and imported == [name]:
            # Nobody else's import was waited for. What it has alone is the likely reason.
            own += [each for each in taken.values() if _TOLD_IN.get(each.kind) == "torch_settings"]
        for how, found in (("", own), ("lacking", list(lacking.values()))):
            if found:
                is_grave = any(each.kind == "torch setting" for each in found)
                yield Match(
                    name,
                    *_undone(seen, name, found, how),
                    severity="error" if is_grave else "warning",
                    how=how,
                    others=[each for each in told if each != name],
                    what="; ".join([*_words(found), *_left_out(seen, found)]),
                )


def _left_out(seen: Examination, found: Iterable[Taken]) -> Iterator[str]:
    """What the program does in asserts, where they are left out."""
    done = mapping(at(seen.controller, "asks", "asserts"))
    if done and any(each.key.startswith("optimisation ") for each in found):
        shown = [f"{name}(...) at {place}" for name, place in done.items()]
        yield (f"asserts are left out then, and the program works in one: {first_listed(shown)}; "
               "take the call out of it")  # fmt: skip


def _undone(seen: Examination, host: str, found: Iterable[Taken], how: str) -> tuple[Fix, ...]:
    if how:
        return (by_hand(host, "have it there as well, or on no host"),)
    told = mapping(seen.host(host).torch)
    python, path = str(told.get("python")), str(told.get("torch_path"))
    shared = {str(each["because"]) for each in told.get("starts") or () if each.get("because")}
    # Its own packages are all that an environment needs, where torch is among them.
    needless = [each for each in shared if is_below(path, each.removesuffix("/pyvenv.cfg"))]
    mends = [close_environment(host, each) for each in needless]
    mends += [fix for each in found for fix in each.fix if not (needless and each.kind == "start")]
    if mends:
        return tuple(mends)
    return (by_hand(host, "`{python} -v -c 'import torch'` shows each file that it reads",
                    python=python),)  # fmt: skip


def _words(found: list[Taken]) -> list[str]:
    words = [each.words for each in found]
    more = [f"{len(words) - 2 * _SHOWN} more"] if len(words) > 2 * _SHOWN else []
    return [*words[: 2 * _SHOWN], *more]


@check(
    "package-altered",
    question="Are packages what was installed?",
    reads=("torch", "controller"),
    severity="error",
    saw={
        "": "{files} on {host}, of {package}: {flaw}, by its own list (RECORD)",
        "bytecode": "{files} on {host}: bytecode of another source than the one beside it, which "
        "Python runs without comparing (unchecked)",
        "cut": "{files} on {host}: bytecode that was cut short, though its head fits its source, "
        "so Python takes it: `EOFError: marshal data too short`",
        "library": "{files} on {host}, of Python itself: other content than on {others:list}, "
        "though these Pythons are one build",
    },
    why={
        **dict.fromkeys(
            ("", "bytecode", "library"),
            "ranks there run other code than its version says, and than other hosts do",
        ),
        "cut": "every program there that imports it ends so",
    },
    symptom="Sums or gradients that differ between hosts, batches of another size, though versions "
    "and programs are the same.",
    cause="Somebody edited an installed file; an installation or a disk was cut short; bytecode "
    "that was compiled with --invalidation-mode unchecked-hash stayed when its source was put "
    "back; bytecode lost its end in a power cut; a `breakpoint()` was left in a file of Python's "
    "own library; a cache was cleaned that an environment has links to (UV_LINK_MODE=symlink). "
    "Compared are sizes of all files, contents of torch, numpy and of what is younger than its "
    "list, and Python's own library without lines that are comments, among hosts with the same "
    "build. "
    "What all hosts have alike is taken for meant.",
    fix="Installs the package again, without what it needs; removes the bytecode, or the links.",
    explains=("world-failed",),
)
def package_altered(seen: Examination) -> Iterator[Match]:
    flaws = {host.name: list(mapping(host.torch).get("altered") or ()) for host in seen.up
             if "altered" in mapping(host.torch)}  # fmt: skip
    meant = (
        set.intersection(*(set(map(_flaw_key, own)) for own in flaws.values()))
        if (len(flaws) > 1)
        else set()
    )
    used = (*_OF_ALL, *(at(seen.controller, "modules") or ()))
    for name, own in flaws.items():
        host = seen.host(name)
        groups: dict[tuple[str, str, str], list[str]] = {}
        for each in own:
            if each["how"] == "cut" or _flaw_key(each) not in meant:
                package, version = (str(each.get(key) or "") for key in ("package", "version"))
                groups.setdefault((each["how"], package, version), []).append(str(each["file"]))
        for (how, package, version), files in groups.items():
            more = int(mapping(host.torch).get("more") or 0)
            is_bytecode = how in ("bytecode", "cut")
            # What is looked at before an import of torch is needed by torch.
            is_imported = mapping(host.torch).get("imported") is True
            is_needed = package in used or (how in LOST and not is_imported)
            yield Match(
                name,
                *restored(seen, host, how, package, version, files),
                severity="error" if is_bytecode or is_needed else "warning",
                how="cut" if how == "cut" else "bytecode" if is_bytecode else "",
                files=first_listed(files, others=more),
                package=f"{package} {version}",
                flaw=_FLAWS.get(how, how),
            )
    yield from _in_other_libraries(seen)


def flaws_of(host: HostSeen, package: str) -> str:
    """What is wrong with files of a package, for the end of a sentence; empty: nothing is known."""
    found: dict[str, list[str]] = {}
    for each in mapping(host.torch).get("altered") or ():
        if each.get("package") == package and each["how"] in _FLAWS:
            found.setdefault(each["how"], []).append(str(each["file"]))
    words = [f"{first_listed(files)}: {_FLAWS[how]}" for how, files in found.items()]
    return f"; {listed(words)}" if words else ""


def _flaw_key(each: Mapping[str, Any]) -> tuple[object, ...]:
    # Environments lie elsewhere on each host.
    place = str(each["file"]).rpartition("-packages/")[2]
    return place, each["how"], each.get("found")


def restored(
    seen: Examination, host: HostSeen, how: str, package: str, version: str, files: list[str]
) -> tuple[Fix, ...]:
    """What gives a package the files that were installed. how: their flaw."""
    if how in ("bytecode", "cut"):
        return (remove_files(host.name, files),)
    if how == "unreadable":
        user = host.facts.get("user") or "USER"
        return (let_use(host.name, {"place": files[0], "lacks": "r", "user": user}),)
    wanted = f"{package}=={version.partition('+')[0]}"
    fixes = get_package(seen, host, wanted, flags=("--anew",), alone=True)
    if how == "dangling":
        folder, packages, _ = files[0].partition("-packages/")
        fixes = (drop_dead_links(host.name, f"{folder}{packages}"), *fixes)
    return fixes


def _in_other_libraries(seen: Examination) -> Iterator[Match]:
    """Hosts with other files of Python's own than most that have the same build."""
    builds: dict[str, list[HostSeen]] = {}
    for host in seen.up:
        if library := mapping(at(host.torch, "library")):
            builds.setdefault(str(library["build"]), []).append(host)
    for hosts in builds.values():
        told = {each.name: mapping(at(each.torch, "library", "files")) for each in hosts}
        names = set.intersection(*map(set, told.values()))
        odd: dict[str, list[str]] = {}
        for file in sorted(names):
            counts = Counter(own[file] for own in told.values())
            usual, most = counts.most_common(1)[0]
            # Of as many each, it is those where the file was written after the rest.
            younger = {name for name in told if file in
                       (at(seen.host(name).torch, "library", "younger") or ())}  # fmt: skip
            is_split = 2 * most <= len(told)
            known = younger if 0 < len(younger) < len(told) else set(told)
            for name, own in told.items():
                if len(counts) > 1 and (name in known if is_split else own[file] != usual):
                    odd.setdefault(name, []).append(file)
        for name, found in odd.items():
            homes = {each: str(at(seen.host(each).torch, "library", "home")) for each in told}
            others = [each for each in told if each != name]
            right = next((each for each in others if each not in odd), others[0])
            yield Match(
                name,
                by_hand(
                    "",
                    "diff <(ssh {other} cat {theirs}) <(ssh {name} cat {file})    shows what is "
                    "otherwise",
                    other=right,
                    # The shell of a host reads it once more.
                    theirs=shlex.quote(f"{homes[right]}{found[0]}"),
                    name=name,
                    file=shlex.quote(f"{homes[name]}{found[0]}"),
                ),
                by_hand(
                    name,
                    "take that out again; or install its Python anew, or copy these files from "
                    "{other}",
                    other=right,
                ),
                severity="error",
                how="library",
                files=first_listed([f"{homes[name]}{each}" for each in found]),
                others=others,
            )


CHECKS = (package_altered, unlike_python)
