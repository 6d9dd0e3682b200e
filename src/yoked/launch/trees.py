"""A program's folder, by content: scanned here, on a host in one round trip when it is there.

What travels is in `walk`; beside it, what a person includes although git's rules ignore it.
"""

from __future__ import annotations

import contextlib
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from shlex import quote

import yoked
from yoked.agent.folders import FILE, FOLDER, LINK, PROGRAM, entries_digest, pack_entries
from yoked.core.fs import is_lfs_pointer, sha256_of
from yoked.core.patterns import any_matches
from yoked.core.shadows import shadowing
from yoked.errors import UsageError
from yoked.hashes import kept_hashes
from yoked.launch.blobs import Progress, push_blobs, unreadable
from yoked.launch.walk import Folder, Found, ignored, travelling
from yoked.remote.client import AgentClient
from yoked.text import one_line
from yoked.units import format_bytes, listed, plural

LIMIT_BYTES = 500_000_000
LIMIT_FILES = 20_000
# Beyond this, counting on would only make somebody wait for the same answer.
_COUNTED_FILES = 10 * LIMIT_FILES
# Their hashes are one message.
MOST_DATA_FILES = 100_000
# Of those that stay; a start waits for the count.
_COUNTED_LEFT = LIMIT_FILES
_PLACE_S = 120.0
_SHOWN_FOLDERS = 3


@dataclass(frozen=True)
class TreeEntry:
    """One file, link or empty folder. path: below the tree's folder, with slashes; kind: see
    agent.folders.

    content: SHA-256 of a file, target of a link, "" of a folder. source: where it lies here.
    """

    path: str
    kind: str
    content: str
    size_bytes: int
    source: Path

    def to_list(self) -> list[str | int]:
        """As agents have it."""
        return [self.path, self.kind, self.content, self.size_bytes]

    @property
    def has_content(self) -> bool:
        """Whether it is a file."""
        return self.kind in (FILE, PROGRAM)


@dataclass(frozen=True)
class Left:
    """Files that stay here because git's rules ignore them. largest: by name, bytes. far: folders
    on other disks, which were not counted. is_all: the count came to its end.
    """

    files: int = 0
    size_bytes: int = 0
    largest: tuple[tuple[str, int], ...] = ()
    far: tuple[str, ...] = ()
    is_all: bool = True


@dataclass(frozen=True)
class Tree:
    """The files of a folder as they were when it was scanned. left: what of it stays here.

    unmatched: patterns of `include` that no file matches.
    """

    folder: Path
    entries: tuple[TreeEntry, ...]
    left: Left = Left()
    unmatched: tuple[str, ...] = ()

    @classmethod
    def scan(
        cls,
        folder: Path,
        *,
        is_limited: bool = True,
        include: Sequence[str] = (),
        hash_of: Callable[[Path], str] = sha256_of,
    ) -> Tree:
        """Read a folder. Raises UsageError when it is too large for a person's program, which is
        looked at where is_limited, or cannot be read.

        include: patterns of files that travel although git's rules ignore them. hash_of: for whom
        contents do not matter may only try whether they can be read.
        """
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder", fix="name the folder of the program")
        walked: list[Folder] = []
        walk = travelling(Folder(folder.absolute()), walked)
        if not is_limited:
            return cls(folder, tuple(_entry(each, hash_of) for each in _sorted(walk)))
        found = list(islice(walk, _COUNTED_FILES))
        _require_small(folder, found)
        wanted, left = _ignored(walked, include)
        if wanted:
            found += wanted
            _require_small(folder, found)
        if all(each.is_folder for each in found) and any(folder.iterdir()):
            raise UsageError(
                f"nothing in {folder} would travel: git's rules ignore all of it",
                fix="`git check-ignore -v *` there shows which rule; `git init` there ends the "
                "rule of a folder above",
            )
        unmatched = tuple(
            pattern
            for pattern in include
            if not any(any_matches([pattern], each.name) for each in found)
        )
        entries = tuple(_entry(each, hash_of) for each in _sorted(found))
        return cls(folder, entries, left, unmatched)

    @classmethod
    def of_data(cls, folder: Path, progress: Progress | None = None) -> Tree:
        """Read a folder of data: all that is in it, whatever git's rules say, but for what belongs
        to this machine. Raises UsageError.
        """
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder", fix="name the folder that holds the data")
        walk = (each for each in ignored(Folder(folder.absolute())) if isinstance(each, Found))
        found = _sorted(islice(walk, MOST_DATA_FILES + 1))
        if not found:
            raise UsageError(f"there is no file in {folder}", fix=f"ls -la {quote(str(folder))}")
        if len(found) > MOST_DATA_FILES:
            raise UsageError(
                f"{folder} has more than {MOST_DATA_FILES:,} files",
                fix="pack them into fewer, such as .parquet, .tar or .jsonl; programs read those "
                "faster, too",
            )
        total, done, entries = sum(each.size_bytes() for each in found), 0, []
        with kept_hashes(folder) as hashes:
            for each in found:
                entries.append(_entry(each, hashes.of))
                done += entries[-1].size_bytes
                if progress is not None:
                    progress.update("reading", done, total, "bytes")
        return cls(folder, tuple(entries))

    @property
    def from_outside(self) -> int:
        """How many of its files lie elsewhere: a link leads out of the folder to them."""
        root = self.folder.resolve()
        return sum(
            not entry.source.resolve().is_relative_to(root)
            for entry in self.entries
            if entry.has_content
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of all paths, kinds and contents: equal folders are one tree."""
        return entries_digest([entry.to_list() for entry in self.entries])

    @property
    def _count(self) -> int:
        """How many files and links it has."""
        return sum(entry.kind != FOLDER for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        """Bytes in its files."""
        return sum(entry.size_bytes for entry in self.entries)

    def packed(self) -> bytes:
        """The entries as agents take them."""
        return pack_entries([entry.to_list() for entry in self.entries])

    def files(self) -> dict[str, Path]:
        """{sha256: where it lies here}."""
        return {entry.content: entry.source for entry in self.entries if entry.has_content}

    def lines(self) -> list[str]:
        """What travels and what stays, for a person."""
        files = plural(self._count, "file")
        said = [f"to the hosts: {files} ({format_bytes(self.size_bytes)}) of {self.folder}"]
        if self.left.files:
            more = "" if self.left.is_all else "more than "
            said.append(
                f"left here by git's rules: {more}{plural(self.left.files, 'file')} "
                f"({format_bytes(self.left.size_bytes)}), the largest {_named(self.left.largest)}; "
                "--include PATTERN, or include below [files] in the fleet's file, sends them too"
            )
        if self.left.far:
            names = listed(map(one_line, self.left.far))
            said.append(f"left here by git's rules, on another disk and not counted: {names}")
        said += [
            f"{one_line(name)} hides the installed module of that name from the program, and from "
            "torch, which fails beside it: rename it"
            for name in shadowing(each.path for each in self.entries)
        ]
        files_here = (each for each in self.entries if each.has_content)
        pointers = [
            each.path for each in files_here if is_lfs_pointer(each.source, each.size_bytes)
        ]
        if pointers:
            more = f" and {plural(len(pointers) - 1, 'other file')}" if pointers[1:] else ""
            said.append(
                f"{one_line(pointers[0])}{more}: a pointer of git-lfs travels, and not the "
                "content; `git lfs pull` brings that"
            )
        return said + self.idle_patterns()

    def idle_patterns(self) -> list[str]:
        """What is included and is not there, for a person."""
        return [f"include {pattern}: no file of the folder matches" for pattern in self.unmatched]

    def to_dict(self) -> dict[str, object]:
        """As --json has it."""
        return {
            "files": self._count,
            "size_bytes": self.size_bytes,
            "left": {
                "files": self.left.files,
                "size_bytes": self.left.size_bytes,
                "largest": [{"name": name, "size_bytes": size} for name, size in self.left.largest],
                "elsewhere": list(self.left.far),
                "counted_all": self.left.is_all,
            },
        }


def package_tree() -> Tree:
    """This very yoked, so that hosts run what the controller runs: a tree with `yoked/` in it,
    without the report's page, which only the controller writes.
    """
    root = Path(yoked.__file__).parent
    found = [
        Found(path.relative_to(root.parent).as_posix(), path, is_link=False)
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and "__pycache__" not in path.relative_to(root).parts
        and root / "report" / "page" not in path.parents
    ]
    return Tree(root.parent, tuple(map(_entry, found)))


def push_tree(client: AgentClient, tree: Tree, progress: Progress | None = None) -> str:
    """Have a tree on a host, sending what it lacks; returns the folder's path there.

    The folder is shared by all runs: programs run in a copy, see agent/folders.py:checkout_tree.
    Raises HostError.
    """
    here = client.call("folder_here", place="trees", label=tree.digest)
    if here is not None:
        return str(here)
    return put_folder(client, "trees", tree.digest, tree, progress)[0]


def put_folder(
    client: AgentClient, place: str, label: str, tree: Tree, progress: Progress | None = None
) -> tuple[str, int]:
    """Send what a host lacks of a tree, and make a folder of it there: its path, and bytes sent."""
    sent_bytes = push_blobs(client, tree.files(), progress)
    folder = client.call(
        "folder_put",
        place=place,
        label=label,
        # The next tree may share files with it.
        keep_blobs=place == "trees",
        data=tree.packed(),
        timeout_s=_PLACE_S,
    )
    return str(folder), sent_bytes


def _entry(found: Found, hash_of: Callable[[Path], str] = sha256_of) -> TreeEntry:
    # An editor's lock, which is a link, or its copy may go meanwhile.
    try:
        if found.is_link:
            return TreeEntry(found.name, LINK, str(found.path.readlink()), 0, found.path)
        if found.is_folder:
            return TreeEntry(found.name, FOLDER, "", 0, found.path)
        status = found.path.stat()
        kind = PROGRAM if status.st_mode & stat.S_IXUSR else FILE
        content = hash_of(found.path)
    except OSError as problem:
        raise unreadable(found.path, problem) from problem
    return TreeEntry(found.name, kind, content, status.st_size, found.path)


def _ignored(walked: Sequence[Folder], include: Sequence[str]) -> tuple[list[Found], Left]:
    """What travels although git's rules ignore it, as `include` says; and what stays."""
    wanted: list[Found] = []
    far: list[str] = []
    count, sizes, is_all = 0, Counter[str](), True
    device = None if include else walked[0].root.stat().st_dev
    for each in chain.from_iterable(ignored(folder, device) for folder in walked):
        if isinstance(each, Folder):
            far.append(each.prefix)
        elif any_matches(include, each.name):
            wanted.append(each)
            if len(wanted) > LIMIT_FILES:
                # It is refused, whatever else there is.
                break
        elif count < _COUNTED_LEFT:
            count += 1
            # One that cannot be read could not travel.
            with contextlib.suppress(UsageError):
                sizes[top_of(each.name)] += each.size_bytes()
        else:
            is_all = False
            if not include:
                # Counting on would make each start wait.
                break
    return wanted, Left(count, sizes.total(), _largest(sizes), tuple(far[:_SHOWN_FOLDERS]), is_all)


def top_of(name: str) -> str:
    """The file, or the folder with a slash behind it, below which a path lies."""
    top, below, _ = name.partition("/")
    return top + below


def _largest(sizes: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sizes.most_common(_SHOWN_FOLDERS))


def _named(largest: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{one_line(name)} ({format_bytes(size)})" for name, size in largest)


def _require_small(folder: Path, found: Sequence[Found]) -> None:
    """Raise UsageError for more than a program's folder is."""
    sizes: Counter[str] = Counter()
    for each in found:
        sizes[top_of(each.name)] += each.size_bytes()
    if sizes.total() > LIMIT_BYTES or len(found) > LIMIT_FILES:
        raise UsageError(
            f"{folder} has {format_bytes(sizes.total())} in {len(found):,} files; a program's "
            f"folder may have {format_bytes(LIMIT_BYTES)} in {LIMIT_FILES:,}. "
            f"The largest in it: {_named(_largest(sizes))}",
            fix=(
                f"name in {folder / '.gitignore'} what hosts need not get",
                "or cd to the program's own folder; `yoked push FOLDER` brings data to the hosts",
            ),
        )


def _sorted(found: Iterable[Found]) -> list[Found]:
    return sorted(found, key=lambda each: each.name)
