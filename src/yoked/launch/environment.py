"""Which interpreter trains on a host, and whether those of all hosts fit together."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yoked.core import torchbuild
from yoked.core.faults import fault
from yoked.core.parallel import at_once
from yoked.fleet.model import HERE, Host
from yoked.launch.requirements import public_version, requirements_digest, train_requirements
from yoked.records.rules import fields, named, optional, version, word
from yoked.records.shell import path_word, quoted
from yoked.records.torch_rules import TORCH
from yoked.remote.client import AgentClient
from yoked.text import telling

# Gloo does not promise that two versions of torch understand each other.
_MUST_AGREE = "torch"
_QUICK_S = 60.0
# Versions come from metadata: importing torch to ask it takes seconds.
_LIST_VERSIONS = """
import sys
# A json.py in somebody's home, where this runs, is none.
sys.path[:] = filter(None, sys.path)
import json, platform
from importlib import metadata
asked = json.load(sys.stdin)
exec(asked["torch_build"])
found = {}
for name in asked["packages"]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
version = platform.python_version()
print(json.dumps({"python": version, "packages": found, "torch": torch_build()}))
"""


_VERSIONS = fields(
    {"python": version, "packages": named(word, optional(version)), "torch": TORCH},
    needed=("python", "packages"),
)


@dataclass(frozen=True)
class Versions:
    """What an interpreter has. packages: {name: version, or None where it is missing}. torch: for
    what its torch is built, as core/torchbuild.py tells it.
    """

    python: str
    packages: Mapping[str, str | None]
    torch: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VersionProblem:
    """Versions that do not work together. what and fix are meant for people."""

    host: str
    what: str
    fix: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """A package of a host that is not what it should be. found: None where it is missing."""

    package: str
    wanted: str
    found: str | None

    def __str__(self) -> str:
        return f"{self.package} is {self.found or 'missing'}, should be {self.wanted}"


def environment_python(client: AgentClient, host: Host) -> str:
    """The interpreter that trains on a host: yoked.toml's, else that of `yoked install`, else
    what has a torch already: on this machine the one that runs now, elsewhere python3.

    Raises HostError when there is none, or yoked.toml's is not there.
    """
    if trains_here(host):
        return sys.executable
    digest = requirements_digest(train_requirements())
    found = client.call("environment", digest=digest, configured=host.python, timeout_s=_QUICK_S)
    if host.python is not None and found["configured"] is None:
        raise fault("python-missing", host=host.name, python=host.python)
    python = found["configured"] or found["made"] or found["system"]
    if python is None:
        raise fault("torch-missing", host=host.name)
    return str(python)


def trains_here(host: Host) -> bool:
    """Whether a host is this machine, and this interpreter can train: it is as it should be."""
    own = host.name == HERE and host.python is None
    return own and importlib.util.find_spec("torch") is not None


def all_versions(interpreters: Sequence[tuple[Host, AgentClient, str]]) -> list[Versions]:
    """What these interpreters have of what must agree; nothing is imported for it.

    interpreters: (host, its agent, path of its Python). Raises HostError where one does not start.
    """
    return at_once(lambda each: host_versions(each[1], each[2], [_MUST_AGREE]), interpreters)


def check_versions(
    interpreters: Sequence[tuple[Host, AgentClient, str]], versions: Sequence[Versions]
) -> list[VersionProblem]:
    """What keeps these interpreters from training together.

    interpreters: as above, rank 0's first. versions: theirs.
    """
    found = [each.packages[_MUST_AGREE] for each in versions]
    problems: list[VersionProblem] = []
    first = found[0] if found else None
    for (host, _, python), has in zip(interpreters, found, strict=True):
        if has is None:
            what = f"{host.name}: {python} has no torch"
        elif first is not None and public_version(has) != public_version(first):
            what = (
                f"torch is {has} on {host.name} ({python}), but {first} on "
                f"{interpreters[0][0].name}: they need not understand each other"
            )
        else:
            continue
        problems.append(VersionProblem(host.name, what, torch_fix(host, first)))
    return problems


def torch_fix(host: Host, wanted: str | None, flag: str = "") -> tuple[str, ...]:
    """How a host comes by torch. wanted: the version of the first host, if it has one. flag: the
    fleet's, for lines of yoked's.
    """
    install = f"yoked install --host {host.name}{flag}"
    if host.python is None:
        return (install, f"or name another `python` for {host.name} in the fleet's file")
    # What yoked.toml names is the person's own: `yoked install` leaves it as it is.
    package = _MUST_AGREE if wanted is None else f"{_MUST_AGREE}=={public_version(wanted)}"
    return (
        f"{path_word(host.python)} -m pip install {quoted(package)}    on {host.name}",
        f"or remove `python` of {host.name} from the fleet's file, and run `{install}`",
    )


def host_versions(client: AgentClient, python: str, packages: Sequence[str]) -> Versions:
    """What an interpreter on a host has of some packages. Raises HostError if it does not start."""
    asked = {"packages": list(packages), "torch_build": Path(torchbuild.__file__).read_text()}
    outcome: dict[str, Any] = client.call(
        "run",
        argv=[python, "-c", _LIST_VERSIONS],
        data=json.dumps(asked).encode(),
        limit_s=_QUICK_S,
        timeout_s=2 * _QUICK_S,
    )
    if outcome["exit_status"] != 0:
        said = telling(outcome["stderr"]) or "it said nothing"
        if outcome["late"]:
            said = f"no end in {_QUICK_S:g} s"
        raise fault("python-broken", host=client.host, python=python, said=said)
    try:
        # What is printed before is a start file's of that Python, such as a sitecustomize.
        last = outcome["stdout"].strip().splitlines()[-1:]
        answer = _VERSIONS(json.loads("".join(last)), "versions", [])
    except (ValueError, RecursionError):
        raise fault("python-silent", host=client.host, python=python) from None
    # What is not told is taken for missing.
    has = {name: answer["packages"].get(name) for name in packages}
    return Versions(answer["python"], has, answer.get("torch") or {})


def differences(requirements: Sequence[str], found: Versions) -> list[Difference]:
    """What an interpreter has otherwise than it should; builds of one version do not differ."""
    from packaging.requirements import Requirement

    result: list[Difference] = []
    for line in requirements:
        wanted = Requirement(line)
        version = found.packages.get(wanted.name)
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            result.append(Difference(wanted.name, str(wanted.specifier).lstrip("="), version))
    return result


def package_names(requirements: Sequence[str]) -> list[str]:
    """The names in a list of requirements."""
    from packaging.requirements import Requirement

    return [Requirement(line).name for line in requirements]
