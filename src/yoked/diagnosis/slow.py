"""Who slows a run down that gets on: a rank, or a link, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from yoked.diagnosis.cause import Cause, Code
from yoked.diagnosis.history import Doubt, LinkPace, Pace, RunHistory
from yoked.diagnosis.pace import all_do_more, has_settled, slow_for_s, times_slower
from yoked.diagnosis.vitals import Machine

# Of the time that a step takes longer, a rank's own time must explain so much. A slow processor
# explains more than all of it. Small packets of a slow link wake threads more often: 0.2 to 0.6.
_EXPLAINS = 0.75
# All ranks wait for a slow link, which costs each of them a little of its own time. A host without
# a free core answers late, too, and the time of its ranks alone grows.
_UNEVEN = 0.25
# Packets sent again; a good network loses fewer by far.
LOST = 0.003
# A queue that has built up before a slow link.
_QUEUED = 3.0
_LOADING = 0.3
# A link that is slow carries less, and packets take longer before it. One that has more to carry
# does not carry less. Hosts on which all takes longer send less, and their packets take no longer;
# ranks that compute more in each step send less in a second, too.
_CARRIES = 0.85
_TAKES_LONGER = 1.2
# Of the time, that a limit or another machine takes.
_TAKEN = 0.05
# Cores of another program: a rank that waits for a core loses as much; one that does not may lose
# its share of the memory to it.
_BESIDE, _MANY_BESIDE = 0.3, 1.0
# Of the usual clock; and of the highest, which all cores together never reach, where no other is
# known.
_LOWER_CLOCK, _LOW_CLOCK = 0.85, 0.6
_SWAPS = 1e6
# Of what held_back finds, the names that stand for a reason.
_HELD_BACK = {"limited", "stolen", "program", "hot", "battery", "clock_hz", "swapped_bytes_per_s"}
# On a machine that is shared, much takes 1.3 times as long for some seconds: others use the caches,
# the memory or a core, and its kernel may not see who. What is slower by less than this, or without
# a reason that its host sees, is told once it has lasted.
_MUCH_SLOWER, _HALF, _LOST, _DOUBT_S, _BREAK_S = 1.5, 0.55, 0.65, 10.0, 2.0


def slow_downs(history: RunHistory, now: Pace) -> Iterator[Cause]:
    """Why steps take longer than usual; nothing where they do not, or nothing explains it."""
    usual = history.usual
    times = times_slower(usual, now)
    if usual is None or usual.step_s is None or times is None:
        history.slow_since_s = None
        return
    # Asked for from the first slow look on: steps before it are forgotten in time.
    for_s = slow_for_s(history)
    if not has_settled(history, now):
        return
    slow = next(_slow_down(history, usual, now, times, for_s), None)
    if slow is not None:
        lasts = _lasts(history, slow)
        if lasts or _is_plain(slow, times):
            yield slow


def _slow_down(
    history: RunHistory, usual: Pace, now: Pace, times: float, for_s: float
) -> Iterator[Cause]:
    """The likeliest first. for_s: so long."""
    longer_s = (times - 1) * (usual.step_s or 0.0)
    grew = {
        # Of several threads each does a part of it.
        rank: (pace.own_s - usual.ranks[rank].own_s) / max(1.0, usual.cores(rank))
        for rank, pace in now.ranks.items()
        if rank in usual.ranks
    }
    explain = [rank for rank in grew if grew[rank] >= _EXPLAINS * longer_s]
    more = all_do_more(usual, now)
    links = list(_slow_links(usual, now, times, for_s, more=more))
    losing = any(link.code == "packets-lost" for link in links)
    if explain and not more:
        # Lost packets cost CPU time, too. They make nobody wait for a core.
        rank = _of_same_host(history, max(explain, key=lambda each: grew[each]), explain)
        slow = _slow_rank(history, rank, usual, now, times, for_s)
        yield slow if slow.params["delayed"] or not losing else links[0]
        return
    loads = [
        each
        for each, pace in now.ranks.items()
        if each in usual.ranks and pace.loading - usual.ranks[each].loading >= _LOADING
    ]
    if loads:
        params = {"times": times, "share": now.ranks[loads[0]].loading}
        node = history.node_of(loads[0])
        yield Cause("data-slow", (node,), for_s, "likely", rank=loads[0], params=params)
        return
    uneven_s = max(grew.values(), default=0.0) - min(grew.values(), default=0.0)
    if losing or uneven_s < _UNEVEN * longer_s:
        yield from links


def _of_same_host(history: RunHistory, rank: int, others: Iterable[int]) -> int:
    """This rank, or the one of its host, among these others, that was named lately: ranks that
    share what is slow are the slowest in turn.
    """
    doubt = _open_doubt(history)
    named = None if doubt is None else doubt.cause.rank
    if named is None or named not in others or history.node_of(named) != history.node_of(rank):
        return rank
    return named


def _is_plain(slow: Cause, times: float) -> bool:
    """Whether so much is slower, with a reason, that it is told at once."""
    if slow.code == "packets-lost":
        return True
    if slow.code == "link-slow":
        carries = _figure(slow, "bytes_per_s") < _HALF * _figure(slow, "usual_bytes_per_s")
        return carries and times >= _MUCH_SLOWER
    if slow.code != "cpu-slow":
        return times >= _MUCH_SLOWER
    if not slow.params["delayed"]:
        return times >= _MUCH_SLOWER and not _HELD_BACK.isdisjoint(slow.params)
    # Others may wait for it for less than it waits for its core.
    lost = _figure(slow, "cores") < _LOST * _figure(slow, "usual_cores")
    return lost or times >= _MUCH_SLOWER


def _figure(slow: Cause, name: str) -> float:
    value = slow.params[name]
    assert isinstance(value, float)
    return value


def _lasts(history: RunHistory, slow: Cause) -> bool:
    """Whether a cause has lasted long enough, be it plain or not. Short breaks do not count."""
    doubt, now_s = _open_doubt(history), history.now_s
    if doubt is None or not _is_of_same(doubt.cause, slow):
        doubt = Doubt(slow, now_s, now_s)
    history.doubt = replace(doubt, cause=slow, last_s=now_s)
    return now_s - doubt.since_s >= _DOUBT_S


def _open_doubt(history: RunHistory) -> Doubt | None:
    """The doubt that was seen lately."""
    doubt = history.doubt
    return doubt if doubt is not None and history.now_s - doubt.last_s <= _BREAK_S else None


def _is_of_same(one: Cause, other: Cause) -> bool:
    return (one.code, set(one.nodes)) == (other.code, set(other.nodes))


def slow_links(history: RunHistory, now: Pace, for_s: float) -> Iterator[Cause]:
    """Links that carry less than usual, though there is something to carry. for_s: so long."""
    if history.usual is not None:
        yield from _slow_links(history.usual, now, None, for_s)


def _slow_links(
    usual: Pace, now: Pace, times: float | None, for_s: float, *, more: bool = False
) -> Iterator[Cause]:
    """times: by which a step takes longer; None: no step has ended since. more: all ranks compute
    more in it.
    """
    found: list[tuple[float, Cause]] = []
    for (node, other), link in now.links.items():
        before = usual.links.get((node, other))
        if before is None:
            continue
        code = _what_of(before, link, more=more)
        if code is not None:
            params = {
                "times": times,
                "bytes_per_s": link.bytes_per_s,
                "usual_bytes_per_s": before.bytes_per_s,
                "lost": link.lost,
                "rtt_s": link.rtt_s,
                "usual_rtt_s": before.rtt_s,
            }
            cause = Cause(code, (node, other), for_s, "likely", link=(node, other), params=params)
            found.append((link.busy, cause))
    if found:
        yield max(found, key=lambda each: each[0])[1]


def _what_of(usual: LinkPace, now: LinkPace, *, more: bool) -> Code | None:
    queued = now.rtt_s >= _QUEUED * usual.rtt_s
    if now.lost >= LOST and now.lost >= 3 * usual.lost and not queued:
        return "packets-lost"
    if now.bytes_per_s >= _CARRIES * usual.bytes_per_s:
        return None
    waits = now.busy >= 0.5 and now.busy > usual.busy
    waits = waits and now.rtt_s >= _TAKES_LONGER * usual.rtt_s
    return "link-slow" if queued or (waits and not more) else None


def _slow_rank(
    history: RunHistory, rank: int, usual: Pace, now: Pace, times: float, for_s: float
) -> Cause:
    was, became = usual.ranks[rank], now.ranks[rank]
    delayed = became.delayed_s - was.delayed_s > became.cpu_s - was.cpu_s
    params: dict[str, object] = {
        "times": times,
        "delayed": delayed,
        "cpu_s": became.cpu_s,
        "usual_cpu_s": was.cpu_s,
        "cores": now.cores(rank),
        "usual_cores": usual.cores(rank),
    }
    node = history.node_of(rank)
    last = history.hosts[node].last
    if last is not None and last.machine is not None:
        params |= held_back(usual.machines.get(node), last.machine, delayed=delayed)
    return Cause("cpu-slow", (node,), for_s, "likely", rank=rank, params=params)


def slow_hosts(history: RunHistory, told: Iterable[Cause]) -> set[int]:
    """Hosts whose processor is slow for a rank, as these causes tell or may tell soon."""
    doubt = _open_doubt(history)
    suspected = [] if doubt is None else [doubt.cause]
    slow = (cause for cause in (*told, *suspected) if cause.code == "cpu-slow")
    return {node for cause in slow for node in cause.nodes}


def held_back(usual: Machine | None, now: Machine, *, delayed: bool) -> dict[str, object]:
    """What holds a host's processors back that usually does not: parameters of its sentence.

    usual: None: unknown, and much is too much. delayed: its ranks wait for a core.
    """
    was = usual or Machine()
    found: dict[str, object] = {}
    if (now.limited or 0.0) >= (was.limited or 0.0) + _TAKEN:
        found["limited"] = now.limited
    if now.stolen >= was.stolen + _TAKEN:
        found["stolen"] = now.stolen
    if now.program_cores >= (_BESIDE if delayed else _MANY_BESIDE):
        found |= {"program": now.program, "program_cores": now.program_cores}
    if (now.hot or 0.0) > (was.hot or 0.0):
        found["hot"] = now.hot
    if now.on_battery and not was.on_battery:
        found["battery"] = True
    if now.clock_hz is not None and now.most_hz is not None:
        usual_hz = was.clock_hz or _LOW_CLOCK * now.most_hz
        if now.clock_hz < _LOWER_CLOCK * usual_hz:
            found |= {"clock_hz": now.clock_hz, "most_hz": now.most_hz}
            found["usual_clock_hz"] = was.clock_hz
    if (now.swapped_bytes_per_s or 0.0) >= _SWAPS + 2 * (was.swapped_bytes_per_s or 0.0):
        found["swapped_bytes_per_s"] = now.swapped_bytes_per_s
    return found
