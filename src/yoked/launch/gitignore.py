"""Which files of a folder git would take, as if none were tracked.

git is asked with an empty repository of our own: of the folder's repository, which may be
somebody's who means harm, only the exclude file is read, and nothing runs (hooks, fsmonitor).
Sources: git-ls-files(1), gitignore(5), safe.directory in git-config(1).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from yoked.core.fs import scratch_folder
from yoked.errors import UsageError

NO_GIT = "there is no git on this machine: what .gitignore names travels too, if it is small enough"
# What a program's folder may hold that no program needs; skipped where there is no git to ask.
_SKIPPED = {".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", "node_modules"}


def has_git() -> bool:
    """Whether .gitignore files are obeyed."""
    return shutil.which("git") is not None


def files_below(folder: Path) -> Iterator[str]:
    """Paths below a folder, with slashes, of files and links, in no order.

    A link to a folder is not followed; the folder of a repository inside ends with a slash, and is
    not looked into. Raises UsageError where a folder cannot be read.
    """
    if not has_git():
        yield from _without_git(folder)
        return
    done = _ask_git(folder, "ls-files", "--others", "--exclude-standard", "-z")
    # It passes over a folder that it cannot read, with a warning.
    if done.returncode or b"could not open directory" in done.stderr:
        said = done.stderr.decode(errors="replace").strip()
        raise UsageError(
            f"git does not list all files of {folder}:\n{said}",
            fix=f"make them readable, or name them in {folder / '.gitignore'}",
        )
    yield from (os.fsdecode(each) for each in done.stdout.split(b"\0") if each)


def ruled_out(folder: Path, names: Collection[str]) -> set[str]:
    """Those of some paths below a folder that git's rules leave out."""
    if not names or not has_git():
        return {name for name in names if _SKIPPED & set(PurePosixPath(name).parts)}
    # Not `:(exclude)x`, which git takes for a pattern with a meaning of its own.
    asked = b"\0".join(os.fsencode(f"./{name}") for name in names)
    done = _ask_git(folder, "check-ignore", "--no-index", "-z", "--stdin", said=asked)
    return {os.fsdecode(each).removeprefix("./") for each in done.stdout.split(b"\0") if each}


def _ask_git(
    folder: Path, *words: str, said: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What git says of a folder, with a repository of our own. said: to its stdin."""
    # Where it really lies: git takes no folder that a link leads to for a part of a repository.
    folder = folder.resolve()
    chain = (folder, *folder.parents)
    root = next((each for each in chain if (each / ".git").exists()), folder)
    with scratch_folder("git") as empty:
        for part in ("objects", "refs", "info"):
            (empty / part).mkdir()
        (empty / "HEAD").write_text("ref: refs/heads/none\n")
        if (exclude := root / ".git" / "info" / "exclude").is_file():
            shutil.copyfile(exclude, empty / "info" / "exclude")
        command = ["git", f"--git-dir={empty}", f"--work-tree={root}"]
        command += ["-c", f"core.excludesFile={os.devnull}", "-c", "core.fsmonitor=false"]
        return subprocess.run(
            [*command, *words],
            cwd=folder,
            env={
                **{name: value for name, value in os.environ.items() if name[:4] != "GIT_"},
                "LC_ALL": "C",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
            },
            input=said or b"",
            capture_output=True,
            check=False,
        )


def _without_git(folder: Path) -> Iterator[str]:
    def fail(problem: OSError) -> None:
        raise UsageError(f"{problem.filename} cannot be read: {problem.strerror}")

    for parent, folders, names in os.walk(folder, onerror=fail):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in (*names, *links):
            yield Path(parent, name).relative_to(folder).as_posix()
