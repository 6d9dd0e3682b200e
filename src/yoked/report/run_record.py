"""A run's folder as it was left: what it was to be, what it measured, and what was said of it.

Reading only: nothing here writes, asks a host or imports torch. Everything in the folder is
foreign, as it may have been brought from somewhere: it has the types below, or is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from yoked.core.fs import read_json
from yoked.core.names import path_word
from yoked.core.schema import decode
from yoked.diagnosis.words import named
from yoked.errors import YokedError
from yoked.fleet.file import FILE_NAME
from yoked.fleet.model import HERE
from yoked.journal import read
from yoked.report.metrics import RunMetrics, read_metrics
from yoked.runs import copied_from, same_runs

_T = TypeVar("_T")


@dataclass(frozen=True)
class Choice:
    """Something that was chosen. measured: the figures that it was chosen by."""

    name: str
    value: str
    reason: str
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RankFacts:
    """A rank's host, and what it trained with."""

    name: str
    rank: int | None = None
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    threads: int | None = None
    torch: str | None = None
    python: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def version(self, package: str) -> str | None:
        """Of `python` or `torch`. A program's record has both apart, and its python is a path."""
        return self.versions.get(package) or getattr(self, package)


@dataclass(frozen=True)
class Program:
    """What `yoked run` started. argv: as it was typed; folder: the name of the one it lay in."""

    argv: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class Horizon:
    """How long the run was to be."""

    num_iterations: int | None = None
    total_batch_size: int | None = None


@dataclass(frozen=True)
class Outlook:
    """The forecast of a step."""

    step_s: float | None = None


@dataclass(frozen=True)
class Facts:
    """run.json. program: None: it is a training."""

    run: str = ""
    program: Program | None = None
    attempt: int = 1
    started_s: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    horizon: Horizon = Horizon()
    outlook: Outlook = Outlook()
    choices: tuple[Choice, ...] = ()
    hosts: tuple[RankFacts, ...] = ()

    def host_of(self, rank: int) -> str:
        """The name of a rank's host; empty where that is not on record."""
        known = {each.rank: each.name for each in self.hosts}
        return known.get(rank) or (self.hosts[rank].name if rank < len(self.hosts) else "")


@dataclass(frozen=True)
class Fault:
    """The failure that ended a run, as result.json has it. hosts: all that may be to blame."""

    cause: str
    host: str
    hosts: tuple[str, ...] = ()
    rank: int | None = None
    evidence: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Best:
    """The checkpoint that validation found best. step: after so many."""

    step: int
    val_bpb: float


@dataclass(frozen=True)
class Outcome:
    """result.json. state: None: there is none, so nobody knows of an end."""

    state: str | None = None
    best: Best | None = None
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """A run's folder. events, timeline: lines of events.jsonl, and of diagnosis.jsonl as one host
    kept it, the oldest first. doctor: what its quick form said at the last start; None: nothing is
    on record. go_on: the command that resumes it, where it ended early; else none.
    """

    folder: Path
    facts: Facts
    outcome: Outcome
    metrics: RunMetrics
    events: tuple[Mapping[str, Any], ...]
    timeline: tuple[Mapping[str, Any], ...]
    doctor: Mapping[str, Any] | None
    go_on: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's name."""
        return self.facts.run or self.folder.name

    def host_of(self, rank: int) -> str:
        """The name of a rank's host; empty where that is not on record.

        As the diagnosis has it: where the run was on this machine alone, that is no name.
        """
        name = self.facts.host_of(rank)
        is_one = len({each.name for each in self.facts.hosts}) == 1
        begins = (line for line in self.timeline if line.get("event") == "begin")
        is_here = is_one and any(line.get("host") == HERE for line in begins)
        return named(HERE) if name and is_here else name


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder. Raises YokedError for a file in it that no run writes."""
    facts = _decoded(folder / "run.json", Facts)
    outcome = _decoded(folder / "result.json", Outcome)
    return RunRecord(
        folder,
        facts,
        outcome,
        read_metrics(folder / "metrics.jsonl"),
        _lines(folder / "events.jsonl"),
        _lines(folder / "diagnosis.jsonl"),
        read_json(folder / "doctor.json"),
        go_on_lines(folder, facts, outcome.state),
    )


def go_on_lines(folder: Path, facts: Facts, state: str | None) -> tuple[str, ...]:
    """The command that resumes the training of a folder, if it ended before its time; else none."""
    early = state in ("failed", "interrupted", "stopped", "lost")
    if not early or facts.program is not None or not (folder / "run.json").is_file():
        return ()
    whole = folder.absolute()
    where = "" if whole.parent == Path("runs").absolute() else same_runs(whole.parent)
    fleet_file = copied_from(folder)
    if fleet_file is not None and fleet_file != Path(FILE_NAME).absolute():
        where += f" --fleet {path_word(fleet_file)}"
    return (f"yoked train --resume --run {quote(whole.name)}{where}",)


def _lines(journal: Path) -> tuple[Mapping[str, Any], ...]:
    return tuple(read(journal)) if journal.is_file() else ()


def _decoded(path: Path, kind: type[_T]) -> _T:
    """The object of a JSON file; one without content where there is no file."""
    if not path.is_file():
        return kind()
    try:
        found: _T = decode(kind, read_json(path) or {})
    except ValueError as problem:
        raise YokedError(
            f"{path} is no file of a run: {problem}", fix=f"look at it, or move it away: {path}"
        ) from problem
    return found
