"""What an interpreter takes in besides a program: start files, plugins of torch, edited packages.

Sent to hosts as text, as smoke_test.py is: the standard library from Python 3.9 on, and no torch.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import importlib.util
import os
import re
import signal
import socket
import sys
import sysconfig
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from yoked.probe.origins import packages_folders
from yoked.probe.own_library import bytecode_flaw, library

# Those that tools of packages leave in most environments; they run nothing of a person's.
_USUAL_PTH = re.compile(
    r"distutils-precedence|_virtualenv|a1_coverage|__editable__.*|.*-nspkg|pywin32|"
    r"_hypothesis_\w+|coverage"
)
# Entry points that torch loads by itself. Source: torch/__init__.py:_import_device_backends.
_AUTOLOADED = "torch.backends"
_NO_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# By variables of these names torch, its libraries and Python behave otherwise.
_OBEYED = re.compile(r"(TORCH|PYTORCH|PYTHON|NUMPY_|NPY_|MKL_|KMP_|ONEDNN_|DNNL_|ATEN_|LD_)\w*")
# Those that come with a trial; see yoked.doctor.rank_probes.
_OURS = ("PYTHONUNBUFFERED",)
# What an option sets, or one of these variables.
_SET_BY = {
    "warnings": ("PYTHONWARNINGS", "PYTHONDEVMODE"),
    "development mode": ("PYTHONDEVMODE",),
    "at its end it waits for commands": ("PYTHONINSPECT",),
    "hashes of text": ("PYTHONHASHSEED",),
    "most digits of a number": ("PYTHONINTMAXSTRDIGITS",),
}
# Of these every source is hashed; of others those that are younger than their own list.
_HASHED = ("torch", "numpy")
_REQUIRES = re.compile(r"^Requires-Dist: *([\w.-]+)", re.MULTILINE)
# A file that is this much younger was written after the package was installed.
_YOUNGER_S = 5.0
_MOST_HASHED_BYTES = 16 << 20
_MOST_FLAWS, _MOST_SOURCES = 20, 3000
# Of CPU time. A hundred packages beside torch take 0.2 s.
_PACKAGES_S = 1.5
_SIGNALS = ("SIGTERM", "SIGCHLD", "SIGALRM", "SIGSEGV", "SIGUSR1", "SIGUSR2")
_WATCHED = ("builtins", "io", "json", "os", "pickle", "random", "select", "socket", "ssl", "struct",
            "subprocess", "threading", "time")  # fmt: skip
_WATCHED_TORCH = ("torch", "torch.autograd", "torch.distributed", "torch.nn.functional",
                  "torch.distributed.distributed_c10d", "torch.utils.data.dataloader")  # fmt: skip
_MOST_REPLACED = 40


def at_start() -> dict[str, Any]:
    """What this Python has taken in before a program: starts, plugins, obeys, settings, replaced.

    settings: {what: value} of those that are not as Python begins; replaced: {function: its file}.
    """
    return {
        "starts": list(_starts()),
        "plugins": list(_plugins()),
        "obeys": _obeyed(),
        "settings": _settings(),
        "replaced": _replaced(_WATCHED),
    }


def _obeyed() -> list[str]:
    """Variables that change what an import does, each with a mark of its value."""
    return [
        f"{name}={zlib.crc32(value.encode(errors='replace')):08x}"
        for name, value in sorted(os.environ.items())
        if _OBEYED.fullmatch(name) and name not in _OURS
    ]


def _starts() -> Iterator[dict[str, Any]]:
    """Files that it runs whenever it starts: file, digest, and because of what where that shows."""
    for folder in packages_folders():
        for path in sorted(folder.glob("*.pth")):
            text = _text(path)
            runs = any(line.startswith(("import ", "import\t")) for line in text.splitlines())
            if runs and not _USUAL_PTH.fullmatch(path.stem):
                yield _start(path, text)
    for name in ("sitecustomize", "usercustomize"):
        file = getattr(sys.modules.get(name), "__file__", None)
        # Debian and Ubuntu have one of their own, as a link to there.
        if file and not os.path.realpath(file).startswith("/etc/python"):
            yield _start(Path(file), _text(Path(file)))


def _start(path: Path, text: str) -> dict[str, Any]:
    settings = Path(sys.prefix, "pyvenv.cfg")
    # A folder that is not the environment's own is on its path by this alone.
    beyond = sys.prefix != sys.base_prefix and Path(sys.prefix) not in path.parents
    shared = re.search(r"(?im)^include-system-site-packages *= *true", _text(settings))
    return {
        "file": str(path),
        "digest": _hash8(text.encode(errors="replace")),
        "because": str(settings) if beyond and shared else None,
    }


def _plugins() -> Iterator[dict[str, Any]]:
    """What torch loads whenever it is imported: name, value, package, version, folder (of what pip
    knows of it), file (of its module).
    """
    if os.environ.get(_NO_AUTOLOAD) == "0":
        return
    for info in _infos():
        group = ""
        for line in _text(info / "entry_points.txt").splitlines():
            group = line.strip(" []") if line.startswith("[") else group
            name, equals, value = (part.strip() for part in line.partition("="))
            if group == _AUTOLOADED and equals and name:
                package, version = _named(info)
                try:
                    spec = importlib.util.find_spec(value.partition(":")[0].partition(".")[0])
                except (ImportError, ValueError):
                    spec = None
                file = spec.origin if spec else None
                yield {"name": name, "value": value, "package": package, "version": version,
                       "folder": str(info), "file": file}  # fmt: skip


def _infos() -> Iterator[Path]:
    """The folders of what pip knows of packages."""
    for folder in packages_folders():
        # What pip has half removed begins with a ~.
        yield from sorted(folder.glob("[!~]*.dist-info"))


def stale_info(torch: Path, version: str, told: str | None) -> dict[str, str] | None:
    """What pip takes for the torch that is imported, and is left of another; None: nothing is.

    torch: its folder; version: as it says itself; told: as pip tells it. Gives folder and version.
    """
    if told == version:
        return None
    beside = {
        _named(info)[1]: str(info)
        for info in _infos()
        if info.parent == torch.parent and _named(info)[0].lower() == "torch"
    }
    # Where nothing is of the version that it has, its own files may be the wrong ones.
    if version not in beside or told not in beside:
        return None
    return {"folder": beside[told], "version": told}


def _named(info: Path) -> tuple[str, str]:
    name, _, version = info.name[: -len(".dist-info")].partition("-")
    return name, version


def _settings() -> dict[str, str]:
    """Settings of Python that are not as it starts with."""
    threads = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    started = sys.modules.get("multiprocessing")
    found = {
        "multiprocessing starts by": started.get_start_method(allow_none=True) if started else None,
        "optimisation": sys.flags.optimize or None,
        "default timeout of sockets": socket.getdefaulttimeout(),
        "garbage collection": None if gc.isenabled() else "off",
        "threads that run": ", ".join(threads) or None,
        "encoding of names": None if _is_utf8() else sys.getfilesystemencoding(),
        "recursion limit": None if sys.getrecursionlimit() == 1000 else sys.getrecursionlimit(),
        # Some of them are errors then, or whatever is said is said.
        "warnings": ", ".join(sys.warnoptions) or None,
        "development mode": sys.flags.dev_mode or None,
        "comparing bytes with text": sys.flags.bytes_warning or None,
        "at its end it waits for commands": sys.flags.inspect or None,
        "options": ", ".join(map(str, sorted(sys._xoptions.items()))) or None,  # noqa: SLF001
        "hashes of text": None if sys.flags.hash_randomization else "the same each time",
        "most digits of a number": _most_digits(),
        "each line is followed by": getattr(
            sys.gettrace() or sys.getprofile(), "__qualname__", None
        ),
        "takes modules before its own from": ", ".join(_before_own()) or None,
    }
    for name in _SIGNALS:
        handler = signal.getsignal(getattr(signal, name))
        if handler not in (signal.SIG_DFL, None):
            # One of the signal module's own, or a function.
            own = getattr(handler, "name", None) or getattr(handler, "__qualname__", None)
            found[f"handler of {name}"] = own or str(handler)
    # Such a variable is told itself.
    given = {name for name, variables in _SET_BY.items() if any(map(os.environ.get, variables))}
    return {name: str(value) for name, value in found.items()
            if value is not None and name not in given}  # fmt: skip


def _most_digits() -> int | None:
    """What a text of a whole number may have at most, where that is not as usual."""
    ask = getattr(sys, "get_int_max_str_digits", None)
    most = ask() if ask else 0
    return most if ask and most != sys.int_info.default_max_str_digits else None


def _before_own() -> Iterator[str]:
    """Folders whose modules hide those of Python's own library."""
    own = sysconfig.get_paths()["stdlib"]
    if own in sys.path:
        before = sys.path[: sys.path.index(own)]
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        # A zip of it is named everywhere, and is there nowhere.
        yield from (each for each in before if each.startswith("/") and each not in given
                    and not each.endswith(".zip"))  # fmt: skip


def _is_utf8() -> bool:
    return sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def _replaced(names: Iterable[str], home: str = "") -> dict[str, str]:
    """{function: its file} of functions of modules whose code is neither Python's nor of `home`."""
    python = sysconfig.get_paths()["stdlib"]
    found: dict[str, str] = {}
    for name in names:
        module = sys.modules.get(name)
        for key, value in list(vars(module).items()) if module else ():
            for label, each in ((f"{name}.{key}", value), *_methods(name, key, value)):
                # Only of a plain function: modules of torch make something of any name.
                file = each.__code__.co_filename if isinstance(each, FunctionType) else ""
                is_python = file.startswith(python) and "-packages" not in file
                # By its decorators a function is deprecated, on some hosts only.
                is_python = is_python or file.endswith("/typing_extensions.py")
                is_own = is_python or (home and file.startswith(home))
                if file.startswith("/") and not is_own and len(found) < _MOST_REPLACED:
                    found[label] = file
    return found


def _methods(module: str, name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, type) and value.__module__.partition(".")[0] == module.partition(".")[0]:
        for key, each in vars(value).items():
            yield f"{module}.{name}.{key}", each


def after_import(torch: ModuleType) -> dict[str, Any]:
    """torch_settings that are not as an import of torch leaves them; torch_replaced, functions."""
    known: Mapping[str, tuple[Callable[[], object], object]] = {
        "default dtype": (torch.get_default_dtype, torch.float32),
        "default device": (lambda: str(torch.get_default_device()), "cpu"),
        "gradients": (torch.is_grad_enabled, True),
        "anomaly detection": (torch.is_anomaly_enabled, False),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, False),
        "precision of float32 products": (torch.get_float32_matmul_precision, "highest"),
        "flushing of denormal numbers": (lambda: _flushes(torch), False),
        # As the doctor sets it.
        "threads of torch": (torch.get_num_threads, 1),
        "oneDNN": (lambda: torch.backends.mkldnn.enabled, True),
    }
    settings = {}
    for name, (ask, usual) in known.items():
        try:
            value = ask()
        except (AttributeError, RuntimeError, TypeError):
            # Of a torch that is older.
            continue
        if value != usual:
            settings[name] = str(value)
    with warnings.catch_warnings():
        # Some names of torch warn whoever asks for them.
        warnings.simplefilter("ignore")
        # What torch itself takes from other packages is the same on every host.
        replaced = _replaced(_WATCHED_TORCH, str(Path(str(torch.__file__)).parent))
    return {
        "torch_settings": settings,
        "torch_replaced": replaced,
    }


def _flushes(torch: ModuleType) -> bool:
    return float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0


def installed(also: Collection[str] = (), *, others: bool = False) -> dict[str, Any]:
    """Whether torch, what it needs, and Python's own library are what was installed.

    It takes a fifth of a second. also: modules whose packages are looked at as well; others: all
    packages, as far as there is time.

    altered: files that are not as their package's RECORD has them: file, found (a mark of its
    content), package, version, how: content, empty, missing, dangling (a link to what is gone),
    unreadable, or as `bytecode_flaw` has it. more: how many others. library: Python's own, as
    `library` tells it.
    """
    until_s = time.process_time() + _PACKAGES_S
    own, flaws_of_own = library()
    flaws = list(flaws_of_own)
    infos = list(_infos())
    first = {*_HASHED, *also, *_needed_by_torch(infos)}
    for info in sorted(infos, key=lambda each: _named(each)[0] not in _HASHED):
        if time.process_time() > until_s:
            break
        names = {_named(info)[0], *_text(info / "top_level.txt").split()}
        if others or not names.isdisjoint(first):
            flaws += _altered(info)
    return {
        "altered": [{**each, "found": _found(each["file"])} for each in flaws[:_MOST_FLAWS]],
        "more": max(0, len(flaws) - _MOST_FLAWS),
        "library": own,
    }


def _needed_by_torch(infos: Iterable[Path]) -> Iterator[str]:
    for info in infos:
        if _named(info)[0] == "torch":
            for name in _REQUIRES.findall(_text(info / "METADATA")):
                yield name.replace("-", "_")


def _found(file: str) -> str | None:
    try:
        size = Path(file).stat().st_size
        return _hash8(Path(file).read_bytes()) if size < _MOST_HASHED_BYTES else str(size)
    except OSError:
        return None


def _altered(info: Path) -> Iterator[dict[str, Any]]:
    """The flaws of one package."""
    package, version = _named(info)
    # conda writes its own paths into files after they were listed.
    is_rewritten = "conda" in _text(info / "INSTALLER")
    try:
        listed_s = (info / "RECORD").stat().st_mtime
    except PermissionError:
        yield {"file": str(info), "package": package, "version": version, "how": "unreadable"}
        return
    except OSError:
        # As systems install packages.
        for file in _sources(info, package):
            if flaw := bytecode_flaw(file):
                yield {**flaw, "package": package, "version": version}
        return
    folder = str(info.parent)
    for line in _text(info / "RECORD").splitlines():
        name, _, rest = line.partition(",")
        is_source = name.endswith(".py")
        if not (is_source or ".so" in name) or name.startswith(("..", '"')):
            continue
        wanted, _, size = rest.partition(",")
        all_of = package in _HASHED
        how = None if is_rewritten else _flaw(folder, name, wanted, size, listed_s, all_of=all_of)
        if how:
            yield {"file": f"{folder}/{name}", "package": package, "version": version, "how": how}
        elif is_source and (flaw := bytecode_flaw(f"{folder}/{name}")):
            yield {**flaw, "package": package, "version": version}


def _sources(info: Path, package: str) -> Iterator[str]:
    """The Python sources of a package that has no list of its files."""
    for name in _text(info / "top_level.txt").split() or [package]:
        yield f"{info.parent}/{name}.py"
        found = ((folder, each) for folder, _, names in os.walk(info.parent / name)
                 for each in names if each.endswith(".py"))  # fmt: skip
        for folder, each in islice(found, _MOST_SOURCES):
            yield f"{folder}/{each}"


def _flaw(
    folder: str, name: str, wanted: str, size: str, listed_s: float, *, all_of: bool
) -> str | None:
    """How a file differs from its line in RECORD; None: it does not, as far as one looks."""
    file = f"{folder}/{name}"
    try:
        # Ten thousand times; a Path takes longer than the question.
        status = os.stat(file)  # noqa: PTH116
    except OSError as problem:
        is_gone = isinstance(problem, (FileNotFoundError, NotADirectoryError))
        if is_gone and Path(file).is_symlink():
            return "dangling"
        # Images that were made slim lack whole folders, and tests.
        is_meant = "test" in name or not Path(file).parent.is_dir()
        return None if is_gone and is_meant else "missing" if is_gone else "unreadable"
    if not os.access(file, os.R_OK):
        return "unreadable"
    if size.isdigit() and status.st_size != int(size):
        return "content" if status.st_size else "empty"
    is_young = status.st_mtime > listed_s + _YOUNGER_S
    is_hashed = is_young or (all_of and file.endswith(".py"))
    if not (is_hashed and wanted.startswith("sha256=") and status.st_size < _MOST_HASHED_BYTES):
        return None
    try:
        digest = hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return "unreadable"
    found = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return None if wanted == f"sha256={found}" else "content"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _hash8(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
