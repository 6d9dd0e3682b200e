"""Where runs live: naming a new one, finding one that was named, or the latest."""

from __future__ import annotations

import difflib
from datetime import datetime
from pathlib import Path

from yoked.errors import UsageError

# A folder with one of these is a run; the newest of them says when it was last alive.
_MARKS = ("run.json", "metrics.jsonl", "result.json")


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


def require_new(folder: Path) -> None:
    """Raise UsageError if there is a run in the folder that a new one is to have."""
    if (folder / "run.json").exists():
        raise UsageError(
            f"there is a run named {folder.name} in {folder.parent} already",
            fix=f"--run NAME with another name, or go on with it: --resume --run {folder.name}",
        )


def list_runs(runs_dir: Path) -> list[Path]:
    """Folders of runs, the one that was last alive first."""
    if not runs_dir.is_dir():
        return []
    seen = [(_last_alive_ns(folder), folder.name, folder) for folder in runs_dir.iterdir()]
    return [folder for alive, _, folder in sorted(seen, reverse=True) if alive]


def find_run(named: str | None, runs_dir: Path) -> Path:
    """The folder of a run given by name or path; None: the latest. Raises UsageError."""
    runs = list_runs(runs_dir)
    if named is None:
        if not runs:
            raise UsageError(
                f"there is no run in {runs_dir}",
                fix="yoked train, or name the folder with --runs-dir",
            )
        return runs[0]
    for candidate in (runs_dir / named, Path(named)):
        if _last_alive_ns(candidate):
            return candidate
    names = [run.name for run in runs]
    near = difflib.get_close_matches(named, names, n=1)
    fix = f"did you mean {near[0]}?" if near else f"runs in {runs_dir}: {_some(names)}"
    raise UsageError(f"there is no run {named!r} in {runs_dir}", fix=fix)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8]) or "none"
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _last_alive_ns(folder: Path) -> int:
    """When the newest of the marks was written; 0: not a run."""
    stamps = [path.stat().st_mtime_ns for path in (folder / m for m in _MARKS) if path.is_file()]
    return max(stamps, default=0)
