"""One run that is watched: what its hosts tell of it, and what its files have, as a `View`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_high
from typing import Any, TypeVar

from yoked.agent.verdict import held_up_by
from yoked.core.schema import decode
from yoked.diagnosis.cause import SLOW
from yoked.diagnosis.words import named
from yoked.errors import YokedError
from yoked.launch.launching import line_of
from yoked.launch.registry import Record, fault_line, headline, warning_lines
from yoked.report.figures import curve_of, figures_of
from yoked.report.growing import GrowingMetrics, Reading
from yoked.report.metrics import RANK_TIMES, RunMetrics, StepLine
from yoked.report.run_record import Facts, Outcome, RunRecord, go_on_lines
from yoked.units import format_duration
from yoked.watch.files import FolderFiles, GrowingJournal, RunFiles, read_object, why
from yoked.watch.view import (
    NOW_STEPS,
    Level,
    LinkNow,
    Progress,
    RankNow,
    RecentSteps,
    Verdict,
    View,
)

_T = TypeVar("_T")

# Of the time: who waits for less does not wait for anybody.
_WAITS = 0.05
_FACTS_AGAIN_S = 30.0
# What is said of a rank where no step has ended for long (diagnosis.gate.Busy).
_STANDS = ("waiting for others", "at work")


class WatchedRun:
    """A run, over or not.

    most_bytes: of each journal but that of the steps; wire: what a link carries, in bits a second,
    by the names of its hosts.
    """

    def __init__(
        self,
        name: str,
        files: RunFiles,
        reading: Reading,
        *,
        most_bytes: int,
        wire: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self.name = name
        self._files = files
        self._metrics = GrowingMetrics(files.journal("metrics.jsonl"), reading)
        self._events = GrowingJournal(files.journal("events.jsonl"), most_bytes)
        self._timeline = GrowingJournal(files.journal("diagnosis.jsonl"), most_bytes)
        self._wire = wire or {}
        self._facts, self._facts_due_s = Facts(), 0.0
        self._doctor: Mapping[str, Any] | None = None
        self._outcome = Outcome()
        self._unread = ""

    def update(self, *, active: bool) -> None:
        """Read what is new. What cannot be read is kept as it was, and told by the view."""
        problems = list[str]()
        # Its end first: it is known whatever lies in the place of a journal.
        for read in (
            self._read_facts,
            *(() if active else (self._read_outcome,)),
            self._metrics.update,
            self._events.update,
            self._timeline.update,
        ):
            try:
                read()
            except OSError as problem:
                problems.append(why(problem))
            except YokedError as problem:
                problems.append(why(problem))
                # A host that does not answer is not waited for again and again.
                break
        self._unread = "; ".join(dict.fromkeys(problems))

    def _read_facts(self) -> None:
        if time.monotonic() < self._facts_due_s:
            return
        self._facts = self._decoded("run.json", Facts) or self._facts
        self._doctor = read_object(self._files, "doctor.json") or self._doctor
        known = self._facts.started_s is not None
        self._facts_due_s = time.monotonic() + (_FACTS_AGAIN_S if known else 0.0)
        every = self._facts.config.get("eval_every")
        self._metrics.eval_every = every if isinstance(every, int) else None

    def _read_outcome(self) -> None:
        self._outcome = self._decoded("result.json", Outcome) or self._outcome

    def _decoded(self, name: str, kind: type[_T]) -> _T | None:
        found = read_object(self._files, name)
        try:
            return None if found is None else decode(kind, found)
        except ValueError:
            # Of a run that somebody else's program made.
            return None

    def view(self, record: Record | None, silent: Mapping[str, str]) -> View:
        """As it is now. record: what its hosts tell; None: nobody is asked, as it is over, or no
        job of a host's. silent: hosts that do not answer, and why.
        """
        state = self._outcome.state if record is None else record.state
        active = record is not None and record.active
        outcome = Outcome()
        if not active:
            outcome = replace(self._outcome, state=self._outcome.state or state)
        report = RunRecord(
            Path(self.name),
            replace(self._facts, run=self.name),
            outcome,
            self._metrics.metrics,
            tuple(self._events.objects),
            tuple(self._timeline.objects),
            self._doctor,
            self._go_on(record, outcome.state),
        )
        figures = figures_of(report)
        steps = _alike(list(self._metrics.recent))
        recent = _recent(steps)
        verdict = self._verdict(record, figures, silent) if active else _over(record, figures)
        if damaged := self._damaged():
            # Its figures are of a part of its steps.
            level: Level = "warning" if verdict.level in ("good", "plain") else verdict.level
            verdict = replace(verdict, level=level, why=(damaged, *verdict.why))
        if active:
            figures |= {"state": state, "verdict": verdict.text}
        return View(
            run=self.name,
            state=state or "unknown",
            active=active,
            time_s=time.time(),
            verdict=verdict,
            progress=self._progress(record),
            ranks=self._ranks(record, report, steps[-NOW_STEPS:]),
            links=self._links(record),
            recent=recent,
            figures=figures,
            sampled=self._metrics.sampled,
            silent=dict(silent) | ({"files of the run": self._unread} if self._unread else {}),
        )

    def _go_on(self, record: Record | None, state: str | None) -> tuple[str, ...]:
        """As `RunRecord` says. state: of a run that is over."""
        if record is not None:
            return tuple(record.go_on(""))
        if isinstance(self._files, FolderFiles):
            return go_on_lines(self._files.folder, self._facts, state)
        return ()

    def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        """As `Watched` says."""
        found = self._metrics.between(first, last, points - points % 2 or 2)
        return curve_of(found.curve.buckets, len(found.ranks))

    # ---- the parts of a view

    def _verdict(
        self, record: Record | None, figures: Mapping[str, Any], silent: Mapping[str, str]
    ) -> Verdict:
        """Of a run that goes on: what holds it up before what is only worth knowing."""
        assert record is not None
        if record.held_up:
            root = held_up_by(record.held_up[0])
            slow = root["cause"] in SLOW or root["certainty"] != "sure"
            level: Level = "warning" if slow else "bad"
            others = [fault_line(held_up_by(each)) for each in record.held_up[1:]]
            since = root["detected_after_s"]
            lasts = [] if since is None else [f"for {format_duration(since)}"]
            return Verdict(level, fault_line(root), (*lasts, *others), tuple(root["fix"]))
        if record.warnings:
            first = record.warnings[0]
            lines = warning_lines(first)
            return Verdict("warning", lines[0].removeprefix("warning: "), (), tuple(first["fix"]))
        if silent:
            host, reason = next(iter(silent.items()))
            text = f"{host} does not answer; its part of the run goes on, or not: nobody knows"
            return Verdict("warning", text, (reason,), ("yoked doctor",))
        if self._unread:
            return Verdict("warning", "its files cannot be read now", (self._unread,))
        again = [record.restarted_line] if record.restarted_line else []
        if record.busy:
            first = record.busy[0]
            text = f"rank {first['rank']} on {named(first['host'])} is {first['doing']}"
            return Verdict("plain", text, tuple(again))
        if not self._metrics.recent and (stage := _stage(record)):
            text = f"run {self.name} has taken no step yet: {stage}"
            return Verdict("plain", text, tuple(again))
        text = f"run {self.name} gets on"
        return Verdict("good", text, (*again, *figures["why"]), tuple(figures["next"]))

    def _damaged(self) -> str:
        """What is left out of its figures, in a sentence; empty: nothing is."""
        count, first = self._metrics.damaged, self._metrics.first_damaged
        if not count:
            return ""
        least = "at least " if self._metrics.sampled else ""
        if count == 1:
            said, where = "line of metrics.jsonl is no line", f": line {first or 0:,}"
        else:
            said, where = (
                "lines of metrics.jsonl are no lines",
                f"; the first is line {first or 0:,}",
            )
        return f"{least}{count:,} {said} of a run, and left out{where if first else ''}"

    def _progress(self, record: Record | None) -> Progress:
        metrics, steps = self._metrics.metrics, self._facts.horizon.num_iterations
        step_s = _median_step_s(list(self._metrics.recent))
        last = metrics.last
        active = record is not None and record.active
        if record is not None and _stands(record):
            # Earlier steps say nothing of when the next one ends.
            step_s = None
        left = None if steps is None or step_s is None else (steps - metrics.steps_done) * step_s
        return Progress(
            step=metrics.steps_done,
            steps=steps,
            left_s=max(0.0, left) if left is not None and active else None,
            tokens_per_s=last.tokens / step_s if last is not None and step_s else None,
            loss=None if last is None else last.loss,
            val_bpb=metrics.last_val_bpb,
            stage=_stage(record) if record is not None and active and last is None else "",
        )

    def _ranks(
        self, record: Record | None, report: RunRecord, steps: Sequence[StepLine]
    ) -> tuple[RankNow, ...]:
        now = RunMetrics()
        for each in steps:
            if all(each.by_rank.get(name) for name in RANK_TIMES):
                now.add(each)
        # By the names that the verdict has, too.
        hosts = [*map(named, _hosts(record))]
        hosts = hosts or [report.host_of(rank) for rank in range(len(self._facts.hosts))]
        count = max(len(hosts), len(self._metrics.metrics.ranks))
        told = {} if now.ranks else _shares(record)
        waited = _waited_for(now)
        memory = {each["rank"]: each["bytes"] for each in _told(record, "memory")}
        busy = {each["rank"]: each["doing"] for each in (record.busy if record else ())}
        blamed = {each.get("rank"): each for each in (record.held_up if record else ())}
        found = []
        for rank in range(count):
            parts = _parts(now, rank) or told.get(rank, {})
            cause = blamed.get(rank)
            level: Level = "plain"
            doing = busy.get(rank, "")
            if cause is not None:
                level = "warning" if cause["cause"] in SLOW else "bad"
                matter = str(cause["cause"]).removeprefix("rank-").replace("-", " ")
                doing = matter if doing in ("", *_STANDS) else f"{matter}, {doing}"
            found.append(
                RankNow(
                    rank=rank,
                    host=hosts[rank] if rank < len(hosts) else "",
                    parts=parts,
                    # Before it stood it may have waited; now the others wait for it.
                    waits_for=waited.get(rank, ()) if level != "bad" else (),
                    doing=doing,
                    level=level,
                    memory_bytes=memory.get(rank),
                )
            )
        return tuple(found)

    def _links(self, record: Record | None) -> tuple[LinkNow, ...]:
        if record is None or not record.active:
            return ()
        names = [str(node["host"]) for node in record.nodes]
        return tuple(
            LinkNow(
                sender=names[each["sender"]],
                receiver=names[each["receiver"]],
                bits_per_s=8.0 * each["bytes_per_s"],
                wire_bits_per_s=self._wire.get((names[each["sender"]], names[each["receiver"]])),
                rtt_s=each["rtt_s"],
                resent=each["lost"],
            )
            for each in _told(record, "links")
            if max(each["sender"], each["receiver"]) < len(names)
        )


def _over(record: Record | None, figures: Mapping[str, Any]) -> Verdict:
    """Of a run that is over, or of which nothing but its folder is known."""
    state = figures["state"]
    level: Level = "warning"
    if state == "finished":
        level = "good"
    elif state in ("failed", "lost"):
        level = "bad"
    elif state == "unknown":
        level = "plain"
    failure = None if record is None else record.failure
    said = figures["why"]
    if failure is not None and not any(failure["what"] in line for line in said):
        said = [headline(failure), *said]
    return Verdict(level, figures["verdict"], tuple(said), tuple(figures["next"]))


def _stands(record: Record) -> bool:
    """Whether it goes on, and no step of it ends."""
    is_held_up = any(each["cause"] not in SLOW for each in record.held_up)
    return is_held_up or any(each["doing"] in _STANDS for each in record.busy)


def _stage(record: Record) -> str:
    """What a launch waits for; empty: it has begun."""
    return " · ".join(part.text for part in line_of(record).parts)


def _hosts(record: Record | None) -> list[str]:
    """The host of each rank."""
    nodes: Sequence[Mapping[str, Any]] = () if record is None else record.nodes
    return [str(node["host"]) for node in nodes for _ in range(int(node["ranks"]))]


def _told(record: Record | None, name: str) -> Sequence[Mapping[str, Any]]:
    """A list of the newest diagnosis that a host tells."""
    told = [each.get("diagnosis") or {} for each in (record.hosts.values() if record else ())]
    newest = max(told, key=lambda each: each.get("time_s") or 0.0, default={})
    return newest.get(name) or ()


def _shares(record: Record | None) -> dict[int, dict[str, float]]:
    """By rank, of a program that tells of no steps."""
    shares = None if record is None else record.shares
    found = {}
    for each in () if shares is None else shares["ranks"]:
        known = {"computes": each["computes"], "waits": each["waits"]}
        found[each["rank"]] = {name: part for name, part in known.items() if part is not None}
    return found


def _alike(steps: Sequence[StepLine]) -> list[StepLine]:
    """Those that as many ranks took as the newest."""
    ranks = [len(each.by_rank.get("wait_s", ())) for each in steps]
    return [each for each, count in zip(steps, ranks, strict=True) if count == ranks[-1]]


def _recent(steps: Sequence[StepLine]) -> RecentSteps:
    """Columns of steps that are alike."""
    ranks = len(steps[-1].by_rank.get("wait_s", ())) if steps else 0

    def by_rank(name: str) -> tuple[tuple[float, ...], ...]:
        if not all(len(each.by_rank.get(name, ())) == ranks for each in steps):
            return ()
        return tuple(zip(*(each.by_rank[name] for each in steps), strict=True)) if ranks else ()

    return RecentSteps(
        step=tuple(each.step for each in steps),
        dt_s=tuple(each.dt_s for each in steps),
        tokens=tuple(each.tokens for each in steps),
        loss=tuple(each.loss for each in steps),
        compute_s=by_rank("compute_s"),
        comm_s=by_rank("comm_s"),
        wait_s=by_rank("wait_s"),
    )


def _parts(now: RunMetrics, rank: int) -> dict[str, float]:
    """Where a rank's time went, in shares of it: together at most 1. now: the last steps."""
    if not now.elapsed_s or rank >= len(now.ranks):
        return {}
    sums = now.ranks[rank]
    seconds = {"computes": sums.compute_s, "sends": sums.comm_s, "waits": sums.wait_s}
    # A step's time is rank 0's. What that does between its steps, the others wait for in theirs,
    # which are longer by as much; by its own clock a rank's three parts are all of its step.
    whole_s = max(now.elapsed_s, sum(seconds.values()))
    return {name: each_s / whole_s for name, each_s in seconds.items()}


def _waited_for(now: RunMetrics) -> dict[int, tuple[int, ...]]:
    """By rank, those for which it waited in the last steps, the longest first."""
    found: dict[int, dict[int, float]] = {}
    for slow, sums in enumerate(now.ranks):
        for rank, wait_s in sums.kept_waiting_s.items():
            if wait_s >= _WAITS * now.elapsed_s:
                found.setdefault(rank, {})[slow] = wait_s
    return {rank: tuple(sorted(by, key=lambda each: -by[each])) for rank, by in found.items()}


def _median_step_s(steps: Sequence[StepLine]) -> float | None:
    known = [each.dt_s for each in steps[-NOW_STEPS:] if each.dt_s]
    return median_high(known) if known else None
