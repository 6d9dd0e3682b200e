"""Which file of the program's folder each host takes for a module, where there are several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.doctor.check import Match
from yoked.doctor.checks.query import at, mapping, minor_of
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination, HostSeen
from yoked.records.shell import joined
from yoked.units import listed

# By what `uname -m` and the names of compiled modules call one machine.
_ALIKE = {"arm64": "aarch64", "amd64": "x86_64", "i686": "i386", "armv7l": "arm", "armv6l": "arm"}
_File = Mapping[str, Any]


SAW = {
    "hides": "{file} is imported in the place of {other}{older}",
    "some": "module {module} of the program is {described}",
    "none": "module {module} of the program cannot be imported on {where}: {described}",
    "case": "the program imports {module}; beside it lies {file}, and no host has another",
}
WHY = {
    "hides": "what stands in {other} has no effect on any host, and nobody says so",
    "some": "ranks of one run compute with different code, and nobody says so",
    "case": "`No module named '{module}'` on every Linux host; a Mac takes both for one name",
    "none": "`No module named ...`, `wrong ELF class` or `bad magic number` there",
}


def taken_for_another(seen: Examination) -> Iterator[Match]:
    """Modules that hosts take from another file than is meant, or not at all."""
    left = set(map(str, at(seen.controller, "left_beside") or ()))
    modules: dict[str, list[_File]] = {}
    for each in at(seen.controller, "beside") or ():
        own = mapping(each)
        # What git's rules leave here hides nothing there.
        if own.get("module") and own.get("file") and own["file"] not in left:
            modules.setdefault(str(own["module"]), []).append(own)
    yield from _miscased(seen)
    hosts = [host for host in seen.up if _python(host) and host.facts.get("arch")]
    for module, files in modules.items():
        taken = {host.name: _taken(host, files) for host in hosts}
        lost = [host for host, own in taken.items() if own is None]
        found = {host: own for host, own in taken.items() if own is not None}
        kinds = {str(own["file"]) for own in found.values()}
        if lost:
            yield _none(seen, module, files, lost)
        elif len(kinds) > 1 and any(own["kind"] == "source" for own in found.values()):
            shown = [f"{own['file']} on {host}" for host, own in found.items()]
            yield Match(
                list(found),
                _removed(sorted(kinds), files),
                severity="warning",
                how="some",
                module=module,
                described=listed(shown),
            )
        elif found and (other := _hidden(next(iter(found.values())), files)):
            first = next(iter(found.values()))
            yield Match(
                (),
                _removed([str(own["file"]) for own in found.values()], files),
                severity="warning",
                how="hides",
                file=listed(sorted(kinds)),
                other=other,
                older=", which is younger" if first.get("older") else "",
            )


def _miscased(seen: Examination) -> Iterator[Match]:
    """Modules that a file system finds which knows no capitals."""
    for name, file in mapping(at(seen.controller, "miscased")).items():
        told = [mapping(mapping(host.torch).get("modules")) for host in seen.up]
        known = [own[name] for own in told if name in own]
        if known and not any(known):
            rename = by_hand("", "write {module} as its file is written, {file}, or rename that",
                             module=name, file=file)  # fmt: skip
            yield Match((), rename, severity="warning", how="case", module=name, file=file)


def _hidden(first: _File, files: Sequence[_File]) -> str | None:
    """The source in whose place a file is taken."""
    sources = [str(own["file"]) for own in files if own["kind"] == "source"]
    return sources[0] if sources and first["kind"] != "source" else None


def _removed(names: Sequence[str], files: Sequence[_File]) -> Any:
    known = {str(own["file"]): own["kind"] for own in files}
    odd = [each for each in dict.fromkeys(names) if known.get(each) != "source"]
    return by_hand(
        "",
        "rename or remove {names} in the program's folder, or build it anew from its source",
        names=joined(" ", odd),
    )


def _none(seen: Examination, module: str, files: Sequence[_File], lost: Sequence[str]) -> Match:
    """A module of which no file is for some hosts."""
    shown = []
    for own in files:
        made = " ".join(str(own[key]) for key in ("python", "arch") if own.get(key))
        shown.append(f"{own['file']} is for {made or 'another system'}")
    kinds = {f"Python {_python(host)} on {host.facts['arch']}" for host in seen.up
             if host.name in lost}  # fmt: skip
    build = by_hand(
        "",
        "build it for that Python and machine too, and have the file travel; or keep its source "
        "beside it",
    )
    there = f"{listed(shown)}; there it is {listed(sorted(kinds))}"
    return Match(lost, build, how="none", module=module, where=listed(lost), described=there)


def _taken(host: HostSeen, files: Sequence[_File]) -> _File | None:
    """The file that the Python of a host takes; None: none, or one that it cannot load."""
    for own in files:
        if own["kind"] in ("package", "source"):
            return own
        is_its = own.get("python") in (None, _python(host))
        is_machine = own.get("arch") in (None, _arch(host))
        if own["kind"] == "bytecode":
            return own if is_its else None
        if not own.get("foreign") and is_its and is_machine:
            return own
        if is_its and not own.get("foreign") and own.get("python") is None:
            # Its name is taken, whatever is in it.
            return None
    return None


def _python(host: HostSeen) -> str | None:
    return ".".join(map(str, minor_of(mapping(host.torch).get("python_version")))) or None


def _arch(host: HostSeen) -> str:
    name = str(host.facts.get("arch"))
    return _ALIKE.get(name, name)
