"""The interpreter that would train on each host: whether it is there, works, and fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from yoked.doctor.check import Check, page
from yoked.doctor.checks.installing import get_package, get_torch, install_torch, public
from yoked.doctor.checks.reading import (
    at,
    edit_entry,
    finding,
    listed,
    mapping,
    part,
)
from yoked.records.examination import Examination, Finding, Fix, HostSeen, Severity
from yoked.records.shell import command_line, shell_line

# Of yoked itself, which every rank imports.
_OLDEST = (3, 11)
_INSTALLED = re.compile(r"(site|dist)-packages/torch/__init__\.py$")


def _torch(host: HostSeen) -> Mapping[str, Any]:
    """What the interpreter says; empty where it was not asked."""
    return mapping(host.torch)


def _error(host: HostSeen) -> str:
    return str(_torch(host).get("error") or "")


def _interpreter_gone(host: HostSeen) -> bool:
    wanted = host.wanted.get("python")
    return bool(wanted) and _error(host) == f"there is no {wanted}"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])


def reference(seen: Examination) -> str | None:
    """The version of torch that most hosts have; of equals, the controller's, then rank 0's."""
    versions = [str(each["torch"]) for host in seen.up if (each := _torch(host)).get("torch")]
    if not versions:
        return None
    counts = Counter(map(public, versions))
    own = at(seen.need.versions, "torch") or at(seen.controller, "torch")
    most = max(counts.values())
    best = [each for each in versions if counts[public(each)] == most]
    return next((each for each in best if own and public(each) == public(str(own))), best[0])


def _python_missing(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        if _interpreter_gone(host):
            yield finding(
                "python-missing",
                "error",
                host.name,
                f"there is no {host.wanted['python']} on {host.name}, which yoked.toml names as "
                "its python",
                "no rank can start there; without that line, the environment of `yoked install` "
                "or the host's own python3 trains",
                edit_entry(seen, host.name, "/^python *=/d"),
            )


def _torch_missing(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = _torch(host)
        none = _error(host) == "no Python there has torch"
        bare = told.get("python") and told.get("python_version") and told.get("torch") is None
        if not none and (not bare or told.get("torch_path")):
            continue
        python = told.get("python")
        what = f"{python} has none" if python else "no Python there has it"
        yield finding(
            "torch-missing",
            "error",
            host.name,
            f"there is no torch on {host.name}: {what}",
            "ranks cannot start there",
            *get_torch(seen, host, reference(seen)),
        )


def _torch_import(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = _torch(host)
        if told.get("imported") is not False or not told.get("torch_path"):
            continue
        yield finding(
            "torch-import",
            "error",
            host.name,
            f"`import torch` fails on {host.name} with {told.get('python')}: {_error(host)}",
            "every rank there would end so",
            *get_torch(seen, host, told.get("torch"), "--anew"),
        )


def _shadowed(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = _torch(host)
        path = told.get("torch_path")
        if not path or _INSTALLED.search(str(path)):
            continue
        # A checkout that is built in place works, and before a launch nobody imports it.
        fails = told.get("imported") is False or not str(path).endswith("/__init__.py")
        yield finding(
            "torch-shadowed",
            "error" if fails else "warning",
            host.name,
            f"`import torch` on {host.name} finds {path}, which is not what pip installed",
            "a file or folder of that name stands before torch, and is none"
            if fails
            else "it runs in that folder alone, and changes with it",
            *((_move_away(host, str(path)),) if fails else ()),
        )


def _move_away(host: HostSeen, path: str) -> Fix:
    # A package is found by its folder.
    place = path.removesuffix("/__init__.py")
    moved = f"{place}.yoked-moved"
    return Fix(host.name, command_line("mv", place, moved), undo=command_line("mv", moved, place))


def _torch_version(seen: Examination) -> Iterator[Finding]:
    wanted = reference(seen)
    for host in seen.up:
        version = _torch(host).get("torch")
        if version is None or wanted is None or public(str(version)) == public(wanted):
            continue
        others = [
            each.name
            for each in seen.up
            if public(str(_torch(each).get("torch"))) == public(wanted)
        ]
        yield finding(
            "torch-version",
            "error",
            host.name,
            f"torch is {version} on {host.name}, and {wanted} on {listed(others)}",
            "two versions need not understand each other: handshakes fail, or sums differ",
            *get_torch(seen, host, wanted),
        )


def _python_old(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        version = _torch(host).get("python_version")
        if version and _minor(str(version)) < _OLDEST:
            yield finding(
                "python-old",
                "error",
                host.name,
                f"{_torch(host).get('python')} on {host.name} is Python {version}",
                "ranks of yoked need 3.11 or later",
                *(
                    (edit_entry(seen, host.name, "/^python *=/d"),)
                    if host.wanted.get("python")
                    else ()
                ),
                install_torch(seen, host),
            )


def _python_version(seen: Examination) -> Iterator[Finding]:
    versions = {
        host.name: _minor(str(version))
        for host in seen.up
        if (version := _torch(host).get("python_version"))
    }
    if len(set(versions.values())) < 2:
        return
    first = next(iter(versions.values()))
    odd = [name for name, version in versions.items() if version != first]
    shown = [f"{'.'.join(map(str, version))} on {name}" for name, version in versions.items()]
    yield finding(
        "python-version",
        "warning",
        odd,
        f"Python is {listed(shown)}",
        "objects that ranks pickle for each other (functions above all) may not be read; tensors "
        "are",
        *(install_torch(seen, seen.host(name)) for name in odd
          if seen.host(name).wanted.get("python") is None),
    )  # fmt: skip


def _numpy(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = _torch(host)
        if told.get("torch") and "numpy" in told and told["numpy"] is None:
            yield finding(
                "numpy-missing",
                "error",
                host.name,
                f"{told.get('python')} on {host.name} has torch and no numpy",
                "the tokenizer, and many programs, need it: `Numpy is not available`",
                *get_package(seen, host, "numpy", flags=("--anew",)),
            )


def _gloo(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = _torch(host)
        if told.get("gloo") is False and told.get("imported") is not False:
            yield finding(
                "gloo-missing",
                "error",
                host.name,
                f"torch {told.get('torch')} on {host.name} was built without Gloo",
                "`Distributed package doesn't have GLOO built in`: no rank there could join",
                *get_torch(seen, host, reference(seen), "--anew"),
            )


def _compiler(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = part(host, "compiler")
        lacking = [name for name, key in (("C", "cc"), ("C++", "cxx")) if key in mapping(told)
                   and told[key] is None]  # fmt: skip
        if lacking:
            yield finding(
                "compiler",
                "warning",
                host.name,
                f"{host.name} has no {listed(lacking)} compiler",
                "yoked's own kernels run as slower torch operations there, and torch.compile fails",
                Fix(
                    host.name,
                    shell_line(
                        "apt-get install -y build-essential || dnf install -y gcc gcc-c++ || "
                        "pacman -S --noconfirm base-devel"
                    ),
                    root=True,
                ),
            )


def _check(name: str, run: Callable[[Examination], Iterator[Finding]], question: str, text: str,
           *explains: str, warns: bool = False, quick: bool = True) -> Check:  # fmt: skip
    severity: Severity = "warning" if warns else "error"
    after = ("world-failed", *explains)
    return Check(name, question, ("torch",), severity, text, run, explains=after, quick=quick)


CHECKS = (
    _check(
        "python-missing",
        _python_missing,
        "Is the interpreter of yoked.toml there?",
        page(
            symptom="`bash: /home/ada/venv/bin/python: No such file or directory`.",
            cause="yoked.toml names an interpreter that was removed, or that another host has.",
            fix="Takes the line out of yoked.toml. The environment of `yoked install` then trains, "
            "or a python3 that has torch.",
        ),
        "torch-missing",
    ),
    _check(
        "python-old",
        _python_old,
        "Is the interpreter new enough?",
        page(
            symptom="`SyntaxError`, or `cannot import name 'Self' from 'typing'`.",
            cause="The host's python3 is older than 3.11.",
            fix="Makes an environment with a newer Python that is there.",
        ),
        "python-version",
        "torch-version",
    ),
    _check(
        "torch-missing",
        _torch_missing,
        "Does every host have torch?",
        page(
            symptom="`ModuleNotFoundError: No module named 'torch'`.",
            cause="It was never installed there, or for another Python.",
            fix="Makes an environment on the host with the versions that are here; where "
            "yoked.toml names an interpreter of your own, installs it there.",
        ),
        "numpy-missing",
        "gloo-missing",
        "compiler",
    ),
    _check(
        "torch-shadowed",
        _shadowed,
        "Is the torch that is imported the one that was installed?",
        page(
            symptom="`AttributeError: module 'torch' has no attribute 'distributed'` or "
            "`partially initialized module 'torch'`.",
            cause="A torch.py, or a folder named torch, stands before the installed one on "
            "Python's path.",
            fix="Moves it out of the way, under another name.",
        ),
        "torch-import",
        "torch-missing",
        "gloo-missing",
    ),
    _check(
        "torch-import",
        _torch_import,
        "Can torch be imported on every host?",
        page(
            symptom="`OSError: libc10.so: cannot open shared object file`, `undefined symbol`, "
            "`Illegal instruction`.",
            cause="An installation that was cut short, two builds over each other, libraries of "
            "LD_LIBRARY_PATH, or a build for another processor.",
            fix="Installs the same version anew.",
            elsewhere="In containers: an image built for a newer driver or processor than the "
            "node's.",
        ),
        "gloo-missing",
        "numpy-missing",
        quick=False,
    ),
    _check(
        "torch-version",
        _torch_version,
        "Do all hosts have one version of torch?",
        page(
            symptom="`Rendezvous` ends with a pickle error, `op.preamble.length <= op.nbytes`, or "
            "the first collective hangs.",
            cause="Two versions of torch: Gloo does not promise that they understand each other.",
            fix="Gives the host the version that most hosts have.",
            elsewhere="NCCL says so itself: `Mismatched NCCL version detected`.",
        ),
    ),
    _check(
        "gloo-missing",
        _gloo,
        "Does every torch have Gloo?",
        page(
            symptom="`RuntimeError: Distributed package doesn't have GLOO built in`.",
            cause="A build of torch without it: by oneself, or of some distributions.",
            fix="Installs the usual build.",
        ),
        quick=False,
    ),
    _check(
        "numpy-missing",
        _numpy,
        "Does every torch have its numpy?",
        page(
            symptom="`RuntimeError: Numpy is not available`.",
            cause="torch does not ask for numpy when it is installed by itself.",
            fix="Installs it.",
        ),
    ),
    _check(
        "python-version",
        _python_version,
        "Do all hosts have one version of Python?",
        page(
            symptom="`unsupported pickle protocol`, or `code() argument ...` in all_gather_object.",
            cause="Two minor versions of Python. Tensors do not mind; pickled functions do.",
            fix="Makes environments of one version with `yoked install`.",
        ),
        warns=True,
    ),
    _check(
        "compiler",
        _compiler,
        "Is there a compiler on every host?",
        page(
            symptom="`torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found`.",
            cause="A system on which nobody builds programs.",
            fix="Installs the system's compilers. Without them a run of yoked is slower and says "
            "so; programs that use torch.compile need `TORCHDYNAMO_DISABLE=1`.",
        ),
        warns=True,
        quick=False,
    ),
)
