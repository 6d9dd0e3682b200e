"""What a host needs for training: exactly the versions that are here.

The list is the closure of yoked[train] as it is installed beside the controller. What it lacks
(a laptop that only looks on has no torch) is asked for as yoked's own package asks for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import yoked
from yoked.core.faults import fault
from yoked.core.fs import write_bytes
from yoked.core.source import TRAIN, install_line
from yoked.paths import cache_root, private_folder

if TYPE_CHECKING:
    # A run on this machine asks for no requirement, and need not wait for it.
    from packaging.requirements import Requirement

# Parts of a CUDA build of torch, which names them itself: a host without a GPU needs none.
_BUILD_PREFIXES = ("nvidia-", "cuda-", "triton", "pytorch-triton")


# packaging parses markers with ast.literal_eval, which on CPython 3.11 may raise SystemError in
# one of several threads.
_one_at_a_time = threading.Lock()


def train_requirements() -> tuple[str, ...]:
    """Lines for pip, sorted, such as `torch==2.13.0`. May be called from several threads.

    Reading the metadata of fifty packages takes 0.3 s, which every launch would pay: they are
    remembered for as long as nothing is installed or removed.
    """
    with _one_at_a_time:
        return _train_requirements()


def _train_requirements() -> tuple[str, ...]:
    memory = cache_root() / "requirements" / f"{_surroundings()}.txt"
    with contextlib.suppress(OSError):
        return tuple(memory.read_text(encoding="utf-8").splitlines())
    lines = tuple(sorted(closure(own_requirements())))
    # It only saves time: a cache may well be read-only.
    with contextlib.suppress(OSError):
        private_folder(memory.parent)
        write_bytes(memory, "".join(f"{line}\n" for line in lines).encode(), durable=False)
    return lines


def _surroundings() -> str:
    """A name for what is installed: an installation changes the time of its folder."""
    places = [Path(entry) for entry in sys.path if entry]
    stamps = [
        f"{path} {path.stat().st_mtime_ns}" for path in (*places, _project_file()) if path.exists()
    ]
    return hashlib.sha256("\n".join([sys.version, *stamps]).encode()).hexdigest()[:16]


def own_requirements() -> list[str]:
    """What yoked[train] asks for; from its metadata, or in a checkout from pyproject.toml."""
    from packaging.requirements import Requirement

    try:
        asked = metadata.requires("yoked") or []
        own = [Requirement(line) for line in asked]
        return [str(_bare(each)) for each in own if _applies(each, (TRAIN,))]
    except metadata.PackageNotFoundError:
        pass
    file = _project_file()
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return [*project["dependencies"], *project["optional-dependencies"][TRAIN]]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
        raise fault("requirements-unknown", file=file, install=install_line()) from problem


def _project_file() -> Path:
    return Path(yoked.__file__).parents[2] / "pyproject.toml"


def closure(asked: Iterable[str]) -> set[str]:
    """All that is needed for `asked`, with the versions that are installed here."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines: set[str] = set()
    seen: set[str] = set()
    waiting = [Requirement(line) for line in asked]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = f"{name}{sorted(requirement.extras)}"
        if key in seen or name.startswith(_BUILD_PREFIXES):
            continue
        seen.add(key)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            lines.add(str(_bare(requirement)))
            continue
        lines.add(f"{name}=={public_version(found.version)}")
        needs = [Requirement(line) for line in found.requires or ()]
        waiting += [need for need in needs if _applies(need, tuple(requirement.extras))]
    return lines


def requirements_digest(lines: Sequence[str]) -> str:
    """A short name for a list of requirements: that of its environment on every host."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def public_version(version: str) -> str:
    """A version without its build: 2.13.0 for 2.13.0+cpu, which compute alike."""
    from packaging.version import Version

    return Version(version).public


def _applies(requirement: Requirement, extras: Sequence[str]) -> bool:
    """Whether a requirement holds on this machine, with these extras asked for."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _bare(requirement: Requirement) -> Requirement:
    """A requirement without its marker, which has been decided."""
    from packaging.requirements import Requirement

    bare = Requirement(str(requirement))
    bare.marker = None
    return bare
