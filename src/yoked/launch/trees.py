"""A program's folder, by content: scanned here, on a host in one round trip when it is there.

What travels is what git would take, apart from what belongs to this machine or to earlier runs:
.git, bytecode, virtual environments, folders of runs. A symbolic link that stays inside is sent
as a link; what leads out is followed, since the other end is not on the host.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

import yoked
from yoked.agent.folders import FILE, LINK, PROGRAM, entries_digest, pack_entries
from yoked.core.fs import sha256_of
from yoked.errors import UsageError
from yoked.launch.blobs import Progress, push_blobs, unreadable
from yoked.launch.gitignore import files_below
from yoked.remote.client import AgentClient
from yoked.runs import list_runs
from yoked.units import format_bytes

LIMIT_BYTES = 500_000_000
LIMIT_FILES = 20_000
# Beyond this, counting on would only make somebody wait for the same answer.
_COUNTED_FILES = 10 * LIMIT_FILES
_PLACE_S = 120.0
_SHOWN_FOLDERS = 3


@dataclass(frozen=True)
class TreeEntry:
    """One file or link. path: below the tree's folder, with slashes; kind: see agent.folders.

    content: SHA-256 of a file, target of a link. source: where it lies here.
    """

    path: str
    kind: str
    content: str
    size_bytes: int
    source: Path

    def to_list(self) -> list[str | int]:
        """As agents have it."""
        return [self.path, self.kind, self.content, self.size_bytes]


@dataclass(frozen=True)
class Tree:
    """The files of a folder as they were when it was scanned."""

    folder: Path
    entries: tuple[TreeEntry, ...]

    @classmethod
    def scan(cls, folder: Path, *, is_limited: bool = True) -> Tree:
        """Read a folder. Raises UsageError when it is too large for a person's program, which is
        looked at where is_limited, or cannot be read.
        """
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder", fix="name the folder of the program")
        walk = _walk(folder.absolute())
        found = _within_limits(folder, walk) if is_limited else _sorted(walk)
        if not found and any(folder.iterdir()):
            raise UsageError(
                f"nothing in {folder} would travel: git's rules ignore all of it",
                fix="`git check-ignore -v *` there shows which rule; `git init` there ends the "
                "rule of a folder above",
            )
        return cls(folder, tuple(each.entry() for each in found))

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of all paths, kinds and contents: equal folders are one tree."""
        return entries_digest([entry.to_list() for entry in self.entries])

    @property
    def size_bytes(self) -> int:
        """Bytes in its files."""
        return sum(entry.size_bytes for entry in self.entries)

    def files(self) -> dict[str, Path]:
        """{sha256: where it lies here}."""
        return {entry.content: entry.source for entry in self.entries if entry.kind != LINK}


def package_tree() -> Tree:
    """This very yoked, so that hosts run what the controller runs: a tree with `yoked/` in it."""
    root = Path(yoked.__file__).parent
    found = [
        _Found(path.relative_to(root.parent).as_posix(), path, is_link=False)
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.relative_to(root).parts
    ]
    return Tree(root.parent, tuple(each.entry() for each in found))


def push_tree(client: AgentClient, tree: Tree, progress: Progress | None = None) -> str:
    """Have a tree on a host, sending what it lacks; returns the folder's path there.

    The folder is shared by all runs: programs run in a copy, see the call `tree_checkout`.
    Raises HostError.
    """
    here = client.call("folder_here", place="trees", label=tree.digest)
    if here is not None:
        return str(here)
    push_blobs(client, tree.files(), progress)
    folder = client.call(
        "folder_put",
        place="trees",
        label=tree.digest,
        keep_blobs=True,
        data=pack_entries([entry.to_list() for entry in tree.entries]),
        timeout_s=_PLACE_S,
    )
    return str(folder)


@dataclass(frozen=True)
class _Found:
    """Something that travels. is_link: as a link; else as the content of what it leads to."""

    name: str
    path: Path
    is_link: bool

    def size_bytes(self) -> int:
        try:
            return 0 if self.is_link else self.path.stat().st_size
        except OSError as problem:
            raise unreadable(self.path, problem) from problem

    def entry(self) -> TreeEntry:
        if self.is_link:
            return TreeEntry(self.name, LINK, str(self.path.readlink()), 0, self.path)
        try:
            found = self.path.stat()
            kind = PROGRAM if found.st_mode & stat.S_IXUSR else FILE
            return TreeEntry(self.name, kind, sha256_of(self.path), found.st_size, self.path)
        except OSError as problem:
            raise unreadable(self.path, problem) from problem


def _walk(root: Path, prefix: str = "", above: frozenset[Path] = frozenset()) -> Iterator[_Found]:
    """All that travels from below a folder, in no order.

    prefix: where its files lie below the program's folder. above: the folders in which it lies.
    """
    above |= {root.resolve()}

    @cache
    def is_left(folder: Path) -> bool:
        if folder == root:
            return False
        # A link that leads up would be followed for ever.
        return _is_left_here(folder) or folder.resolve() in above or is_left(folder.parent)

    for below in files_below(root):
        path, name = root / below, prefix + below.rstrip("/")
        is_link = path.is_symlink() and _stays_inside(name, path)
        if is_left(path.parent):
            continue
        if path.is_dir() and not is_link:
            # A link that leads out, or a repository inside.
            if not is_left(path):
                yield from _walk(path, f"{name}/", above)
        elif is_link or (path.is_file() and path.name != ".git"):
            yield _Found(name, path, is_link)


def _is_left_here(path: Path) -> bool:
    """Whether a folder belongs to this machine, or to runs, whatever .gitignore says."""
    if path.name in (".git", "__pycache__"):
        return True
    if (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir():
        return True
    return path.name == "runs" and bool(list_runs(path))


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


def _within_limits(folder: Path, walk: Iterator[_Found]) -> list[_Found]:
    """What was found, sorted. Raises UsageError when it is more than a program's folder is."""
    found = list(islice(walk, _COUNTED_FILES))
    sizes: Counter[str] = Counter()
    for each in found:
        top, below, _ = each.name.partition("/")
        sizes[top + below] += each.size_bytes()
    if sizes.total() > LIMIT_BYTES or len(found) > LIMIT_FILES:
        largest = ", ".join(
            f"{name} ({format_bytes(size)})" for name, size in sizes.most_common(_SHOWN_FOLDERS)
        )
        raise UsageError(
            f"{folder} has {format_bytes(sizes.total())} in {len(found):,} files; a program's "
            f"folder may have {format_bytes(LIMIT_BYTES)} in {LIMIT_FILES:,}. "
            f"The largest in it: {largest}",
            fix=(
                f"name in {folder / '.gitignore'} what hosts need not get",
                "or cd to the program's own folder; data travels with `yoked data push`",
            ),
        )
    return _sorted(found)


def _sorted(found: Iterable[_Found]) -> list[_Found]:
    return sorted(found, key=lambda each: each.name)
