"""Where runs live: naming a new one, finding one that was named, or the latest."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import stat
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from yoked.core.fs import read_json, write_bytes
from yoked.core.names import RUN_NAME, path_word
from yoked.errors import UsageError

# The first file of a run: a folder with it is one of ours, however soon its start was ended.
MARK = ".yoked-run"
# In the copy of a fleet's run: where the fleet's file is, by which the newest of it is fetched.
COPY_MARK = ".yoked-copy.json"
# A folder with one of these is a run; the newest of them says when it was last alive.
_MARKS = ("run.json", "metrics.jsonl", "result.json")
# What may have the name of a file, the last if none of the others.
_NO_FILE: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda _: True, "a device"),
)
# No program's record is larger: a command line may have 2 MiB.
_MOST_RECORD_BYTES = 8 << 20


def stamp(now: datetime) -> str:
    """A name from the local time."""
    return now.strftime("%Y%m%d-%H%M%S")


def new_run_name(runs_dir: Path, now: datetime) -> str:
    """A name from the local time that no folder in runs_dir has yet."""
    stem = stamp(now)
    name, number = stem, 2
    while (runs_dir / name).exists():
        name, number = f"{stem}-{number}", number + 1
    return name


def same_runs(runs_dir: Path) -> str:
    """` --runs-dir FOLDER` for a command line about the same folder; "" for the default."""
    return "" if runs_dir == Path("runs") else f" --runs-dir {path_word(runs_dir)}"


def is_program(folder: Path) -> bool:
    """Whether a run is a program of `yoked run`: it has no model, curve or checkpoint of ours."""
    path = folder / "run.json"
    with contextlib.suppress(OSError):
        found = path.lstat()
        # A folder that somebody gave us may have a device in its place.
        if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_RECORD_BYTES:
            return (read_json(path) or {}).get("trains") is False
    return False


def no_training(folder: Path) -> UsageError:
    """The error where a training is wanted and a program is named."""
    name = path_word(folder.resolve().name)
    return UsageError(
        f"run {folder.resolve().name} is a program of `yoked run`, and no training of yoked's",
        fix=(
            f"yoked fetch {name} --outputs 'out/*.pt'    brings what it wrote",
            f"yoked logs {name}    shows what it printed",
        ),
    )


def require_new(folder: Path) -> None:
    """Raise UsageError if a run, or anything else, is in the folder that a new one is to have.

    A start that was ended before there was a run has left its mark, and maybe files: they may be
    replaced.
    """
    if (folder / "run.json").exists():
        fix = "--run NAME with another name"
        if not is_program(folder):
            fix += f", or go on with it: --resume --run {path_word(folder.name)}"
        raise UsageError(f"there is a run named {folder.name} in {folder.parent} already", fix=fix)
    require_ours(folder)
    require_plain(folder)


def require_ours(folder: Path) -> None:
    """Raise UsageError for a folder that has files in it and is no run: they are a person's own."""
    if (folder / MARK).is_file() or _last_alive_ns(folder) or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise UsageError(
            f"{folder} is no run and not empty: what is in it may be somebody's work",
            fix="--run NAME with another name, or --runs-dir FOLDER",
        )


def require_plain(folder: Path) -> None:
    """Raise UsageError where a run's folder has a link, a pipe or a device anywhere in it.

    Somebody may have given it to us: what yoked writes, replaces and deletes there would lie
    elsewhere, and reading it might never end. The folder itself may be a link of a person's own.
    """
    for above, folders, files in os.walk(folder):
        for path in (Path(above, name) for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                # A file in the making got its name meanwhile.
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                kind = "a link" if stat.S_ISLNK(mode) else "no file"
                raise UsageError(
                    f"{path} is {kind}: yoked would write, or read, what lies elsewhere",
                    fix=f"put a file or folder in its place; {folder} itself may be a link",
                )


def require_files(folder: Path) -> None:
    """Raise UsageError where something else than a file has the name of a file of a run."""
    for mark in _MARKS:
        path = folder / mark
        with contextlib.suppress(OSError):
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                kind = next(name for is_kind, name in _NO_FILE if is_kind(mode))
                raise UsageError(
                    f"{path} is {kind}, where a run has a file",
                    fix=f"put the run's own {mark} in its place, or remove it",
                )


def mark_copy(folder: Path, fleet_file: Path) -> None:
    """Note that a run's folder is a copy of what hosts of a fleet have."""
    content = {"fleet": str(fleet_file.absolute())}
    write_bytes(folder / COPY_MARK, json.dumps(content).encode(), durable=False)


def copied_from(folder: Path) -> Path | None:
    """The file of the fleet whose run this is a copy of; None: it is this machine's own."""
    named = (read_json(folder / COPY_MARK) or {}).get("fleet")
    return Path(named) if isinstance(named, str) else None


def list_runs(runs_dir: Path) -> list[Path]:
    """Folders of runs, the one that was last alive first."""
    if not runs_dir.is_dir():
        return []
    seen = [(_last_alive_ns(folder), folder.name, folder) for folder in runs_dir.iterdir()]
    return [folder for alive, _, folder in sorted(seen, reverse=True) if alive]


def list_trainings(runs_dir: Path) -> list[Path]:
    """The same without programs of `yoked run`."""
    return [folder for folder in list_runs(runs_dir) if not is_program(folder)]


def holds_runs(folder: Path) -> bool:
    """Whether a folder is one of runs: of trainings, or of what was brought here of a run."""
    if not folder.is_dir():
        return False
    return any(_last_alive_ns(each, (MARK, *_MARKS)) for each in folder.iterdir())


def find_run(named: str | None, runs_dir: Path, *, programs: bool = False) -> Path:
    """The folder of a training given by name or path; None: the latest.

    programs: those of `yoked run` count, too. Raises UsageError where there is none, or not of
    files and folders alone (`require_plain`), and for a program that does not count.
    """
    found = _find(named, runs_dir, programs=programs)
    if is_program(found) and not programs:
        raise no_training(found)
    require_plain(found)
    return found


def _find(named: str | None, runs_dir: Path, *, programs: bool) -> Path:
    runs = list_runs(runs_dir) if programs else list_trainings(runs_dir)
    if named is None:
        if not runs:
            others = ": what is there are programs of `yoked run`" * bool(list_runs(runs_dir))
            raise UsageError(
                f"there is no {'training' if others else 'run'} in {runs_dir}{others}",
                fix=(
                    "yoked train",
                    "yoked fetch NAME    brings a fleet's here; `yoked runs` lists what hosts have",
                    "--runs-dir FOLDER    names another folder",
                ),
            )
        return runs[0]
    for candidate in (runs_dir / named, Path(named)):
        if _last_alive_ns(candidate):
            return candidate
    names = [run.name for run in runs]
    near = difflib.get_close_matches(named, names, n=1)
    fix = [f"did you mean {near[0]}?"] if near else []
    if RUN_NAME.fullmatch(named):
        fix.append(f"yoked fetch {named}    brings it here, if it lies on a fleet's hosts")
    if names and not near:
        fix.append(f"runs in {runs_dir}: {_some(names)}")
    elif not names:
        fix.append("--runs-dir FOLDER    names another folder; yoked runs lists what hosts have")
    raise UsageError(f"there is no run {named!r} in {runs_dir}", fix=fix)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def run_around(path: Path) -> Path | None:
    """The folder of a run in which a file lies, or would lie; None: in none."""
    # A result.json alone may be any program's.
    marks = (MARK, COPY_MARK, "run.json", "metrics.jsonl")
    folders = path.absolute().parents
    return next((each for each in folders if any((each / m).is_file() for m in marks)), None)


def _last_alive_ns(folder: Path, marks: Sequence[str] = _MARKS) -> int:
    """When the newest of the marks was written; 0: not a run, or somebody's whose it is alone."""
    newest_ns = 0
    for mark in marks:
        # A run that goes on replaces its files; those of others are in folders of their own.
        with contextlib.suppress(OSError):
            found = (folder / mark).stat()
            newest_ns = max(newest_ns, found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0)
    return newest_ns
