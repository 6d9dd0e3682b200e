"""Whether the interpreter that would train starts, and imports torch; if not, what is to blame."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import shown_places
from yoked.doctor.checks.interpreter import LOST, flaws_of, library_fix, library_words, restored
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import (
    let_use,
    move_package_aside,
    name_home,
    remount_executable,
    remove_files,
)
from yoked.doctor.repairs.packages import get_package, get_torch
from yoked.doctor.repairs.startfiles import unix_line_ends, unset_variable
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import format_bytes, format_duration, listed

# Source: KILLED of yoked.doctor.rank_probes. No installation does this.
_KILLED = "ended with signal 9"
_UNMAPPED = "failed to map segment"
_MAKE_ROOM = (
    "give it more memory: end what holds it (`ps aux --sort=-rss | head`), or raise the limit of "
    "its container or virtual machine; `dmesg | tail` says whether that was it"
)
_FIND_KILLER = (
    "`dmesg | tail` says whether the kernel did it: then give it more memory. If not, look for a "
    "watchdog (`ps aux`), and end it, or have it leave python alone"
)
# What is several times an import of torch.
_ROOMY_BYTES = 3 << 30
# Of what the loader says: libffi.so.8: cannot open shared object file.
_LIBRARY = re.compile(r"\blib[\w.+-]+\.so[\w.]*(?=: (cannot open|file too short|invalid ELF))")
# Source: yoked.doctor.host_probes. A busy host's Python starts long before.
_STUCK_S = 8.0


def refusal(told: Mapping[str, Any]) -> str:
    """Who may not use a place, and whose it is. told: as `barred` of yoked.core.unusable does."""
    return (
        f"{told['place']} is {told['owner']}'s (mode {told['mode']}), and {told['user']}, as whom "
        "ssh comes in, may not use it"
    )


def other_library(told: Mapping[str, Any]) -> str:
    """Whose library an environment takes. told: as `other_home` of yoked.core.unusable does."""
    return f"{told['file']} has it take the library of {told['home']}, and it is of {told['own']}"


def error_of(host: HostSeen) -> str:
    return str(mapping(host.torch).get("error") or "")


@check(
    "torch-import",
    question="Does Python start on every host, and can it import torch?",
    reads=("torch", "health.environment"),
    severity="error",
    saw={
        **dict.fromkeys(
            ("", "killed", "ended", "unmapped"),
            "`import torch` fails on {host} with {python}: {error}{because}",
        ),
        "start": "{python} does not start on {host}: {error}{because}",
        "late": "{python} had not started on {host} after {error}{because}",
    },
    why={
        "": "every rank there would end so",
        "start": "every rank there would end so",
        "late": "every rank there would wait as long, and a launch gives up",
        "killed": "every rank there would end so; most often the kernel does it, to whoever asks "
        "for more memory than there is",
        "ended": "every rank there would end so: the kernel did it for want of memory, or some "
        "program that ends others; `dmesg | tail` tells which",
        "unmapped": "every rank there would end so; most often the file system is mounted noexec",
    },
    symptom="`OSError: libc10.so: cannot open shared object file`, `undefined symbol`, "
    "`Illegal instruction`, `Fatal Python error: ...`, or a launch that stands where it compares "
    "versions.",
    cause="A variable that Python, torch or the loader obeys (PYTHONHASHSEED, TORCH_LOGS, "
    "LD_LIBRARY_PATH); a .pth file or a sitecustomize; a package that was cut short, is for "
    "another processor, or may not be read by whom ssh comes in as; a pyvenv.cfg of another "
    "Python; a library that /etc/ld.so.conf.d has the loader take before the system's; a Python "
    "that was built without ssl. Variables and files are named where it works without them, which "
    "was tried. Signal 9: too little memory. `failed to map segment`: its file system is mounted "
    "noexec.",
    fix="Takes the variable out, moves the file out of the way, or installs the package anew that "
    "is broken; lets libraries be loaded from where it lies; by hand for signal 9, for what is of "
    "Python itself or of the system, which pip cannot mend, and for what may not be read.",
    on_cluster="In containers: an image built for a newer driver or processor than the node's.",
    explains=("world-failed", "gloo-missing", "numpy-missing", "agent-failed", "package-altered",
              "unlike-python"),
)  # fmt: skip
def torch_import(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        has_begun = told.get("python_version") is not None
        silent_s, late = told.get("silent_s"), at(told, "culprits", "late")
        error = error_of(host)
        if told.get("imported") is False and (told.get("torch_path") or not has_begun):
            how = "" if has_begun else "start"
        elif silent_s is not None and silent_s >= _STUCK_S and (late or not told.get("error")):
            how, error = "late", format_duration(silent_s)
        else:
            continue
        because, fixes = _cause(seen, host)
        if error.endswith(_KILLED):
            free = part(host, "memory", "available_bytes") or 0
            is_roomy = free > _ROOMY_BYTES
            because = f"; {format_bytes(free)} of memory are free there by now" if is_roomy else ""
            how = "ended" if is_roomy else "killed"
            fixes = (by_hand(host.name, _FIND_KILLER if is_roomy else _MAKE_ROOM),)
        elif _UNMAPPED in error and told.get("torch_path"):
            place = str(told["torch_path"])
            how, because, fixes = "unmapped", "", (remount_executable(host.name, place),)
        yield Match(
            host.name, *fixes, how=how, python=told.get("python"), error=error, because=because
        )


def _cause(seen: Examination, host: HostSeen) -> tuple[str, tuple[Fix, ...]]:
    """(why the interpreter of a host fails, for the end of a sentence; what mends it)."""
    told = mapping(host.torch)
    if variables := at(told, "culprits", "variables"):
        known = mapping(part(host, "environment"))
        shown: list[str] = []
        fixes: list[Fix] = []
        for each in variables:
            name, places = str(each["name"]), each["places"]
            value = str(known.get(name, ""))
            written = {str(place["file"]) for place in places or () if value.endswith("\r")}
            from_windows = ", whose lines end as on Windows" if written else ""
            value = "=" + value.removesuffix("\r") if name in known else ""
            shown.append(f"{name}{value}{shown_places(places)}{from_windows}")
            fixes += (
                [unix_line_ends(host.name, file) for file in sorted(written)]
                or unset_variable(host.name, host.facts.get("home"), name, places)
            )  # fmt: skip
        return f"; it works without {listed(shown)}", tuple(fixes)
    if files := [str(each) for each in at(told, "culprits", "files") or ()]:
        aside = (move_package_aside(host.name, each) for each in files)
        return f"; it was at {listed(files)}, which it reads whenever it starts", tuple(aside)
    if home := mapping(at(told, "culprits", "home")):
        return f"; {other_library(home)}", (name_home(host.name, str(told.get("python"))),)
    if "marshal data" in error_of(host):
        return _cut_bytecode(host)
    return _broken_part(seen, host)


def _cut_bytecode(host: HostSeen) -> tuple[str, tuple[Fix, ...]]:
    told = mapping(host.torch)
    cut = [str(each["file"]) for each in told.get("altered") or () if each["how"] == "cut"]
    if cut:
        return f"; {listed(cut)} was cut short", (remove_files(host.name, cut),)
    return "; bytecode was cut short", (
        by_hand(
            host.name,
            "find \"$({python} -c 'import os; print(os.path.dirname(os.__file__))')\" "
            "-name '*.pyc' -delete    Python makes them anew",
            python=str(told.get("python")),
        ),
    )


def _broken_part(seen: Examination, host: HostSeen) -> tuple[str, tuple[Fix, ...]]:
    """`_cause` where nothing from outside is to blame: a part of the installation is."""
    told, python = mapping(host.torch), str(mapping(host.torch).get("python"))
    blame = mapping(told.get("blame"))
    if foreign := blame.get("libraries"):
        mends = (fix for each in foreign for fix in library_fix(host.name, each))
        return f"; {listed(map(library_words, foreign))}", tuple(mends)
    if refused := mapping(blame.get("barred")):
        return f"; {refusal(refused)}", (let_use(host.name, refused),)
    package, missing, file = (blame.get(each) for each in ("package", "missing", "file"))
    library = _LIBRARY.search(error_of(host))
    if blame.get("of_python") and library and not missing:
        return f"; {file} of Python itself needs it", (
            by_hand(
                host.name,
                "install the package of the system that has {library} (`apt-file search {library}` "
                "or `dnf provides {anywhere}`); pip has none of it",
                library=library[0],
                anywhere=f"*/{library[0]}",
            ),
        )
    if blame.get("of_python"):
        lacks = f"module {missing}" if missing else "library"
        return f"; Python's own {lacks} is at fault ({file})", (
            by_hand(
                host.name,
                "install {python} anew, as it was installed; one that was built by hand lacks what "
                "was not there then (libssl-dev, libffi-dev). Or name another `python` in the "
                "fleet's file. pip mends no Python, and fetches nothing without ssl",
                python=python,
            ),
        )
    lost = [each for each in told.get("altered") or ()
            if each.get("package") and each["how"] in LOST]  # fmt: skip
    lost = [each for each in lost if each["package"] == package] or lost
    if lost and lost[0]["package"] != "torch":
        # Who imports what has no files finds that it lacks a name.
        of = {key: str(lost[0].get(key) or "") for key in ("how", "package", "version", "file")}
        package = of["package"]
        fixes = restored(seen, host, of["how"], package, of["version"], [of["file"]])
        return f"; it is {package} that is broken{flaws_of(host, package)}", fixes
    if package and not str(package).startswith(("torch", "nvidia")):
        version = told.get("numpy") if package == "numpy" else None
        wanted = f"{package}=={version}" if version else str(package)
        fixes = get_package(seen, host, wanted, flags=("--anew",))
        broken = flaws_of(host, str(package)) or f" ({file})"
        return f"; it is {package} that is broken{broken}", fixes
    if "Permission denied" in error_of(host) or "symbolic links" in error_of(host):
        return "", (
            by_hand(
                host.name,
                'sudo chmod a+rx "$(readlink -f {python})"    where it has lost its mark as a '
                "program; a mount that follows no links (nosymfollow), or is noexec, says the same",
                python=python,
            ),
        )
    if told.get("python_version") is None:
        return "", (
            by_hand(
                host.name,
                "`{python} -v -c pass` shows how far it comes; install it anew, or name another "
                "`python` in the fleet's file",
                python=python,
            ),
        )
    return flaws_of(host, "torch"), get_torch(seen, host, told.get("torch"), "--anew")
