"""Wheels for a host that cannot reach an index: fetched here, for its Python and its system."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yoked.agent.environments import last_errors
from yoked.agent.install_progress import folder_bytes
from yoked.core.faults import fault
from yoked.core.fs import locked, scratch_folder, sha256_of
from yoked.core.parallel import at_once
from yoked.errors import YokedError
from yoked.launch.blobs import Progress
from yoked.paths import cache_root, private_folder
from yoked.units import format_bytes, plural

# The first glibc that manylinux names in this way, by machine. Source: PEP 600.
_OLDEST_GLIBC = {"x86_64": 5, "i686": 5}
_OTHER_OLDEST_GLIBC = 17
# Their names from before PEP 600, by the minor version of glibc 2.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_MAC = 11
# Sizes are told before anything begins, and nobody waits long for them.
_SIZES_S, _HEAD_S = 60.0, 10.0
_LOOK_S = 1.0


def fetch_wheels(
    host: str,
    base: Mapping[str, Any],
    requirements: Sequence[str],
    options: Sequence[str],
    progress: Progress | None = None,
    size_bytes: int | None = None,
    there: Collection[str] = (),
) -> dict[str, Path]:
    """Wheels that fit a host, {sha256: path}, from the cache where they have been fetched.

    host: its name in messages. base: what its agent answered to `environment_base`. options: for
    pip. size_bytes: what they come to, as far as it is known. there: packages, by canonical name,
    that the host has and that are left out. Raises HostError with what pip said.
    """

    def tell(done: int) -> None:
        if progress is not None:
            done = done if size_bytes is None else min(done, size_bytes)
            progress.update("fetching", done, size_bytes, "bytes")

    folder = _folder(base, requirements, options)
    done = folder / "complete"
    private_folder(folder)
    # Hosts are looked after at the same time, and like ones need the same wheels.
    with locked(folder / ".lock"):
        if not done.exists():
            (folder / "requirements.txt").write_text("\n".join(requirements) + "\n")
            _download(host, base, folder, options, tell)
            done.touch()
    wheels = [path for path in sorted(folder.glob("*.whl")) if _package_of(path.name) not in there]
    return {sha256_of(path): path for path in wheels}


def _package_of(wheel: str) -> str:
    """The canonical name of a wheel's package, by the name of its file (PEP 427)."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(wheel.partition("-")[0])


def _folder(base: Mapping[str, Any], requirements: Sequence[str], options: Sequence[str]) -> Path:
    said = "\n".join([base["version"], *platform_tags(base), *requirements, *options])
    return cache_root() / "wheels" / hashlib.sha256(said.encode()).hexdigest()[:16]


def _download(
    host: str,
    base: Mapping[str, Any],
    folder: Path,
    options: Sequence[str],
    tell: Callable[[int], None],
) -> None:
    """Have pip fetch wheels into a folder. tell: takes how many bytes have come, now and then."""
    command = [*_pip("download"), "--quiet", "--dest", str(folder)]
    command += _for_platform(base, options, folder / "requirements.txt")
    # What comes is seen there; and /tmp may be too small for torch.
    coming = folder / ".downloads"
    shutil.rmtree(coming, ignore_errors=True)
    private_folder(coming)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(coming)},
    ) as pip:
        said = None
        while said is None:
            try:
                _, said = pip.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                tell(folder_bytes(folder))
    shutil.rmtree(coming, ignore_errors=True)
    if pip.returncode != 0:
        raise fault("wheels-not-found", host=host, said=last_errors(said), python=command[0])


def _python_with_pip() -> str:
    """This interpreter; where uv made its environment, without pip, the machine's python3."""
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    return shutil.which("python3") or sys.executable


def _pip(verb: str) -> list[str]:
    return [_python_with_pip(), "-m", "pip", verb, "--disable-pip-version-check", "--no-input"]


def _for_platform(base: Mapping[str, Any], options: Sequence[str], file: Path) -> list[str]:
    """What of pip's command line says for which machine, and what. file: of requirements."""
    words = ["--only-binary", ":all:", "--python-version", base["version"]]
    words += ["--implementation", "cp"]
    for tag in platform_tags(base):
        words += ["--platform", tag]
    for abi in (f"cp{base['version'].replace('.', '')}", "abi3", "none"):
        words += ["--abi", abi]
    return [*words, *options, "-r", str(file)]


@dataclass(frozen=True)
class WheelSizes:
    """How much a host needs: of so many packages, and of how many an index told no size."""

    packages: int
    known_bytes: int
    unknown: int = 0

    def __str__(self) -> str:
        more = f" and {self.unknown} of unknown size" if self.unknown else ""
        return f"{plural(self.packages, 'package')}, {format_bytes(self.known_bytes)}{more}"


# Hosts are asked about at the same time, and like ones need the same.
_one_at_a_time = threading.Lock()
_known_sizes: dict[tuple[Path, frozenset[str]], WheelSizes | None] = {}


def wheel_sizes(
    base: Mapping[str, Any],
    requirements: Sequence[str],
    options: Sequence[str],
    there: Collection[str] = (),
) -> WheelSizes | None:
    """What pip would fetch for a host, as the index of this machine has it; nothing is fetched.

    None: pip here could not tell. base, options, there: as of `fetch_wheels`.
    """
    try:
        folder = _folder(base, requirements, options)
    except YokedError:
        # No wheel is known to fit: pip there may build them.
        return None
    key = (folder, frozenset(there))
    with _one_at_a_time:
        if key not in _known_sizes:
            if (folder / "complete").exists():
                wheels = [
                    each for each in folder.glob("*.whl") if _package_of(each.name) not in there
                ]
                _known_sizes[key] = WheelSizes(
                    len(wheels), sum(each.stat().st_size for each in wheels)
                )
            else:
                _known_sizes[key] = _asked_sizes(base, requirements, options, there)
        return _known_sizes[key]


def _asked_sizes(
    base: Mapping[str, Any],
    requirements: Sequence[str],
    options: Sequence[str],
    there: Collection[str],
) -> WheelSizes | None:
    from packaging.utils import canonicalize_name

    with scratch_folder("sizes") as scratch:
        (scratch / "requirements.txt").write_text("\n".join(requirements) + "\n")
        report = scratch / "report.json"
        # Only for a target may pip speak of another machine.
        command = [*_pip("install"), "--dry-run", "--ignore-installed", "--quiet", "--retries", "1"]
        command += ["--target", str(scratch / "nothing"), "--report", str(report)]
        command += _for_platform(base, options, scratch / "requirements.txt")
        try:
            # What it leaves where its time is over goes with the folder.
            env = {**os.environ, "TMPDIR": str(scratch)}
            subprocess.run(command, capture_output=True, timeout=_SIZES_S, check=True, env=env)
            found = json.loads(report.read_text(encoding="utf-8"))["install"]
            urls = [
                str(each["download_info"]["url"])
                for each in found
                if canonicalize_name(str(each["metadata"]["name"])) not in there
            ]
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
            return None
    sizes = at_once(_size_of, urls)
    known = [size for size in sizes if size is not None]
    return WheelSizes(len(sizes), sum(known), len(sizes) - len(known))


def _size_of(url: str) -> int | None:
    """The bytes behind an address of pip's; None: it does not say."""
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(urllib.request.url2pathname(parts.path)).stat().st_size
        if parts.scheme != "https":
            return None
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - it is https
        with urllib.request.urlopen(request, timeout=_HEAD_S) as answer:  # noqa: S310
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return None


def platform_tags(base: Mapping[str, Any]) -> list[str]:
    """What wheels may be called that run on a host, the best first. Raises HostError."""
    return list(_tags(base))


def _tags(base: Mapping[str, Any]) -> Iterator[str]:
    machine = base["machine"]
    if base["system"] == "Linux" and base["libc"] == "glibc" and base["libc_version"]:
        newest = int(base["libc_version"].split(".")[1])
        oldest = _OLDEST_GLIBC.get(machine, _OTHER_OLDEST_GLIBC)
        for minor in range(newest, oldest - 1, -1):
            yield f"manylinux_2_{minor}_{machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{machine}"
        yield f"linux_{machine}"
    elif base["system"] == "Darwin" and base["mac_version"]:
        for major in range(int(base["mac_version"].split(".")[0]), _OLDEST_MAC - 1, -1):
            yield f"macosx_{major}_0_{machine}"
            yield f"macosx_{major}_0_universal2"
    else:
        raise fault(
            "wheels-unknown", system=base["system"], libc=base["libc"] or "another C library"
        )
