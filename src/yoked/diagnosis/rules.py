"""What is wrong with a run that has not ended: rules over its history, each for one cause.

Pure: a history in, causes out, so that any of it can be replayed. An absent record is unknown, and
never evidence. Standard library alone: the hosts' daemons call it when no controller is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from yoked.diagnosis.activity import PATIENT, activity_of, own_frame
from yoked.diagnosis.history import HostHistory, RunHistory
from yoked.diagnosis.vitals import LinkVitals, RankVitals, Vitals
from yoked.diagnosis.waits import Wait, behind, roots, wait_of, waits_of

Code = Literal[
    "rank-stopped",
    "rank-stands",
    "rank-ended-early",
    "disk-stands",
    "host-asleep",
    "host-unheard",
    "link-stands",
    "collective-mismatch",
    "cannot-tell",
]
Certainty = Literal["sure", "likely"]

# A stopped rank may be one that a person looks at for a moment.
_STOPPED_S = 1.0
_DISK_S = 2.0
_STANDS_SURE_S = 10.0
# Hosts say their vitals twice a second; a Wi-Fi cell is changed within a few.
_UNHEARD_S, _UNHEARD_SURE_S = 1.5, 4.0
# So often a timer was doubled: some 1.4 s without an acknowledgement on a home network.
_BACKOFF = 2
# Of a core: less is a thread that looks round now and then, such as the recorder.
_IDLE_CORES = 0.05
_LOOK_BACK_S = 1.5


@dataclass(frozen=True)
class Cause:
    """Something that holds a run up. nodes: to blame, the first the first; a link has both its
    hosts. since_s: how long it has been so. params: names and figures of its sentences.
    """

    code: Code
    nodes: tuple[int, ...]
    since_s: float
    certainty: Certainty = "sure"
    rank: int | None = None
    link: tuple[int, int] | None = None
    params: Mapping[str, object] = field(default_factory=dict)


def causes(history: RunHistory) -> list[Cause]:
    """What holds the run up now, the root first; empty: nothing does, as far as can be told."""
    by_kernel = [*_stopped(history), *_on_disk(history), *_unheard(history)]
    if by_kernel:
        return sorted(by_kernel, key=lambda cause: -cause.since_s)
    waits = waits_of(history)
    if not waits:
        return []
    return _held_up(history, waits)


# ---- what the kernel alone tells


def _stopped(history: RunHistory) -> Iterator[Cause]:
    """Ranks that a signal stopped (SIGSTOP, Ctrl-Z)."""
    for node, rank in history.alive():
        since_s = _in_state(history, node, rank, "T")
        if since_s is not None and since_s >= _STOPPED_S:
            yield Cause("rank-stopped", (node,), since_s, rank=rank.rank, params={"pid": rank.pid})


def _on_disk(history: RunHistory) -> Iterator[Cause]:
    """Ranks that wait in the kernel for a disk or a mount that does not answer."""
    for node, rank in history.alive():
        since_s = _in_state(history, node, rank, "D")
        if since_s is not None and since_s >= _DISK_S and _cores(history, node, rank) < _IDLE_CORES:
            where = {"waits_in": rank.waits_in, **_at(rank)}
            yield Cause("disk-stands", (node,), since_s, rank=rank.rank, params=where)


def _in_state(history: RunHistory, node: int, rank: RankVitals, state: str) -> float | None:
    """For how long a rank has been in a state; None: it is in another."""
    if rank.state != state:
        return None
    since_s = history.now_s
    for at_s, vitals in reversed(history.hosts[node].looks):
        then = _rank_of(vitals, rank.rank)
        if then is None or then.state != state or then.pid != rank.pid:
            break
        since_s = at_s
    return history.now_s - since_s


def _unheard(history: RunHistory) -> Iterator[Cause]:
    """Hosts of which nothing comes, though their connection has not ended."""
    for node, host in enumerate(history.hosts):
        silent_s = history.silent_s(node)
        if node == history.here or host.last is None or silent_s < _UNHEARD_S:
            continue
        sure: Certainty = "sure" if silent_s >= _UNHEARD_SURE_S else "likely"
        way = _link(history.hosts[history.here].last, node, control=True)
        if way is not None and way.backoff >= _BACKOFF and way.unsent_bytes:
            link = (history.here, node)
            yield Cause("host-unheard", (node, history.here), silent_s, sure, link=link,
                        params={"unsent": way.unsent_bytes})  # fmt: skip
        else:
            # Its kernel acknowledges what is sent; its programs do not run.
            yield Cause("host-asleep", (node,), silent_s, sure)


# ---- what holds up the ranks that wait


def _held_up(history: RunHistory, waits: Mapping[int, Wait]) -> list[Cause]:
    ranks = frozenset(history.ranks)
    now = {rank.rank: (node, rank) for node, rank in history.alive()}
    longest = max(waits.values(), key=lambda wait: wait.age_s)
    found = []
    for rank in roots(waits, ranks):
        if rank not in now:
            cause = _ended_early(history, rank, longest)
        else:
            node, vitals = now[rank]
            if wait_of(vitals) is not None:
                # It waits too, and not yet for so long: hosts look at different moments.
                continue
            if activity_of(vitals) in PATIENT:
                # It is told to whoever asks, and is no fault: the run goes on once it is through.
                return []
            cause = _stands(history, node, vitals, longest)
        if cause is not None:
            found.append(cause)
    if found:
        return found
    if len(waits) < len(ranks):
        # Somebody computes, and the others wait for it: it is slow, or only at work.
        return []
    mismatch = _mismatch(history, waits)
    if mismatch is not None:
        return [mismatch]
    links = list(_standing_links(history, longest))
    if links:
        return links
    nodes = tuple(dict.fromkeys(history.node_of(rank) for rank in sorted(behind(waits) or waits)))
    return [Cause("cannot-tell", nodes, longest.age_s, "likely", params={"what": longest.what})]


def _ended_early(history: RunHistory, rank: int, longest: Wait) -> Cause | None:
    """A rank that ended well while others wait for it."""
    node = history.node_of(rank)
    last = history.hosts[node].last
    ended = next((one for one in last.ended if one.rank == rank), None) if last else None
    if ended is None or ended.exit_code != 0:
        # Its own failure is told by whoever saw it end.
        return None
    params = {"what": longest.what, "waiting": longest.rank}
    return Cause("rank-ended-early", (node,), ended.age_s, rank=rank, params=params)


def _stands(history: RunHistory, node: int, rank: RankVitals, longest: Wait) -> Cause | None:
    """A rank that others wait for, and that neither computes nor waits for them."""
    recorded = rank.recorded
    # Of what the kernel tells of a rank, such as D, there are rules above, with their own patience.
    if recorded is None or rank.state != "S" or _cores(history, node, rank) >= _IDLE_CORES:
        return None
    since_s = min(recorded.frames_age_s + recorded.age_s, history.stands_s(rank.rank))
    if since_s < _STOPPED_S:
        return None
    params = {"what": longest.what, "waiting": longest.rank, "waits_in": rank.waits_in, **_at(rank)}
    # What it waits for may yet come: data over a slow network, a lock of a thread that loads.
    certainty: Certainty = "sure" if since_s >= _STANDS_SURE_S else "likely"
    return Cause("rank-stands", (node,), since_s, certainty, rank=rank.rank, params=params)


def _mismatch(history: RunHistory, waits: Mapping[int, Wait]) -> Cause | None:
    """Ranks that are in the same collective by its number, and not by its kind or sizes."""
    flights = {rank: wait.flight for rank, wait in waits.items() if wait.flight is not None}
    if len(flights) < 2:
        return None
    kinds = {rank: (one.number, one.op, one.sizes) for rank, one in flights.items()}
    if len(set(kinds.values())) < 2:
        return None
    odd = behind(waits) or _fewest(kinds)
    rank = min(odd)
    longest = max(wait.age_s for wait in waits.values())
    said = {
        str(rank): f"{one.op} {one.number} of {list(one.sizes)}" for rank, one in flights.items()
    }
    node = history.node_of(rank)
    return Cause("collective-mismatch", (node,), longest, "likely", rank=rank,
                 params={"ranks": sorted(odd), "calls": said})  # fmt: skip


def _fewest(kinds: Mapping[int, object]) -> set[int]:
    """The ranks whose kind the fewest share; of two equal camps, that without rank 0."""
    camps: dict[object, set[int]] = {}
    for rank, kind in kinds.items():
        camps.setdefault(kind, set()).add(rank)
    return min(camps.values(), key=lambda ranks: (len(ranks), 0 in ranks))


def _standing_links(history: RunHistory, longest: Wait) -> Iterator[Cause]:
    """Links on which the ranks' bytes are not acknowledged, though both hosts are heard."""
    seen = set[frozenset[int]]()
    for node, host in enumerate(history.hosts):
        for link in host.last.links if host.last else ():
            pair = frozenset((node, link.node))
            if pair in seen or not unacknowledged(link):
                continue
            seen.add(pair)
            source, target = _direction(history, node, link.node)
            yield Cause(
                "link-stands",
                (source, target),
                max(link.acked_age_s, longest.age_s),
                link=(source, target),
                params={"unsent": link.unsent_bytes, "backoff": link.backoff,
                        "one_way": (source, target) != (node, link.node) or
                        _arrives(history, target, source)},
            )  # fmt: skip


def unacknowledged(link: LinkVitals) -> bool:
    """Whether what is sent there is sent again and again, without an answer."""
    return link.backoff >= _BACKOFF and link.unsent_bytes > 0


def _direction(history: RunHistory, one: int, other: int) -> tuple[int, int]:
    """The way on which packets are lost: what one end sends, and the other does not see."""
    if _arrives(history, one, other) and not _arrives(history, other, one):
        return one, other
    if _arrives(history, other, one) and not _arrives(history, one, other):
        return other, one
    return one, other


def _arrives(history: RunHistory, at: int, source: int) -> bool:
    """Whether packets of the ranks on `source` have come in lately."""
    now = _link(history.hosts[at].last, source)
    before = _link(history.hosts[at].before(history.now_s, _LOOK_BACK_S), source)
    return now is not None and before is not None and now.arrived > before.arrived


# ---- figures


def _cores(history: RunHistory, node: int, rank: RankVitals) -> float:
    """Cores that a rank used lately; many where too little is known."""
    host = history.hosts[node]
    then_s, then = _then(host, rank, history.now_s)
    heard_s = host.heard_s
    if then is None or heard_s is None or heard_s - then_s < 0.5 * _LOOK_BACK_S:
        return float("inf")
    return (rank.cpu_s - then.cpu_s) / (heard_s - then_s)


def _then(host: HostHistory, rank: RankVitals, now_s: float) -> tuple[float, RankVitals | None]:
    """A rank as it was a while ago, and when."""
    for at_s, vitals in reversed(host.looks):
        if now_s - at_s >= _LOOK_BACK_S:
            found = _rank_of(vitals, rank.rank)
            return at_s, found if found is not None and found.pid == rank.pid else None
    return now_s, None


def _rank_of(vitals: Vitals, rank: int) -> RankVitals | None:
    return next((one for one in vitals.ranks if one.rank == rank), None)


def _link(vitals: Vitals | None, node: int, *, control: bool = False) -> LinkVitals | None:
    links = () if vitals is None else vitals.control if control else vitals.links
    return next((link for link in links if link.node == node), None)


def _at(rank: RankVitals) -> dict[str, object]:
    """Where the program stands: the parameters `file`, `line` and `function`."""
    frame = own_frame(rank.recorded.frames) if rank.recorded else None
    if frame is None:
        return {"file": "", "line": 0, "function": ""}
    return {"file": frame.file, "line": frame.line, "function": frame.function}
