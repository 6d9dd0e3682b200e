"""What is watched: the runs of a fleet's hosts, and those of a folder of this machine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from yoked.agent.jobstatus import training_progress
from yoked.core.fs import read_json
from yoked.errors import HostError, JobError, UsageError, YokedError
from yoked.fleet.model import HERE
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import Hosts, reconnecting, require_all
from yoked.launch.registry import Record, ask_state, joined, newest_starts, pick, without_job
from yoked.probe.store import load_newest
from yoked.remote.client import AgentClient
from yoked.remote.ssh import CONNECT_TIMEOUT_S
from yoked.report.growing import Reading
from yoked.runs import find_run, list_runs, require_files
from yoked.shape import amount
from yoked.watch.files import PATIENCE_S, FolderFiles, HostFiles, RunFiles, why
from yoked.watch.running import WatchedRun
from yoked.watch.view import Cost, RunRow, View

# A look a second is as much as an eye follows.
_LOOK_EVERY_S = 1.0
# What looking on may take of the way to the hosts, in the mean of half a minute.
MOST_BYTES_PER_S = 16_000.0
_MEAN_S = 30.0
_RECONNECT_EVERY_S = 10.0
_SAVE_WITHIN_S = 120.0
_STOP_WITHIN_S = 60.0
# Of the journals of a run: here, and by way of a network.
_NEAR = Reading()
_FAR = Reading(whole_bytes=256 << 10, sample=400, evaluations=40, tail_bytes=64 << 10)
_NEAR_BYTES, _FAR_BYTES = 4 << 20, 64 << 10


class Watching:
    """The runs of a fleet, as `Watched` of the views. runs_dir: the folder of this machine's."""

    def __init__(
        self, hosts: Hosts, runs_dir: Path, *, clock: Callable[[], float] = time.monotonic
    ):
        self._hosts, self._runs_dir, self._clock = hosts, runs_dir, clock
        self._agents = Agents(hosts)
        self._run: WatchedRun | None = None
        self._job: tuple[str, str] | None = None
        self._record: Record | None = None
        self._far = any(host.name != HERE for host in hosts.fleet.hosts)
        self._received: deque[tuple[float, int]] = deque()
        self._opened_bytes = self._counted_bytes = 0
        self._opened_s = self._due_s = 0.0

    def runs(self) -> list[RunRow]:
        """As `Watched` says."""
        records = self._records()
        rows = [_row(record) for record in records]
        rows += [_row_of(each) for each in without_job(list_runs(self._runs_dir), records)]
        return sorted(rows, key=lambda row: row.when_s or 0.0, reverse=True)

    def begin(self, run: str | None) -> bool:
        """Look at the run that was named, or at the newest that goes on; False: none does.

        Raises what `choose` raises.
        """
        if run is not None:
            self.choose(run)
            return True
        records = self._records()
        if any(record.active for record in records):
            self._choose_record(pick(records, None))
            return True
        return False

    def close(self) -> None:
        """Close the connections that were made here."""
        self._agents.close()

    def choose(self, run: str | None) -> None:
        """As `Watched` says; None: the newest that goes on, else the newest.

        Raises UsageError for a name that no run has, and HostError where no host can be asked.
        """
        folder = Path(run) if run is not None else None
        if folder is not None and len(folder.parts) > 1:
            where = str(folder.resolve())
            jobs = [each for each in self._records() if each.run_dir == where]
            if jobs:
                # It tells more than the files: that it goes on, its logs, and what it waits for
                # before there are any.
                return self._choose_record(jobs[0])
            if folder.is_dir():
                try:
                    return self._choose_folder(run)
                except UsageError:
                    require_files(folder)
                    raise
        try:
            record = pick(self._records(), run)
        except UsageError as none:
            try:
                return self._choose_folder(run)
            except UsageError as neither:
                if run is not None:
                    # It is there, and cannot be looked at: that says more than that it is no run.
                    for candidate in (self._runs_dir / run, Path(run)):
                        require_files(candidate)
                if not self._hosts.clients:
                    require_all(self._hosts.unreachable)
                fix = none.fix if run is None else dict.fromkeys((*neither.fix, *none.fix))
                raise UsageError(f"{none.what}, nor in {self._runs_dir}", fix=[*fix]) from None
        return self._choose_record(record)

    def look(self) -> View:
        """As `Watched` says. It waits until the next look is due: a second after the last one, or
        as long as it takes to stay below MOST_BYTES_PER_S.
        """
        run = self._require()
        time.sleep(max(0.0, self._due_s - self._clock()))
        silent = self._ask()
        run.update(active=self._record is not None and self._record.active)
        view = run.view(self._record, silent)
        return replace(view, cost=self._count())

    def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        """As `Watched` says."""
        return self._require().curve(first, last, points)

    def log(self, rank: int, lines: int) -> list[tuple[str, str]]:
        """As `Watched` says. Raises JobError where no host has the logs of the run."""
        record = self._record
        host = None if record is None else record.host_of(rank)
        if record is None or host is None or host not in self._agents.clients:
            raise JobError(
                f"no host that answers has the output of rank {rank}",
                fix="yoked runs    shows which hosts have which runs",
            )
        wanted: dict[str, Any] = {"ranks": [rank], "attempt": record.attempt, "tail_lines": lines}
        begun = dict[str, bytes]()
        found: list[tuple[float, str, str]] = []
        client = self._agents.clients[host]
        for part in client.stream("job_logs", timeout_s=PATIENCE_S, run=record.run, **wanted):
            if part.data:
                stream, at_s = str(part.content["stream"]), float(part.content["time_s"])
                *whole, begun[stream] = (begun.get(stream, b"") + part.data).split(b"\n")
                found += [(at_s, stream, line.decode(errors="replace")) for line in whole]
        # Both streams, as they came; what has no end of line yet is the last.
        found.sort(key=lambda each: each[0])
        open_lines = [(stream, line.decode(errors="replace")) for stream, line in begun.items()]
        return [each[1:] for each in found] + [each for each in open_lines if each[1]]

    def save(self) -> str:
        """As `Watched` says."""
        handle = self._handle()
        step = handle.save(_SAVE_WITHIN_S)
        if step is None:
            return f"no checkpoint of {handle.record.name} came within {_SAVE_WITHIN_S:.0f} s"
        return f"{handle.record.name} saved after {step:,} steps, and goes on"

    def stop(self, *, now: bool = False) -> str:
        """As `Watched` says."""
        handle = self._handle()
        handle.stop(save_s=0.0 if now else _STOP_WITHIN_S, say=lambda _: None)
        return f"{handle.record.name}: {handle.record.state}"

    # ---- which run

    def _records(self) -> list[Record]:
        """The runs of the hosts, once each host has answered or failed."""
        self._hosts.connections.wait()
        return newest_starts(self._hosts.records())

    def _require(self) -> WatchedRun:
        if self._run is None:
            raise UsageError("there is no run to look at yet", fix="yoked train")
        return self._run

    def _choose_folder(self, named: str | None) -> None:
        folder = find_run(named, self._runs_dir, programs=True)
        self._job = self._record = None
        self._run = WatchedRun(folder.name, FolderFiles(folder), _NEAR, most_bytes=_NEAR_BYTES)

    def _choose_record(self, record: Record) -> None:
        self._job, self._record = (record.run, record.launch_id), record
        files, is_far = self._files_of(record)
        self._run = WatchedRun(
            record.name,
            files,
            _FAR if is_far else _NEAR,
            most_bytes=_FAR_BYTES if is_far else _NEAR_BYTES,
            wire=self._wire(),
        )
        self._opened_bytes, self._due_s = 0, 0.0
        self._counted_bytes = self._agents.received_bytes
        self._received.clear()

    def _files_of(self, record: Record) -> tuple[RunFiles, bool]:
        """Where the files of a run lie, and whether that is behind a network."""
        host = record.host_of(0) or next(iter(record.hosts))
        job = PurePosixPath(record.hosts[host]["folder"])
        told = {name: str(job / name) for name in ("diagnosis.jsonl", "doctor.json")}
        # Of somebody's program the job alone tells.
        folder = str(job) if record.trains is None else record.training_folder(host)
        if host == HERE:
            others = {name: Path(path) for name, path in told.items()}
            return FolderFiles(Path(folder), others), False
        return HostFiles(lambda: self._agents.client(host), folder, told), True

    def _wire(self) -> dict[tuple[str, str], float]:
        """What each link carries, in bits a second, as it was probed; empty: it was not."""
        try:
            found = load_newest(self._hosts.fleet)
        except YokedError:
            # A damaged file is for `yoked probe` to tell.
            return {}
        links = () if found is None else found.links
        return {(each.from_host, each.to_host): 8.0 * each.goodput_bytes_per_s for each in links}

    def _handle(self) -> RunHandle:
        record = self._record
        if record is None or not record.active:
            raise JobError("this run is over: nothing of it trains", fix="yoked runs")
        return RunHandle(
            record.run,
            {host: client for host, client in self._agents.clients.items() if host in record.hosts},
            reconnecting(self._hosts.fleet),
            record=record,
        )

    # ---- a look

    def _ask(self) -> dict[str, str]:
        """Ask the hosts of the run; those that do not answer, and why."""
        if self._job is None or self._record is None:
            return {}
        run, launch_id = self._job
        asked = {str(node["host"]) for node in self._record.nodes}
        if not self._record.active and asked <= set(self._record.hosts):
            # It is over on all of them.
            return {}
        clients = {host: each for host, each in self._agents.clients.items() if host in asked}
        told, failures = ask_state(clients, run, launch_id, timeout_s=PATIENCE_S)
        for host, problem in failures.items():
            if isinstance(problem, HostError):
                self._agents.lost(host)
        if told:
            self._record = joined(run, told, failures)
        silent = {host: why(problem) for host, problem in failures.items()}
        return silent | {host: self._agents.why_not(host) for host in sorted(asked - set(clients))}

    def _count(self) -> Cost | None:
        """What came since the last look, a log too, and when the next one may be."""
        now_s, total = self._clock(), self._agents.received_bytes
        received, self._counted_bytes = total - self._counted_bytes, total
        if not self._far or self._job is None:
            self._due_s = now_s + _LOOK_EVERY_S
            return None
        if not self._opened_bytes:
            # The first look reads what there is by now, once.
            self._opened_bytes, received = received, 0
            self._opened_s = now_s
        self._received.append((now_s, received))
        while self._received[0][0] < now_s - _MEAN_S:
            self._received.popleft()
        self._due_s = now_s + max(_LOOK_EVERY_S, received / MOST_BYTES_PER_S)
        # What comes after a pause between looks is of the time before it, too.
        span_s = min(_MEAN_S, max(_LOOK_EVERY_S, now_s - self._opened_s))
        rate = sum(count for _, count in self._received) / span_s
        return Cost(rate, MOST_BYTES_PER_S, self._opened_bytes)


class Agents:
    """The hosts' agents; one that is lost is connected to again, beside what goes on."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._reconnect = reconnecting(hosts.fleet)
        self._own: dict[str, AgentClient] = {}
        self._lost: set[str] = set()
        self._why: dict[str, str] = {}
        self._ended = threading.Event()
        # Of connections that another one followed.
        self._received = 0

    @property
    def clients(self) -> dict[str, AgentClient]:
        """Those that can be asked now."""
        known = {**self._hosts.clients, **self._own}
        return {host: client for host, client in known.items() if host not in self._lost}

    @property
    def received_bytes(self) -> int:
        """What all of them have sent so far."""
        known = (*self._hosts.clients.values(), *self._own.values())
        return self._received + sum(client.received_bytes for client in known)

    def client(self, host: str) -> AgentClient:
        """The agent of a host. Raises HostError where there is none now."""
        client = self.clients.get(host)
        if client is None:
            raise HostError(f"{host} does not answer now", fix="yoked doctor")
        return client

    def why_not(self, host: str) -> str:
        """Why there is none on a host."""
        problem = self._hosts.unreachable.get(host)
        return self._why.get(host) or ("" if problem is None else why(problem))

    def lost(self, host: str) -> None:
        """Its connection has ended: another one is tried, again and again."""
        if host not in self._lost:
            self._lost.add(host)
            threading.Thread(target=self._again, args=(host,), daemon=True).start()

    def _again(self, host: str) -> None:
        while not self._ended.is_set():
            try:
                client = self._reconnect(host, CONNECT_TIMEOUT_S)
            except YokedError as problem:
                self._why[host] = why(problem)
                self._ended.wait(_RECONNECT_EVERY_S)
                continue
            if self._ended.is_set():
                client.close()
                return
            former = self._own.pop(host, None)
            if former is not None:
                self._received += former.received_bytes
                former.close()
            self._own[host] = client
            self._why.pop(host, None)
            self._lost.discard(host)
            return

    def close(self) -> None:
        """Close the connections that were made here, and make no more."""
        self._ended.set()
        for client in self._own.values():
            client.close()


def _row(record: Record) -> RunRow:
    progress: Mapping[str, Any] = record.progress or {}
    return RunRow(
        run=record.name,
        state=record.state,
        hosts=tuple(str(node["host"]) for node in record.nodes),
        when_s=record.started_s or None,
        step=progress.get("step"),
        loss=progress.get("loss"),
    )


def _row_of(folder: Path) -> RunRow:
    """A run of which no job is known."""
    result, progress = read_json(folder / "result.json") or {}, training_progress(folder) or {}
    state, step = result.get("state", "finished" if result else "unknown"), progress.get("step")
    return RunRow(
        run=folder.name,
        state=state if isinstance(state, str) else "unknown",
        when_s=folder.stat().st_mtime,
        step=step if amount(step) else None,
        loss=progress.get("loss"),
    )
