"""What is wrong with a run that has not ended: rules over its history, each for one cause.

Pure: a history in, causes out, so that any of it can be replayed. An absent record is unknown, and
never evidence. Standard library alone: the hosts' daemons call it when no controller is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from yoked.diagnosis.activity import PATIENT, activity_of, own_frame
from yoked.diagnosis.calls import Calls, mismatch_of
from yoked.diagnosis.cause import Cause, Certainty
from yoked.diagnosis.history import Pace, RunHistory
from yoked.diagnosis.pace import learn, learn_longer, pace_now
from yoked.diagnosis.slow import LOST, slow_downs, slow_links
from yoked.diagnosis.vitals import LinkVitals, RankVitals, Vitals
from yoked.diagnosis.waits import NATIVE_S, Wait, behind, roots, wait_of, waits_of

# A stopped rank may be one that a person looks at for a moment.
_STOPPED_S, _STOPPED_SURE_S = 1.0, 3.0
_DISK_S, _DISK_SURE_S = 2.0, 10.0
_EARLY_S, _EARLY_SURE_S = 1.0, 3.0
# A lock that nobody gives back; anything else may yet come, such as data of a slow network.
_LOCKED_SURE_S, _STANDS_SURE_S = 10.0, 60.0
# A sleep ends: a program may try again after it.
_SLEEPS_SURE_S = 600.0
# As torch names it.
_DEFAULT_GROUP = "0"
# What takes as long as it takes is late after so many times the longest so far, and a minute more;
# the first time after this. A rank that computes is, after so many steps' time.
_LONGER, _LONGER_S, _FIRST_TIME_S, _MANY_STEPS = 3.0, 60.0, 600.0, 20.0
# Hosts say their vitals twice a second. A run ends on what is sure, and one goes on after a laptop
# has changed its Wi-Fi cell, or a switch was plugged in anew.
_UNHEARD_S, _AWAY_SURE_S = 1.5, 30.0
# So often a timer was doubled: some 1.4 s without an acknowledgement on a home network.
_BACKOFF = 2
# Where packets were lost before, a few more of them double it too: there it takes some 6 s. So many
# seconds before are looked at; of few packets one or two may have been sent again in vain.
_BACKOFF_OF_LOSSY, _LOST_BEFORE_S, _FEW_PACKETS = 5, 10.0, 1000
# So many bytes a second are a step's, and not somebody's word that he is there. A wait for them is
# told of when it has lasted.
_FLOWS, _FLOWS_S = 16_384.0, 10.0
# Of a core: less is a thread that looks round now and then, such as the recorder.
_IDLE_CORES = 0.05
_LOOK_BACK_S = 1.5


def causes(history: RunHistory) -> list[Cause]:
    """What holds the run up now, the root first; empty: nothing does, as far as can be told."""
    by_kernel = [*_stopped(history), *_on_disk(history), *_unheard(history)]
    if by_kernel:
        return sorted(by_kernel, key=lambda cause: -cause.since_s)
    waits = waits_of(history)
    now = pace_now(history)
    learn(history, now)
    if waits:
        return _held_up(history, waits, now)
    slow = list(slow_downs(history, now))
    if not slow:
        learn_longer(history, now)
    return slow


# ---- what the kernel alone tells


def _stopped(history: RunHistory) -> Iterator[Cause]:
    """Ranks that a signal stopped (SIGSTOP, Ctrl-Z)."""
    for node, rank in history.alive():
        since_s = _in_state(history, node, rank, "T")
        if since_s is not None and since_s >= _STOPPED_S:
            yield Cause("rank-stopped", (node,), since_s, _sure(since_s, _STOPPED_SURE_S),
                        rank=rank.rank, params={"pid": rank.pid})  # fmt: skip


def _on_disk(history: RunHistory) -> Iterator[Cause]:
    """Ranks that wait in the kernel for a disk or a mount that does not answer."""
    for node, rank in history.alive():
        since_s = _in_state(history, node, rank, "D")
        if since_s is not None and since_s >= _DISK_S and _cores(history, node, rank) < _IDLE_CORES:
            where = {"waits_in": rank.waits_in, **_at(rank)}
            yield Cause("disk-stands", (node,), since_s, _sure(since_s, _DISK_SURE_S),
                        rank=rank.rank, params=where)  # fmt: skip


def _in_state(history: RunHistory, node: int, rank: RankVitals, state: str) -> float | None:
    """For how long a rank has been in a state; None: it is in another."""
    if rank.state != state:
        return None
    since_s = history.now_s
    for at_s, vitals in reversed(history.hosts[node].looks):
        then = _rank_of(vitals, rank.rank)
        if then is None or then.state != state or then.pid != rank.pid:
            break
        if state == "T" and then.cpu_s != rank.cpu_s:
            # It went on meanwhile: cpulimit stops it again and again.
            break
        since_s = at_s
    silent_s = history.silent_s(node)
    # What a host that has fallen silent said last is not known to hold since.
    until_s = history.now_s - (silent_s if silent_s >= _UNHEARD_S else 0.0)
    return max(0.0, until_s - since_s)


def _unheard(history: RunHistory) -> Iterator[Cause]:
    """Hosts of which nothing comes, though their connection has not ended."""
    for node, host in enumerate(history.hosts):
        # Node 0 passes on what other hosts say: while it is silent, so are they.
        listener = history.here if 0 in (node, history.here) else 0
        silent_s = history.silent_s(node) - history.silent_s(listener)
        if node == history.here or host.last is None or silent_s < _UNHEARD_S:
            continue
        sure = _sure(silent_s, _AWAY_SURE_S)
        way = _link(history.hosts[listener].last, node, control=True)
        if way is not None and way.backoff >= _BACKOFF and way.unsent_bytes:
            yield Cause("host-unheard", (node, listener), silent_s, sure, link=(listener, node),
                        params={"unsent": way.unsent_bytes})  # fmt: skip
        else:
            # Its kernel acknowledges what is sent; its programs do not run.
            yield Cause("host-asleep", (node,), silent_s, sure)


# ---- what holds up the ranks that wait


def _held_up(history: RunHistory, waits: Mapping[int, Wait], pace: Pace) -> list[Cause]:
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
                # It is told to whoever asks, and is no fault: the run goes on after that.
                late = _takes_long(history, node, vitals, longest)
                return [] if late is None else [late]
            cause = _stands(history, node, vitals, longest)
            cause = cause or _computes_on(history, node, vitals, longest)
        if cause is not None:
            found.append(cause)
    if found:
        return found
    if len(waits) < len(ranks):
        # Somebody computes, and the others wait for it: it is slow, or only at work.
        return []
    mismatch = _mismatch(history, waits) or _in_other_groups(history, waits)
    if mismatch is not None:
        return [mismatch]
    standing = _standing_links(history)
    links = [
        _link_stands(history, node, link, longest)
        for node, link in standing
        if not _may_pass(history, node, link)
    ]
    links = links or [*slow_links(history, pace, longest.age_s)]
    if links or standing:
        return links
    return _unexplained(history, waits, longest)


def _unexplained(history: RunHistory, waits: Mapping[int, Wait], longest: Wait) -> list[Cause]:
    """All ranks wait, and nothing is wrong with any host or link."""
    rate = _bytes_per_s(history)
    if rate >= _FLOWS and longest.age_s < _FLOWS_S:
        # They wait for bytes that come: a run's first steps may be long, on a slow network.
        return []
    nodes = tuple(dict.fromkeys(history.node_of(rank) for rank in sorted(behind(waits) or waits)))
    params = {"what": longest.what, "bytes_per_s": rate if rate >= _FLOWS else 0.0}
    return [Cause("cannot-tell", nodes, longest.age_s, "likely", params=params)]


def _ended_early(history: RunHistory, rank: int, longest: Wait) -> Cause | None:
    """A rank that ended well while others wait for it."""
    node = history.node_of(rank)
    last = history.hosts[node].last
    ended = next((one for one in last.ended if one.rank == rank), None) if last else None
    if ended is None or ended.exit_code != 0:
        # Its own failure is told by whoever saw it end.
        return None
    ended_s = ended.age_s + history.silent_s(node)
    if ended_s < _EARLY_S or _recorded_s(history, longest.rank) >= ended_s:
        # Ranks end within a moment, and what the other waited for may have come since.
        return None
    params = {"what": longest.what, "waiting": longest.rank}
    certainty = _sure(ended_s, _EARLY_SURE_S)
    return Cause("rank-ended-early", (node,), ended_s, certainty, rank=rank, params=params)


def _recorded_s(history: RunHistory, rank: int) -> float:
    """How old a rank's record of itself is; for ever: it has none."""
    node = history.node_of(rank)
    last = history.hosts[node].last
    recorded = (
        next((one.recorded for one in last.ranks if one.rank == rank), None) if last else None
    )
    return math.inf if recorded is None else recorded.age_s + history.silent_s(node)


def _stands(history: RunHistory, node: int, rank: RankVitals, longest: Wait) -> Cause | None:
    """A rank that others wait for, and that neither computes nor waits for them."""
    recorded = rank.recorded
    # Of what the kernel tells of a rank, such as D, there are rules above, with their own patience.
    if recorded is None or rank.state != "S" or _cores(history, node, rank) >= _IDLE_CORES:
        return None
    since_s = min(recorded.frames_age_s + recorded.age_s, history.stands_s(rank.rank))
    if since_s < _STOPPED_S:
        return None
    loads = activity_of(rank) == "loading data"
    params = {
        "what": longest.what,
        "waiting": longest.rank,
        "waits_in": rank.waits_in,
        "loads": loads,
        # The recorder is a thread of Python's.
        "native": recorded.age_s >= NATIVE_S,
        **_at(rank),
    }
    locked = rank.waits_in.startswith("futex") and not loads
    sleeps = rank.waits_in.startswith("hrtimer_nanosleep")
    sure_s = _LOCKED_SURE_S if locked else _SLEEPS_SURE_S if sleeps else _STANDS_SURE_S
    certainty = _sure(since_s, sure_s)
    if not recorded.steps:
        # Before its first step a program may fetch its data or its model for hours.
        certainty = "likely"
    return Cause("rank-stands", (node,), since_s, certainty, rank=rank.rank, params=params)


def _takes_long(history: RunHistory, node: int, rank: RankVitals, longest: Wait) -> Cause | None:
    """A rank that others wait for, and that has been about something for longer than ever."""
    seen = history.ranks[rank.rank]
    # Of one whose record is missing, what it was about before says nothing.
    if seen.doing not in PATIENT or seen.doing == "debugged":
        return None
    for_s = history.now_s - seen.since_s
    usual_s = seen.longest_s.get(seen.doing)
    limit_s = _FIRST_TIME_S if usual_s is None else max(_LONGER * usual_s, usual_s + _LONGER_S)
    if for_s < limit_s:
        return None
    params = {"doing": seen.doing, "usual_s": usual_s}
    return _late(node, rank, longest, for_s, params)


def _computes_on(history: RunHistory, node: int, rank: RankVitals, longest: Wait) -> Cause | None:
    """A rank that computes while the others have waited for many steps' time."""
    step_s = history.step_s
    if step_s is None or longest.age_s < max(_LONGER_S, _MANY_STEPS * step_s):
        return None
    # What is not known of it is no evidence.
    if rank.recorded is None or not _IDLE_CORES <= _cores(history, node, rank) < float("inf"):
        return None
    return _late(node, rank, longest, longest.age_s, {"doing": "computing", "usual_s": step_s})


def _late(
    node: int, rank: RankVitals, longest: Wait, since_s: float, params: Mapping[str, object]
) -> Cause:
    # Nobody but the program knows whether it comes to an end, so it is never sure.
    idle = rank.state == "S" and params["doing"] != "computing"
    waits_in = rank.waits_in if idle else ""
    more = {"what": longest.what, "waiting": longest.rank, "waits_in": waits_in, **_at(rank)}
    return Cause("rank-late", (node,), since_s, "likely", rank=rank.rank, params={**more, **params})


def _mismatch(history: RunHistory, waits: Mapping[int, Wait]) -> Cause | None:
    """Ranks that are in the same collective by its number, and not by its kind or sizes."""
    calls = {
        rank.rank: Calls(group.name, group.started, group.calls)
        for _, rank in history.alive()
        if rank.rank in waits and rank.recorded is not None
        for group in rank.recorded.groups or ()
        if group.calls
    }
    found = mismatch_of(calls)
    if found is None:
        return None
    rank = found.ranks[0]
    longest = max(wait.age_s for wait in waits.values())
    certainty = _sure(longest, _LOCKED_SURE_S) if len(calls) == len(history.ranks) else "likely"
    return Cause("collective-mismatch", (history.node_of(rank),), longest, certainty, rank=rank,
                 params={"ranks": list(found.ranks), "said": found.words})  # fmt: skip


def _in_other_groups(history: RunHistory, waits: Mapping[int, Wait]) -> Cause | None:
    """Ranks that wait in collectives of different process groups, each for the others."""
    known = {rank: wait for rank, wait in waits.items() if wait.group and wait.number}
    groups = {wait.group for wait in known.values()}
    if len(known) < len(history.ranks) or len(groups) < 2:
        return None
    # A group that is seldom used is the odd one: the other is that of every step.
    numbers = {group: max(w.number or 0 for w in known.values() if w.group == group)
               for group in groups}  # fmt: skip
    odd = min(groups, key=lambda group: (numbers[group], group))
    ranks = sorted(rank for rank, wait in known.items() if wait.group == odd)
    other = next(wait for _, wait in sorted(known.items()) if wait.group != odd)
    said = (
        f"it waits in {_nth(known[ranks[0]])}, and rank {other.rank} in {_nth(other)}: each waits "
        "for the other"
    )
    longest = max(wait.age_s for wait in waits.values())
    return Cause("collective-mismatch", (history.node_of(ranks[0]),), longest, "likely",
                 rank=ranks[0], params={"ranks": ranks, "said": said, "groups": True})  # fmt: skip


def _nth(wait: Wait) -> str:
    group = "the default group" if wait.group == _DEFAULT_GROUP else f"process group {wait.group}"
    return f"call {wait.number} of {group}, {wait.what}"


def _standing_links(history: RunHistory) -> list[tuple[int, LinkVitals]]:
    """Links on which the ranks' bytes are not acknowledged, though both hosts are heard: each once,
    as the first of its two hosts has it.
    """
    found: dict[frozenset[int], tuple[int, LinkVitals]] = {}
    for node, host in enumerate(history.hosts):
        for link in host.last.links if host.last else ():
            if unacknowledged(link):
                found.setdefault(frozenset((node, link.node)), (node, link))
    return list(found.values())


def _link_stands(history: RunHistory, node: int, link: LinkVitals, longest: Wait) -> Cause:
    source, target = _direction(history, node, link.node)
    since_s = max(link.acked_age_s, longest.age_s)
    return Cause(
        "link-stands",
        (source, target),
        since_s,
        _sure(since_s, _AWAY_SURE_S),
        link=(source, target),
        params={"unsent": link.unsent_bytes, "backoff": link.backoff,
                "one_way": (source, target) != (node, link.node) or
                _arrives(history, target, source)},
    )  # fmt: skip


def unacknowledged(link: LinkVitals) -> bool:
    """Whether what is sent there is sent again and again, without an answer."""
    return link.backoff >= _BACKOFF and link.unsent_bytes > 0


def _may_pass(history: RunHistory, node: int, link: LinkVitals) -> bool:
    """Whether a link that lost packets before may only have lost some more of them."""
    ends = ((node, link.node), (link.node, node))
    return link.backoff < _BACKOFF_OF_LOSSY and any(
        _lost_before(history, *end) >= LOST for end in ends
    )


def _lost_before(history: RunHistory, node: int, other: int) -> float:
    """Share of a host's packets to another that were sent again, until the last was acknowledged:
    what is sent again after that is of the stand itself.
    """
    host = history.hosts[node]
    now = _link(host.last, other)
    if now is None or host.heard_s is None:
        return 0.0
    until_s = host.heard_s - now.acked_age_s
    seen = [
        then
        for at_s, look in host.looks
        if until_s - _LOST_BEFORE_S <= at_s <= until_s and (then := _link(look, other)) is not None
    ]
    if not seen:
        return 0.0
    again = seen[-1].retransmitted - seen[0].retransmitted
    return again / max(_FEW_PACKETS, seen[-1].segments - seen[0].segments)


def _direction(history: RunHistory, one: int, other: int) -> tuple[int, int]:
    """The way on which packets are lost: what one end sends, and the other does not see."""
    if _arrives(history, one, other) and not _arrives(history, other, one):
        return one, other
    if _arrives(history, other, one) and not _arrives(history, one, other):
        return other, one
    return one, other


def _arrives(history: RunHistory, at: int, source: int) -> bool:
    """Whether packets of the ranks on `source` have come in lately."""
    host = history.hosts[at]
    before = host.before(history.now_s, _LOOK_BACK_S)
    now, then = _link(host.last, source), _link(before and before[1], source)
    return now is not None and then is not None and now.arrived > then.arrived


# ---- figures


def _bytes_per_s(history: RunHistory) -> float:
    """Bytes per second that ranks received lately, over the link that carried most."""
    rates = [0.0]
    for host in history.hosts:
        looks = host.since(history.now_s, _LOOK_BACK_S)
        for link in host.last.links if host.last else ():
            seen = [(at_s, then) for at_s, look in looks if (then := _link(look, link.node))]
            if seen and seen[-1][0] > seen[0][0]:
                grown = seen[-1][1].received_bytes - seen[0][1].received_bytes
                rates.append(grown / (seen[-1][0] - seen[0][0]))
    return max(rates)


def _sure(since_s: float, from_s: float) -> Certainty:
    """Certain once it has lasted so long: much that holds ranks up passes by itself."""
    return "sure" if since_s >= from_s else "likely"


def _cores(history: RunHistory, node: int, rank: RankVitals) -> float:
    """Cores that a rank used lately; many where too little is known."""
    host = history.hosts[node]
    before, heard_s = host.rank_before(rank, history.now_s, _LOOK_BACK_S), host.heard_s
    if before is None or heard_s is None or heard_s - before[0] < 0.5 * _LOOK_BACK_S:
        return float("inf")
    return (rank.cpu_s - before[1].cpu_s) / (heard_s - before[0])


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
