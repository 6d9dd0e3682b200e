"""The interpreter that would train on each host: whether it is there, works, and fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from yoked.doctor.check import Match, check
from yoked.doctor.checks.imports import error_of, torch_import
from yoked.doctor.checks.query import at, gpus_that_train, mapping, minor_of, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import move_package_aside
from yoked.doctor.repairs.fleet import edit_entry
from yoked.doctor.repairs.packages import (
    get_package,
    get_torch,
    install_torch,
    make_environment,
    mend_environment,
    public,
    remove_info,
)
from yoked.doctor.repairs.system import install_compiler, install_headers
from yoked.records.examination import Examination

_GET_BASE = (
    "first a Python from 3.11 on that makes environments: on Debian and Ubuntu `sudo apt install "
    "python3-venv` where its python3 is new enough, else `uv python install 3.12`"
)
# Of yoked itself, which every rank imports.
_OLDEST = (3, 11)
_INSTALLED = re.compile(r"(site|dist)-packages/torch/__init__\.py$")
# What most of these checks have in common.
_check = partial(check, reads=("torch",), severity="error", explains=("world-failed",), quick=True)


def reference(seen: Examination) -> str | None:
    """The version of torch that most hosts have; of equals, the controller's, then rank 0's."""
    versions = [str(version) for host in seen.up if (version := at(host.torch, "torch"))]
    if not versions:
        return None
    counts = Counter(map(public, versions))
    own = at(seen.need.versions, "torch") or at(seen.controller, "torch")
    most = max(counts.values())
    best = [each for each in versions if counts[public(each)] == most]
    return next((each for each in best if own and public(each) == public(str(own))), best[0])


@_check(
    "python-missing",
    question="Is the interpreter of yoked.toml there?",
    saw="there is no {python} on {host}, which the fleet's file names as its python",
    why="no rank can start there; without that line, the environment of `yoked install` or "
    "the host's own python3 trains",
    symptom="`bash: /home/ada/venv/bin/python: No such file or directory`.",
    cause="yoked.toml names an interpreter that was removed, or that another host has.",
    fix="Takes the line out of yoked.toml. The environment of `yoked install` then trains, "
    "or a python3 that has torch.",
    explains=("world-failed", "torch-missing"),
)
def python_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        wanted = host.wanted.get("python")
        if wanted and error_of(host) == f"there is no {wanted}":
            yield Match(host.name, edit_entry(seen, host.name, "/^python *=/d"), python=wanted)


@_check(
    "torch-missing",
    question="Does every host have torch?",
    saw={
        "": "there is no torch on {host}: {what}",
        "baseless": "there is no torch on {host}, and nothing to install it with: {what}",
        "stranded": "{what} on {host}: the environment there has lost its pyvenv.cfg",
        "unlisted": "{what} on {host}, and no torch-*.dist-info beside it: pip and every program "
        "that asks for its version take torch for missing",
    },
    why="ranks cannot start there",
    symptom="`ModuleNotFoundError: No module named 'torch'`.",
    cause="It was never installed there, or for another Python; or an environment has lost its "
    "pyvenv.cfg, by which its python finds it, or the folders *.dist-info, which tell versions.",
    fix="Makes an environment on the host with the versions that are here; where "
    "yoked.toml names an interpreter of your own, installs it there. Writes a pyvenv.cfg that is "
    "gone anew.",
    explains=(
        "world-failed",
        "numpy-missing",
        "gloo-missing",
        "compiler",
        "package-altered",
        "unlike-python",
    ),
)
def torch_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        none = error_of(host) == "no Python there has torch"
        bare = told.get("python") and told.get("python_version") and told.get("torch") is None
        path = str(told.get("torch_path") or "")
        if bare and _INSTALLED.search(path):
            fixes = get_torch(seen, host, reference(seen), "--anew")
            yield Match(host.name, *fixes, how="unlisted", what=f"torch lies at {path}")
            continue
        if not none and (not bare or path):
            continue
        python, stranded = told.get("python"), told.get("stranded")
        if stranded:
            what = f"{python} takes no notice of the torch in {stranded}"
            yield Match(host.name, mend_environment(host.name, str(python)), how="stranded",
                        what=what)  # fmt: skip
            continue
        what = f"{python} has none" if python else "no Python there has it"
        fixes = get_torch(seen, host, reference(seen))
        if base := told.get("no_base"):
            fixes = (by_hand(host.name, _GET_BASE), *fixes)
        yield Match(host.name, *fixes, how="baseless" if base else "", what=base or what)


@_check(
    "torch-shadowed",
    question="Is the torch that is imported the one that was installed?",
    reads=("torch", "controller"),
    saw={
        **dict.fromkeys(
            ("module", "checkout"),
            "`import torch` on {host} finds {path}, which is not what pip installed",
        ),
        "program": "{path} lies in the folder where this was typed, and has the name of a module "
        "that Python and torch import",
    },
    why={
        "module": "a file or folder of that name stands before torch, and is none",
        "checkout": "it runs in that folder alone, and changes with it",
        "program": "a program of that folder gets it instead, on each host to which `yoked run` "
        "sends it: `import torch` fails in there",
    },
    symptom="`AttributeError: module 'torch' has no attribute 'distributed'` or "
    "`partially initialized module 'torch'`.",
    cause="A torch.py, or a folder named torch, stands before the installed one on Python's path; "
    "or a queue.py, random.py and the like lies beside a program.",
    fix="Moves it out of the way, under another name; what lies beside your program you rename.",
    explains=("world-failed", "torch-import", "torch-missing", "gloo-missing"),
)
def torch_shadowed(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        path = told.get("torch_path")
        if not path or _INSTALLED.search(str(path)):
            continue
        # A checkout that is built in place works, and before a launch nobody imports it.
        fails = told.get("imported") is False or not str(path).endswith("/__init__.py")
        yield Match(
            host.name,
            *((move_package_aside(host.name, str(path)),) if fails else ()),
            severity="error" if fails else "warning",
            how="module" if fails else "checkout",
            path=path,
        )
    # A launch may be of another program than that of the folder where it is typed.
    is_meant = seen.need.code or (at(seen.controller, "programs") and not seen.quick)
    for path in at(seen.controller, "shadows") or ():
        yield Match(
            (),
            by_hand("", "rename {path}, and what imports it", path=path),
            severity="error" if is_meant else "warning",
            how="program",
            path=path,
        )


@_check(
    "torch-version",
    question="Do all hosts have one version of torch?",
    saw={
        "": "torch is {version} on {host}, and {wanted} on {others:list}",
        "stale": "torch is {version} on {host}, and what pip knows of it is of {wanted}: {folder}",
    },
    why={
        "": "two versions need not understand each other: handshakes fail, or sums differ",
        "stale": "importlib.metadata tells the wrong one to all that ask, as transformers and "
        "accelerate do: they refuse to be imported, or take another way",
    },
    symptom="`Rendezvous` ends with a pickle error, `op.preamble.length <= op.nbytes`, or "
    "the first collective hangs. `ImportError: torch>=2.13 is required` where it is.",
    cause="Two versions of torch: Gloo does not promise that they understand each other. Or two "
    "folders torch-*.dist-info beside each other, one of them of a torch that is gone.",
    fix="Gives the host the version that most hosts have. Removes the folder that is left.",
    on_cluster="NCCL says so itself: `Mismatched NCCL version detected`.",
    explains=("world-failed", "package-altered"),
)
def torch_version(seen: Examination) -> Iterator[Match]:
    wanted = reference(seen)
    for host in seen.up:
        version = mapping(host.torch).get("torch")
        if stale := mapping(mapping(host.torch).get("stale")):
            yield Match(
                host.name,
                remove_info(host.name, str(stale["folder"])),
                how="stale",
                version=version,
                wanted=stale["version"],
                folder=stale["folder"],
            )
        if version is None or wanted is None or public(str(version)) == public(wanted):
            continue
        others = [
            each.name
            for each in seen.up
            if public(str(mapping(each.torch).get("torch"))) == public(wanted)
        ]
        yield Match(
            host.name, *get_torch(seen, host, wanted), version=version, wanted=wanted, others=others
        )


@_check(
    "python-old",
    question="Is the interpreter new enough?",
    saw="{python} on {host} is Python {version}",
    why="ranks of yoked need 3.11 or later",
    symptom="`SyntaxError`, or `cannot import name 'Self' from 'typing'`.",
    cause="The host's python3 is older than 3.11.",
    fix="Makes an environment with a newer Python that is there.",
    explains=("world-failed", "python-version", "torch-version"),
)
def python_old(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        version = mapping(host.torch).get("python_version")
        if version and minor_of(version) < _OLDEST:
            yield Match(
                host.name,
                *make_environment(seen, host),
                python=mapping(host.torch).get("python"),
                version=version,
            )


@_check(
    "python-version",
    question="Do all hosts have one version of Python?",
    severity="warning",
    saw="Python is {shown:list}",
    why="objects that ranks pickle for each other (functions above all) may not be read; "
    "tensors are",
    symptom="`unsupported pickle protocol`, or `code() argument ...` in all_gather_object.",
    cause="Two minor versions of Python. Tensors do not mind; pickled functions do.",
    fix="Makes environments of one version with `yoked install`.",
)
def python_version(seen: Examination) -> Iterator[Match]:
    versions = {
        host.name: minor_of(version)
        for host in seen.up
        if (version := mapping(host.torch).get("python_version"))
    }
    if len(set(versions.values())) < 2:
        return
    first = next(iter(versions.values()))
    odd = [name for name, version in versions.items() if version != first]
    shown = [f"{'.'.join(map(str, version))} on {name}" for name, version in versions.items()]
    yield Match(odd, *(install_torch(seen, seen.host(name)) for name in odd
          if seen.host(name).wanted.get("python") is None), shown=shown)  # fmt: skip


@_check(
    "numpy-missing",
    question="Does every torch have its numpy?",
    saw="{python} on {host} has torch and no numpy",
    why="the tokenizer, and many programs, need it: `Numpy is not available`",
    symptom="`RuntimeError: Numpy is not available`.",
    cause="torch does not ask for numpy when it is installed by itself.",
    fix="Installs it.",
)
def numpy_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        if told.get("torch") and "numpy" in told and told["numpy"] is None:
            yield Match(
                host.name,
                *get_package(seen, host, "numpy", flags=("--anew",)),
                python=told.get("python"),
            )


@check(
    "gloo-missing",
    question="Does every torch have Gloo?",
    reads=("torch",),
    severity="error",
    saw="torch {torch} on {host} was built without Gloo",
    why="`Distributed package doesn't have GLOO built in`: no rank there could join",
    symptom="`RuntimeError: Distributed package doesn't have GLOO built in`.",
    cause="A build of torch without it: by oneself, or of some distributions.",
    fix="Installs the usual build.",
    explains=("world-failed",),
)
def gloo_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        if told.get("gloo") is False and told.get("imported") is not False:
            yield Match(
                host.name,
                *get_torch(seen, host, reference(seen), "--anew"),
                torch=told.get("torch"),
            )


@_check(
    "compiler",
    question="Does every host have what yoked's kernels and torch.compile are built with?",
    reads=("health.compiler", "torch", "facts"),
    severity="warning",
    saw={
        "": "{host} has no {lacking:list} compiler",
        "headers": "{python} of {host} has no Python.h, and a GPU trains there",
    },
    why={
        "": "yoked's own kernels run as slower torch operations there, and torch.compile fails",
        "headers": "Triton compiles a module against it at its first kernel: without, "
        "torch.compile fails and `yoked train` takes its steps eagerly, which is slower",
    },
    symptom="`torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found`; or `fatal "
    "error: Python.h: No such file or directory`, in the first compiled step on a GPU.",
    cause="A system on which nobody builds programs; or its Python without its development "
    "package.",
    fix="Installs the system's compilers, or that package. Without compilers a run of yoked is "
    "slower and says so; programs that use torch.compile need `TORCHDYNAMO_DISABLE=1`.",
)
def compiler(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told, torch = part(host, "compiler"), mapping(host.torch)
        lacking = [name for name, key in (("C", "cc"), ("C++", "cxx")) if key in mapping(told)
                   and told[key] is None]  # fmt: skip
        if lacking:
            yield Match(host.name, install_compiler(host.name), how="", lacking=lacking)
        if torch.get("headers") is False and gpus_that_train(seen, host):
            headers = install_headers(host.name, str(torch.get("python_version") or "3"))
            yield Match(host.name, headers, how="headers", python=torch.get("python"))


CHECKS = (
    python_missing,
    python_old,
    torch_missing,
    torch_shadowed,
    torch_import,
    torch_version,
    gloo_missing,
    numpy_missing,
    python_version,
    compiler,
)
