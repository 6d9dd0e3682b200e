"""The names that the program of a run asks this host for: which are there, and their marks.

Nothing is started, and no file is read beyond its first kilobytes: contents of small files alone
are compared.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from yoked.agent.ask import number, user_name
from yoked.agent.environ import plain_value
from yoked.core.parallel import gather_within
from yoked.paths import state_root

_MOST, _MOST_ENTRIES, _SMALL_BYTES, _SHOWN_CHARS = 48, 64, 16_384, 40
_LIMIT_S = 1.0
# Where the loader looks beside its cache: ld.so(8).
_LIBRARY_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")
_LOADER_CACHE = Path("/etc/ld.so.cache")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_NLTK_FOLDERS = ("~/nltk_data", "/usr/share/nltk_data", "/usr/local/share/nltk_data",
                 "/usr/lib/nltk_data")  # fmt: skip


def probe_asked(asks: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """The answer to each name that a program asks for, by kind.

    asks: by kind, names: variables; files, that it reads; writes and creates, paths that it
    writes; above, names of files that it looks for above its folder; programs, and pythons, beside
    which they may lie; libraries; ports; hosts; hub, torch_hub, nltk, names in those's caches.
    Paths may begin with `~`.
    """
    args = {kind: list(names)[:_MOST] for kind, names in (asks or {}).items()}
    pythons = args.get("pythons", ())
    told: dict[str, Any] = {
        "variables": {name: plain_value(name) for name in args.get("variables", ())},
        "files": {path: _file(Path(path).expanduser()) for path in args.get("files", ())},
        "writes": {path: _written(Path(path).expanduser()) for path in args.get("writes", ())},
        "creates": {path: _file(Path(path).expanduser()) for path in args.get("creates", ())},
        "above": {name: _above(name) for name in args.get("above", ())},
        "programs": {name: _program(name, pythons) for name in args.get("programs", ())},
        "libraries": {name: _has_library(name) for name in args.get("libraries", ())},
        "ports": {name: _taken(int(name)) for name in args.get("ports", ())},
        "hub": {name: _in_hub(name) for name in args.get("hub", ())},
        "torch_hub": {name: _in_torch_hub(name) for name in args.get("torch_hub", ())},
        "nltk": {name: _in_nltk(name) for name in args.get("nltk", ())},
    }
    names = {name: partial(_is_known, name) for name in args.get("hosts", ())}
    # Who does not answer in time tells nothing.
    told["hosts"] = gather_within(_LIMIT_S, names)[0] if names else {}
    return {kind: found for kind, found in told.items() if found}


def _file(path: Path) -> dict[str, Any]:
    """kind: "missing", "file", "folder", "other" or "unreadable"; problem: why, as a symbol; size:
    in bytes; digest: of a small file, and begins: what it says, where that is a revision (refs/);
    entries: of a folder, by name, as far as there are few: bytes, or "folder"; count: of all.
    """
    try:
        told = path.stat()
        if stat.S_ISREG(told.st_mode):
            found: dict[str, Any] = {"kind": "file", "size": told.st_size}
            if told.st_size <= _SMALL_BYTES:
                with path.open("rb") as stream:
                    content = stream.read(_SMALL_BYTES)
                found["digest"] = hashlib.sha256(content).hexdigest()
                says = content[: 2 * _SHOWN_CHARS].decode(errors="replace").strip()
                # A short word elsewhere may be a password.
                if path.parent.name == "refs" and _REVISION.fullmatch(says):
                    found["begins"] = says
            return found
        if stat.S_ISDIR(told.st_mode):
            with os.scandir(path) as entries:
                names = sorted(_entries(entries))
            return {"kind": "folder", "count": len(names), "entries": dict(names[:_MOST_ENTRIES])}
        return {"kind": "other"}
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return {"kind": "missing"}
        return {"kind": "unreadable", "problem": errno.errorcode.get(problem.errno or 0, "EIO")}


def _entries(found: Iterator[os.DirEntry[str]]) -> Iterator[tuple[str, str]]:
    # More than this takes long, and is no folder that somebody keeps alike by hand.
    for each in islice(found, 10 * _MOST_ENTRIES):
        try:
            is_folder = each.is_dir()
            yield _shown(each.name), "folder" if is_folder else str(each.stat().st_size)
        except OSError:
            continue


def _written(path: Path) -> dict[str, Any]:
    """problem: the symbol of the error if a file were written, ENOENT where its folder is missing;
    None: it could be. owner: of the file, or of the folder, that refuses.
    """
    target = path if os.path.lexists(path) else path.parent
    try:
        told = target.stat()
        if target == path and stat.S_ISDIR(told.st_mode):
            return {"problem": "EISDIR", "owner": user_name(told.st_uid)}
        mode = os.W_OK if target == path else os.W_OK | os.X_OK
        if not os.access(target, mode):
            is_fixed = bool(os.statvfs(target).f_flag & os.ST_RDONLY)
            return {"problem": "EROFS" if is_fixed else "EACCES", "owner": user_name(told.st_uid)}
        if target == path and _is_protected(told, path.parent.stat()):
            return {"problem": "EACCES", "owner": user_name(told.st_uid)}
    except OSError as problem:
        return {"problem": errno.errorcode.get(problem.errno or 0, "EIO"), "owner": None}
    return {"problem": None, "owner": None}


def _is_protected(file: os.stat_result, folder: os.stat_result) -> bool:
    """Whether open(O_CREAT) of another's file in such a folder as /tmp is refused, root's too:
    fs.protected_regular in the kernel's documentation of sysctl/fs.
    """
    if not folder.st_mode & stat.S_ISVTX or not folder.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return False
    if file.st_uid in (os.geteuid(), folder.st_uid) or not stat.S_ISREG(file.st_mode):
        return False
    strict = number(Path("/proc/sys/fs/protected_regular")) or 0
    return strict >= (1 if folder.st_mode & stat.S_IWOTH else 2)


def _above(name: str) -> dict[str, Any]:
    """The first file of that name above the folders of runs, and its path."""
    for folder in state_root().parents:
        found = _file(folder / name)
        if found["kind"] == "file":
            return {**found, "path": str(folder / name)}
    return {"kind": "missing"}


def _program(name: str, pythons: Sequence[str]) -> str | None:
    """The path at which a rank finds a program: its PATH begins with the folder of its Python."""
    folders = [*(str(Path(each).parent) for each in pythons), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(folders))


def _has_library(name: str) -> bool | None:
    """Whether the loader would find a library; None: there is no telling (macOS, musl)."""
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_LIBRARY_FOLDERS]
    # Not by Path.exists, which raises where it may not look.
    if any(map(os.path.exists, (Path(folder, name) for folder in folders))):
        return True
    try:
        cache = _LOADER_CACHE.read_bytes()
    except OSError:
        return None
    return b"\0%b\0" % name.encode() in cache


def _taken(port: int) -> str | None:
    """The symbol of the error if a program of ours listens at a port; None: it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        try:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(("", port))
        except OSError as problem:
            return errno.errorcode.get(problem.errno or 0, "EIO")
    return None


def _is_known(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


def _cache(*variables: tuple[str, str], otherwise: str) -> Path:
    """The folder of the first variable that is set, and below it."""
    for name, below in variables:
        if value := os.environ.get(name):
            return Path(value, below).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", otherwise).expanduser()


def _in_hub(name: str) -> dict[str, Any]:
    """revision: to which `main` leads in the cache of huggingface_hub, None where it has none;
    folder; files: of that revision, by name, bytes; offline: whether nothing is fetched.
    """
    hub = _cache(
        ("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"),
        otherwise="huggingface/hub",
    )  # fmt: skip
    told: dict[str, Any] = {"revision": None, "folder": str(hub), "files": {}, "offline": False}
    told["offline"] = any(os.environ.get(each, "").upper() in ("1", "ON", "YES", "TRUE")
                          for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))  # fmt: skip
    for kind in ("models", "datasets", "spaces"):
        folder = hub / "--".join((kind, *name.split("/")))
        try:
            revision = (folder / "refs" / "main").read_text(errors="replace").strip()
        except OSError:
            continue
        snapshot = folder / "snapshots" / Path(revision).name
        return {**told, "revision": revision[:64], "folder": str(folder), "files": _below(snapshot)}
    return told


def _in_torch_hub(name: str) -> dict[str, Any]:
    """The same of torch.hub's: folders are named by owner, repository and branch."""
    hub = _cache(("TORCH_HOME", "hub"), otherwise="torch/hub")
    found = sorted(each for each in hub.glob(f"{name.replace('/', '_')}_*") if each.is_dir())
    files = {f"{each.name}/{below}": size for each in found for below, size in _below(each).items()}
    return {"revision": " ".join(each.name for each in found)[:64] or None, "folder": str(hub),
            "files": dict(list(files.items())[:_MOST_ENTRIES]), "offline": False}  # fmt: skip


def _in_nltk(name: str) -> dict[str, Any]:
    """The same of nltk's data: `punkt`, or `tokenizers/punkt`, unpacked or not."""
    folders = [*filter(None, os.environ.get("NLTK_DATA", "").split(":")), *_NLTK_FOLDERS]
    for folder in (Path(each).expanduser() for each in folders):
        for pattern in (name, f"*/{name}", f"{name}.zip", f"*/{name}.zip"):
            for found in sorted(folder.glob(pattern)):
                # The same archive, packed and unpacked, is nothing that differs.
                return {"revision": name, "folder": str(found), "files": {}, "offline": False}
    return {"revision": None, "folder": str(folders[0]), "files": {}, "offline": True}


def _shown(name: str) -> str:
    """A name as it can travel, where it is no UTF-8 too."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _below(folder: Path) -> dict[str, int]:
    """{path below a folder: bytes} of its first files."""
    found: dict[str, int] = {}
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in ("__pycache__", ".git"))
        for name in sorted(names):
            if len(found) >= _MOST_ENTRIES:
                return found
            path = Path(where, name)
            try:
                found[_shown(str(path.relative_to(folder)))] = path.stat().st_size
            except OSError:
                continue
    return found
