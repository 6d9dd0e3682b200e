"""Processes that are in a run's way: ranks that were left behind, other programs at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.system import end_processes
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import Line, joined
from yoked.text import one_line, shortened
from yoked.units import listed, plural

# Less than this of the cores is what a desktop always does.
_NOTABLE = 0.15
_SHOWN = 3
# Of programs that use little each; a desktop's together use less.
_ALL_SMALL_CORES = 0.7


def _command(process: Mapping[str, Any]) -> str:
    return shortened(one_line(str(process.get("command") or "a program")))


def notable_cores(busy: Sequence[Mapping[str, Any]], have: float) -> float:
    """The cores that these programs use of those that a host has; 0.0 where they are few."""
    cores = sum(each.get("cores") or 0.0 for each in busy)
    return cores if cores >= _NOTABLE * have else 0.0


def _pids(processes: Sequence[Mapping[str, Any]]) -> Line:
    return joined(" ", (each["pid"] for each in processes if each.get("pid")))


@check(
    "stale-ranks",
    question="Are there ranks whose launcher is gone?",
    reads=("health.processes",),
    severity="warning",
    saw="{count} {processes}{of} on {host} lost the launcher and go on: {command}; "
    "they hold {memory:bytes} and {cores:.1f} cores, the oldest for {oldest:duration}",
    why="they hold memory, cores and ports that the next run wants",
    symptom="Memory or cores are gone before the start; `EADDRINUSE`; a new rank meets an "
    "old one and hangs.",
    cause="A launcher was killed, or a login dropped, and its ranks went on (their parent "
    "is process 1). Known by the run's id in their environment, or by RANK and "
    "WORLD_SIZE. A launcher itself is never meant: with `nohup`, or as a service, it lives "
    "on by intent.",
    fix="Ends these very processes, where they are of yoked's runs; `yoked clean` does so "
    "on all hosts. By hand for others: only you know whether one is wanted.",
    on_cluster="Slurm ends what is left of a step by its control group; on machines without "
    "one it is the same.",
    explains=("port-taken", "busy-host", "memory"),
)
def stale_ranks(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        stale: list[Mapping[str, Any]] = part(host, "processes", "stale") or []
        if not stale:
            continue
        memory = sum(each.get("memory_bytes") or 0 for each in stale)
        cores = sum(each.get("cores") or 0.0 for each in stale)
        runs = sorted({str(each["run"]) for each in stale if each.get("run")})
        oldest = max((each.get("age_s") or 0.0) for each in stale)
        of = f" of {listed(runs)}" if runs else ""
        yield Match(
            host.name,
            *_end(host, stale),
            count=len(stale),
            processes="process" if len(stale) == 1 else "processes",
            of=of,
            command=_command(stale[0]),
            memory=memory,
            cores=cores,
            oldest=oldest,
        )


def _end(host: HostSeen, stale: Sequence[Mapping[str, Any]]) -> Iterator[Fix]:
    """One line for processes of the user, one for those of others; what is not of yoked's runs may
    well be wanted, and is for a person to end.
    """
    user = host.facts.get("user")
    known = [each for each in stale if each.get("launch") and each.get("start_ticks") is not None]
    own = [each for each in known if each.get("user") in (user, None)]
    others = [each for each in known if each not in own]
    rest = [each for each in stale if each not in known]
    if own:
        yield end_processes(host.name, own)
    if others:
        yield end_processes(host.name, others, root=True)
    if rest:
        yield by_hand(host.name, "end it, unless it is wanted: kill -9 {pids}", pids=_pids(rest))


@check(
    "other-run",
    question="Is another run of yoked on these hosts?",
    reads=("health.processes",),
    severity="warning",
    saw="run {run}{whose} has been on {where:list} for {age:duration}",
    why="two runs share cores, memory and the network: each is slower, and all ranks wait for the "
    "slowest",
    symptom="Steps take twice as long as the plan said; a rank runs out of memory that was free.",
    cause="A run of yours that goes on unseen, or another user's.",
    fix="By hand: only you know whether it can go. `--beside` starts a run all the same.",
    on_cluster="Slurm gives a job its own cores, unless nodes are shared.",
    explains=("busy-host", "memory"),
)
def other_run(seen: Examination) -> Iterator[Match]:
    found: dict[tuple[str, str, bool], dict[str, float]] = {}
    for host in seen.up:
        runs: list[Mapping[str, Any]] = part(host, "processes", "runs") or []
        for each in runs:
            key = (each["run"], str(each.get("user") or ""), each["ours"])
            found.setdefault(key, {})[host.name] = each["age_s"]
    for (run, user, ours), ages in found.items():
        first = next(iter(ages))
        ending = (
            by_hand(first, "wait for its end, or stop it: yoked stop {run}", run=run)
            if ours
            else by_hand(first, "wait for its end: its user knows when that is")
        )
        yield Match(
            ages,
            ending,
            run=run,
            whose=f" of {one_line(user)}" if user else "",
            where=tuple(ages),
            age=max(ages.values()),
        )


@check(
    "busy-host",
    question="Do other programs use the cores, or hold GPU memory?",
    reads=("health.processes", "health.gpu"),
    severity="warning",
    saw={
        "cores": "other programs on {host} use {cores:.1f} of its {have:plural core}: "
        "{programs:list}",
        "gpu": "other programs hold {held:bytes} of GPU memory on {host}: {programs:list}",
    },
    why={
        "cores": "all ranks wait for the one that shares its cores",
        "gpu": "a batch that fits an empty GPU does not fit this one: `CUDA out of memory`",
    },
    symptom="Steps are slower than the probe measured, on all hosts alike; or "
    "`torch.OutOfMemoryError: CUDA out of memory`, with a batch that fits.",
    cause="A build, a browser, an indexer, another user; a notebook, a server of a model, a game.",
    fix="By hand: only you know whether it can go.",
    on_cluster="Shared partitions without `--exclusive`.",
)
def busy_host(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        yield from _busy_cores(host)
        busy: list[Mapping[str, Any]] = part(host, "gpu", "busy") or []
        held = sum(each.get("memory_bytes") or 0 for each in busy)
        # A desktop draws with it too.
        if host.wanted.get("device") not in ("cpu", "mps") and held >= 1 << 30:
            shown = [_command(each) for each in busy[:_SHOWN]]
            yield Match(host.name, _end_by_hand(host, busy), how="gpu", held=held, programs=shown)


def _busy_cores(host: HostSeen) -> Iterator[Match]:
    busy: list[Mapping[str, Any]] = part(host, "processes", "busy") or []
    have = host.facts.get("usable_cores") or part(host, "processors", "online") or 1
    # Fifty of a tenth of a core take as much as five.
    few = {"cores": part(host, "processes", "small_cores")}
    small = part(host, "processes", "small") or 0
    cores = notable_cores([*busy, few], have)
    if not cores or (not busy and cores < _ALL_SMALL_CORES):
        return
    shown = [
        f"{_command(each)} ({each.get('user')}, process {each.get('pid')}, "
        f"{each.get('cores'):.1f} cores)"
        for each in busy[:_SHOWN]
    ]
    if few["cores"] and small:
        shown.append(f"{plural(small, 'smaller program')} ({few['cores']:.1f} cores)")
    look = by_hand(host.name, "see which they are: `ps aux --sort=-pcpu | head -40`")
    end = _end_by_hand(host, busy) if busy else look
    yield Match(host.name, end, how="cores", cores=cores, have=int(have), programs=shown)


def _end_by_hand(host: HostSeen, busy: Sequence[Mapping[str, Any]]) -> Fix:
    return by_hand(host.name, "end it, if it can go: kill {pids}", pids=_pids(busy))


CHECKS = (stale_ranks, other_run, busy_host)
