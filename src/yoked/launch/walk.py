"""What lies in a program's folder: what travels, and what git's rules keep here.

What travels is what git would take, apart from what belongs to this machine or to earlier runs:
.git, bytecode, virtual environments, folders of runs, yoked's own. A symbolic link that stays
inside is sent as a link; what leads out is followed, since the other end is not on the host.
An empty folder, which git does not know, travels as well: a program may write into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from yoked.launch.blobs import unreadable
from yoked.launch.gitignore import files_below, ruled_out
from yoked.paths import cache_root, state_root
from yoked.runs import holds_runs

_MOST_WALKED = 20_000
# Caches of tools: nobody misses them on a host, so nothing is said of them.
_CACHES = {".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".eggs", "node_modules"}


@dataclass(frozen=True)
class Found:
    """Something that travels, or could. is_link: as a link; else as the content of what it leads
    to. is_folder: an empty one. name: below the program's folder, with slashes.
    """

    name: str
    path: Path
    is_link: bool
    is_folder: bool = False

    def size_bytes(self) -> int:
        """Of its content. Raises UsageError."""
        try:
            return 0 if self.is_link or self.is_folder else self.path.stat().st_size
        except OSError as problem:
            raise unreadable(self.path, problem) from problem


class Folder:
    """A folder to walk: the program's own, a repository in it, or one to which a link leads.

    prefix: where its files lie below the program's folder. above: the folders in which it lies.
    taken: paths below it that git takes, as far as `travelling` has come.
    """

    def __init__(self, root: Path, prefix: str = "", above: frozenset[Path] = frozenset()) -> None:
        self.root, self.prefix = root, prefix
        self.above = above | {root.resolve()}
        # A link that leads up would be followed for ever; and yoked's own is nobody's program.
        self._closed = self.above | {state_root().resolve(), cache_root().resolve()}
        self.taken: set[str] = set()
        self.is_left = cache(self._is_left)

    def find(self, path: Path) -> Found | Folder | None:
        """A path below it: a file, a link, a folder to walk by itself, or nothing of the kind."""
        name = self.prefix + path.relative_to(self.root).as_posix()
        is_link = path.is_symlink() and _stays_inside(name, path)
        if path.is_dir() and not is_link:
            return None if self.is_left(path) else Folder(path, f"{name}/", self.above)
        if is_link or (path.is_file() and path.name != ".git"):
            return Found(name, path, is_link)
        return None

    def _is_left(self, folder: Path) -> bool:
        if folder == self.root:
            return False
        is_closed = folder.resolve() in self._closed
        return _is_left_here(folder) or is_closed or self.is_left(folder.parent)


def travelling(folder: Folder, walked: list[Folder]) -> Iterator[Found]:
    """All that travels from below a folder, in no order.

    walked: is given each folder that has files of its own rules, for `ignored`.
    """
    walked.append(folder)
    for name in files_below(folder.root):
        # A link that leads out, or a repository inside, is walked by itself.
        below = name.rstrip("/")
        folder.taken.add(below)
        path = folder.root / below
        if folder.is_left(path.parent):
            continue
        found = folder.find(path)
        if isinstance(found, Folder):
            yield from travelling(found, walked)
        elif found is not None:
            yield found
    yield from _empty(folder)


def _empty(folder: Folder) -> Iterator[Found]:
    """Folders below one that have nothing in them, and that git's rules do not leave out."""
    root, names, count = str(folder.root), [], 0
    device = folder.root.stat().st_dev
    for parent, folders, files in os.walk(root):
        folders.sort()
        count += len(folders) + len(files)
        # A program's folder has no more; in one that holds data there is no end to looking.
        if count > _MOST_WALKED:
            break
        if not folders and not files:
            names.append(Path(parent).relative_to(root).as_posix())
        folders[:] = [
            name
            for name in folders
            if name not in _CACHES
            and not Path(parent, name).is_symlink()
            # A repository in it is walked by itself.
            and not Path(parent, name, ".git").exists()
            and not folder.is_left(Path(parent, name))
            and not _is_far(Path(parent, name), device)
        ]
    left = ruled_out(folder.root, names)
    for name in names:
        # To an empty folder a link leads, if it is itself one; nothing at all is no program.
        below = folder.prefix.rstrip("/") if name == "." else f"{folder.prefix}{name}"
        if below and name not in left:
            yield Found(below, folder.root / name, is_link=False, is_folder=True)


def ignored(folder: Folder, device: int | None = None) -> Iterator[Found | Folder]:
    """What git does not take of a folder, once `travelling` has come to its end, in no order.

    device: of the disk to stay on; a folder on another one is given as it is, since a server's may
    be slow, and hold millions of files. A folder that cannot be read has nothing that could travel.
    """
    for parent, folders, names in os.walk(folder.root):
        below = "" if parent == str(folder.root) else f"{parent[len(str(folder.root)) + 1 :]}/"
        links = [name for name in folders if Path(parent, name).is_symlink()]
        inside = [
            name
            for name in folders
            if name not in links
            and name not in _CACHES
            and below + name not in folder.taken
            and not folder.is_left(Path(parent, name))
        ]
        far = [name for name in inside if _is_far(Path(parent, name), device)]
        yield from (
            Folder(Path(parent, name), f"{folder.prefix}{below}{name}/", folder.above)
            for name in far
        )
        folders[:] = [name for name in inside if name not in far]
        for name in (*names, *links):
            if below + name in folder.taken:
                continue
            found = folder.find(Path(parent, name))
            if isinstance(found, Folder) and not _is_far(found.root, device):
                yield from ignored(found, device)
            elif found is not None:
                yield found


def _is_far(folder: Path, device: int | None) -> bool:
    """Whether a folder is on another disk than that which is to be looked at."""
    return device is not None and folder.stat().st_dev != device


def _is_left_here(path: Path) -> bool:
    """Whether a folder belongs to this machine, or to runs, whatever .gitignore says."""
    if path.name in (".git", "__pycache__"):
        return True
    if (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir():
        return True
    return path.name == "runs" and holds_runs(path)


def _stays_inside(name: str, path: Path) -> bool:
    """Whether a link means the same on another machine. A dangling one means nothing anywhere."""
    target = PurePosixPath(path.readlink())
    if target.is_absolute():
        return not path.exists()
    depth = len(PurePosixPath(name).parts) - 1
    for part in target.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return not path.exists()
    return True
