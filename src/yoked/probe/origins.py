"""Where what a Python imports comes from: which package, which start file, which shared library.

Sent to hosts as text, as smoke_test.py is: the standard library from Python 3.9 on, and no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from yoked.core.unusable import barred

# A module of a person's own is small.
_MOST_SOURCES, _MOST_BYTES = 64, 1 << 20
# Sources that are sent to be read: a tenth of a second on a slow wire.
_MOST_ASKING = 200_000
# Everybody has these, and they read what is each host's own: proxies, certificates, tokens.
_OF_ALL = frozenset({
    "torch", "numpy", "yoked", "transformers", "requests", "urllib3", "certifi", "tqdm", "yaml",
    "click", "rich", "packaging", "filelock", "psutil", "six", "idna", "colorama", "wandb",
    "tensorboard", "huggingface_hub", "datasets", "safetensors", "tiktoken", "platformdirs",
    "pip", "setuptools", "typing_extensions", "dill", "cloudpickle", "joblib", "dotenv", "nltk",
    "matplotlib", "pandas", "scipy", "sklearn", "PIL", "fsspec", "httpx", "attr", "pytest",
    "_pytest", "py", "IPython", "jinja2", "markupsafe", "regex", "appdirs", "pkg_resources",
})  # fmt: skip
_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+(\w+))", re.MULTILINE
)
_ASKS = re.compile(r"environ|getenv|expanduser|home\(|[\"'](?:~|/[a-z])")
_PACKAGES = ("site-packages", "dist-packages")
# Of what the loader says of a library, and of what `ld.so --list` prints.
_LIBRARY_FILE = re.compile(r"(/[^\s:'\"]+\.so[\w.]*)")
_RESOLVED = re.compile(r"=> (/\S+) \(0x")
_LIST_S = 3.0


def packages_folders() -> list[Path]:
    """The folders of packages on the path of this Python."""
    # lib64 is a link to lib in many environments.
    found = {os.path.realpath(each): Path(each) for each in reversed(sys.path)
             if Path(each).name in _PACKAGES}  # fmt: skip
    return list(reversed(found.values()))


def package_of(file: str) -> str | None:
    """The name by which pip knows what a file is of; None: it is in no folder of packages."""
    *folders, last = Path(file).parts
    holds = [at for at, name in enumerate(folders) if name in _PACKAGES]
    if not holds:
        return None
    module = [*folders, last][holds[-1] + 1].partition(".")[0]
    # Not before Python 3.10.
    known: dict[str, list[str]] = getattr(metadata, "packages_distributions", dict)()
    return known[module][0] if known.get(module) else module


def blame(problem: BaseException) -> dict[str, Any]:
    """Whose fault a failed import may be.

    file, line: where it failed; package: as pip names what that is of, or None; of_python: whether
    it is of Python's own library; missing: the module that was not found; libraries: as
    `foreign_libraries` tells those that the loader takes; barred: who may not read a file, as
    `barred` tells it.
    """
    file, line = getattr(problem, "path", None), None
    frame = problem.__traceback__ if file is None else None
    while frame is not None:
        # What came as text, as all of ours did, has no file.
        name = frame.tb_frame.f_code.co_filename
        if name.startswith("/"):
            file, line = name, frame.tb_lineno
        frame = frame.tb_next
    missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
    package = package_of(file) if file else None
    own = sysconfig.get_paths()["stdlib"] + os.sep
    of_python = bool(file) and package is None and str(file).startswith(own)
    named = _LIBRARY_FILE.findall(f"{problem} {file or ''}")
    libraries = [each for path in dict.fromkeys(named) for each in _needed_by(path)]
    refused = str(problem.filename or "/") if isinstance(problem, PermissionError) else "/"
    return {
        "file": file,
        "line": line,
        "package": package,
        "missing": missing,
        "of_python": of_python,
        "libraries": foreign_libraries(libraries),
        "barred": barred(refused),
    }


def modules(names: Iterable[str]) -> dict[str, Any]:
    """By name, what a program would import; None: there is no such module.

    path; version, as pip knows it, or None; digest of its sources, or None where they are many.
    """
    found: dict[str, Any] = {}
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is None:
            found[name] = None
        elif spec.origin and spec.origin.startswith("/"):
            found[name] = {
                "path": spec.origin,
                "version": version_of(name),
                "digest": _digest(Path(spec.origin), is_package=spec.parent == name),
            }
    return found


def asking(names: Iterable[str]) -> dict[str, str]:
    """{file: text} of sources of small modules that may ask a host for a file or a variable.

    names: modules that a program imports; what these import is looked at as well. For a message,
    and read again on the other side: no more than `_MOST_ASKING` characters in all.
    """
    found: dict[str, str] = {}
    waiting, left = list(names), _MOST_ASKING
    for name in waiting:
        if len(waiting) > _MOST_SOURCES or name in _OF_ALL:
            continue
        for source in _small(name):
            text = source.read_text(encoding="utf-8", errors="replace")
            more = {each for pair in _IMPORTS.findall(text) for each in pair if each}
            waiting += sorted(more.difference(waiting))
            if _ASKS.search(text) and len(text) <= left:
                found[str(source)] = text
                left -= len(text)
    return found


def _small(name: str) -> list[Path]:
    """The sources of a module that is none of Python's own; none where they are many."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None or not (spec.origin or "").startswith("/"):
        return []
    file = Path(str(spec.origin))
    own = file.is_relative_to(sysconfig.get_paths()["stdlib"])
    if own and not set(_PACKAGES) & set(file.parts):
        return []
    sources = _sources(file, is_package=spec.parent == name) or []
    try:
        sizes = [each.stat().st_size for each in sources if each.suffix == ".py"]
    except OSError:
        return []
    is_small = len(sizes) == len(sources) and sum(sizes) <= _MOST_ASKING
    return sources if is_small else []


def version_of(package: str) -> str | None:
    """As pip knows it; None: it knows of none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _digest(file: Path, *, is_package: bool) -> str | None:
    """16 hex digits of a module's Python sources; None: they are many, or something else."""
    sources = _sources(file, is_package=is_package)
    if sources is None:
        return None
    sha256 = hashlib.sha256()
    try:
        for source in sources:
            if source.suffix != ".py" or source.stat().st_size > _MOST_BYTES:
                return None
            sha256.update(f"{source.relative_to(file.parent)}\0".encode())
            sha256.update(hashlib.sha256(source.read_bytes()).digest())
    except OSError:
        return None
    return sha256.hexdigest()[:16]


def _sources(file: Path, *, is_package: bool) -> list[Path] | None:
    """The Python sources of a module; None: they are many."""
    sources = [] if is_package else [file]
    walk = os.walk(file.parent) if is_package else ()
    for number, (folder, folders, names) in enumerate(walk):
        # In one order everywhere.
        folders.sort()
        sources += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
        if max(number, len(sources)) > _MOST_SOURCES:
            return None
    return sources


def loaded_from_elsewhere() -> dict[str, Any]:
    """foreign: those of the libraries that are loaded, as `foreign_libraries` tells them."""
    return {"foreign": foreign_libraries(_mapped_libraries())}


def _mapped_libraries() -> list[str]:
    """The shared libraries that this process has loaded; none where there is no /proc."""
    try:
        text = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return []
    paths = (line.split(None, 5)[-1] for line in text.splitlines() if ".so" in line)
    return list(dict.fromkeys(path for path in paths if path.startswith("/")))


def _needed_by(library: str) -> list[str]:
    """The files that the loader takes for what a library needs; none where it cannot tell."""
    loaders = [each for each in _mapped_libraries() if Path(each).name.startswith("ld-")]
    if not loaders or not Path(library).is_file():
        return []
    try:
        done = subprocess.run(
            [loaders[0], "--list", library], capture_output=True, timeout=_LIST_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return _RESOLVED.findall(done.stdout.decode(errors="replace"))


def foreign_libraries(files: Iterable[str]) -> list[dict[str, Any]]:
    """Those of some libraries that stand before one of the system's, and are none of Python's.

    file; hides, the system's; set_by: the file of ld.so.conf that has its folder, LD_LIBRARY_PATH,
    or None.
    """
    prefixes = {sys.prefix, sys.base_prefix} - {"/", "/usr", "/usr/local"}
    system = [each for each in _system_folders() if each.is_dir()]
    usual = {*prefixes, *filter(None, sys.path), *map(str, system)}
    known = tuple(os.path.realpath(each) + os.sep for each in usual)
    found = []
    for file in dict.fromkeys(files):
        if os.path.realpath(file).startswith(known):
            continue
        name = Path(file).name
        hidden = next((each / name for each in system if (each / name).exists()), None)
        if hidden is not None:
            set_by = next(_set_by(str(Path(file).parent)), None)
            found.append({"file": file, "hides": str(hidden), "set_by": set_by})
    return found


def _system_folders() -> Iterator[Path]:
    """Where the loader looks of its own accord. Source: ld.so(8)."""
    kind = sysconfig.get_config_var("MULTIARCH")
    kinds = [kind] if kind else [f"{os.uname().machine}-linux-gnu"]
    for name in (*(f"lib/{each}" for each in kinds), "lib64", "lib"):
        for root in ("/usr", "/"):
            yield Path(root, name)


def _set_by(folder: str) -> Iterator[str]:
    """Who has the loader look into a folder, where not everybody's does."""
    if folder.startswith("/usr/local/lib"):
        return
    if folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        yield "LD_LIBRARY_PATH"
    for file in (Path("/etc/ld.so.conf"), *sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))):
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        if any(line.strip().rstrip("/") == folder for line in lines):
            yield str(file)
