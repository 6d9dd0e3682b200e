"""Wheels for a host that cannot reach an index: fetched here, for its Python and its system."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from yoked.agent.environments import last_errors
from yoked.core.faults import fault
from yoked.core.fs import sha256_of
from yoked.paths import cache_root, private_folder

# The first glibc that manylinux names in this way, by machine. Source: PEP 600.
_OLDEST_GLIBC = {"x86_64": 5, "i686": 5}
_OTHER_OLDEST_GLIBC = 17
# Their names from before PEP 600, by the minor version of glibc 2.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_MAC = 11


def fetch_wheels(
    host: str, base: Mapping[str, Any], requirements: Sequence[str], options: Sequence[str]
) -> dict[str, Path]:
    """Wheels that fit a host, {sha256: path}, from the cache where they have been fetched.

    host: its name in messages. base: what its agent answered to `environment_base`. options: for
    pip. Raises HostError with what pip said.
    """
    folder = _folder(base, requirements, options)
    done = folder / "complete"
    private_folder(folder)
    # Hosts are looked after at the same time, and like ones need the same wheels.
    with FileLock(folder / ".lock"):
        if not done.exists():
            (folder / "requirements.txt").write_text("\n".join(requirements) + "\n")
            _download(host, base, folder, options)
            done.touch()
    return {sha256_of(path): path for path in sorted(folder.glob("*.whl"))}


def _folder(base: Mapping[str, Any], requirements: Sequence[str], options: Sequence[str]) -> Path:
    said = "\n".join([base["version"], *platform_tags(base), *requirements, *options])
    return cache_root() / "wheels" / hashlib.sha256(said.encode()).hexdigest()[:16]


def _download(host: str, base: Mapping[str, Any], folder: Path, options: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--quiet", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--python-version", base["version"], "--implementation", "cp"]
    for tag in platform_tags(base):
        command += ["--platform", tag]
    for abi in (f"cp{base['version'].replace('.', '')}", "abi3", "none"):
        command += ["--abi", abi]
    command += [*options, "-r", str(folder / "requirements.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise fault(
            "wheels-not-found", host=host, said=last_errors(done.stderr), python=sys.executable
        )


def platform_tags(base: Mapping[str, Any]) -> list[str]:
    """What wheels may be called that run on a host, the best first. Raises HostError."""
    return list(_tags(base))


def _tags(base: Mapping[str, Any]) -> Iterator[str]:
    machine = base["machine"]
    if base["system"] == "Linux" and base["libc"] == "glibc":
        newest = int(base["libc_version"].split(".")[1])
        oldest = _OLDEST_GLIBC.get(machine, _OTHER_OLDEST_GLIBC)
        for minor in range(newest, oldest - 1, -1):
            yield f"manylinux_2_{minor}_{machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{machine}"
        yield f"linux_{machine}"
    elif base["system"] == "Darwin":
        for major in range(int(base["mac_version"].split(".")[0]), _OLDEST_MAC - 1, -1):
            yield f"macosx_{major}_0_{machine}"
            yield f"macosx_{major}_0_universal2"
    else:
        raise fault(
            "wheels-unknown", system=base["system"], libc=base["libc"] or "another C library"
        )
