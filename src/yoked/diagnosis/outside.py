"""Why a program of torch.distributed stands that yoked did not start: what one machine tells of it.

The rules are those of a run (rules.py). They know less here: no recorder tells where a rank is, and
nobody tells of the other machines. Pure: what was seen in, causes and sentences out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from yoked.diagnosis.cause import Cause, Certainty, Code
from yoked.diagnosis.history import RunHistory
from yoked.diagnosis.rules import causes, unacknowledged
from yoked.diagnosis.vitals import LinkVitals, RankVitals
from yoked.diagnosis.words import Words, waits_for
from yoked.text import one_line
from yoked.units import format_bytes, format_bytes_per_s, format_duration, plural

# Less is a thread that looks round now and then; more bytes are more than a heartbeat of the store.
BUSY_CORES = 0.05
BUSY_BYTES_PER_S = 50_000.0
# So long without an acknowledgement no Wi-Fi takes to change its cell.
_SURE_S = 4.0
# Data that came a moment ago are no sign of a peer that stands.
_QUIET_S = 1.0


@dataclass(frozen=True)
class Peer:
    """What a process holds of connections to one address. bytes_per_s: both ways, lately.

    window_shut: the other end takes what is sent, and its program does not read it. connecting: it
    has not answered yet.
    """

    address: str
    link: LinkVitals
    bytes_per_s: float = 0.0
    window_shut: bool = False
    connecting: bool = False


@dataclass(frozen=True)
class Process:
    """A process of the program. rank, world_size: as torchrun's variables say; None: they do not.

    meets_at: MASTER_ADDR and MASTER_PORT, or empty. worker: it works for a rank: it loads data, or
    compiles. launches: it started the ranks. vitals: its `rank` is its place in the history.
    """

    command: str
    rank: int | None
    world_size: int | None
    meets_at: str
    worker: bool
    vitals: RankVitals
    cores: float
    resident_bytes: int
    peers: tuple[Peer, ...] = ()
    launches: bool = False

    @property
    def busy(self) -> bool:
        """Whether it gets on, as far as the kernel tells."""
        moved = max((peer.bytes_per_s for peer in self.peers), default=0.0)
        return self.cores >= BUSY_CORES or moved >= BUSY_BYTES_PER_S

    @property
    def name(self) -> str:
        """As people are told of it."""
        if self.launches:
            return f"process {self.vitals.pid}, which started the ranks"
        if self.worker:
            return f"process {self.vitals.pid}, a worker of rank {self.rank}"
        if self.rank is None:
            return f"process {self.vitals.pid}"
        return f"rank {self.rank} (process {self.vitals.pid})"


@dataclass(frozen=True)
class Outside:
    """A program as it was seen for a moment. history: of one host, this one, with all processes.

    own_network: it is in a container that has one. run: that of yoked's that it is of, if any.
    """

    host: str
    processes: tuple[Process, ...]
    history: RunHistory
    own_network: bool = False
    run: str | None = None

    @property
    def ranks(self) -> list[Process]:
        """The processes that compute and wait for each other."""
        return [one for one in self.processes if not one.worker]


def causes_outside(seen: Outside) -> list[Cause]:
    """What holds the program up, the root first; empty: nothing that this machine can see."""
    if found := causes(seen.history) or list(_standing_links(seen)):
        return found
    if any(one.busy for one in seen.processes):
        return []
    if found := list(_standing_ranks(seen)):
        return found
    quiet_s = [
        peer.link.heard_age_s for one in seen.ranks for peer in one.peers if not peer.connecting
    ]
    return [Cause("cannot-tell", (0,), min(quiet_s, default=0.0), "likely")]


def _standing_links(seen: Outside) -> Iterator[Cause]:
    """Addresses that do not acknowledge what is sent there; each once."""
    told = set[str]()
    for one in seen.ranks:
        for peer in one.peers:
            # One that computes may ask a server that is no rank.
            elsewhere = peer.connecting and one.busy
            if peer.address in told or elsewhere or not unacknowledged(peer.link):
                continue
            told.add(peer.address)
            # Of one that never answered the kernel does not say since when it is asked.
            since_s = 0.0 if peer.connecting else peer.link.acked_age_s
            sure: Certainty = "sure" if since_s >= _SURE_S else "likely"
            params = {
                "peer": peer.address,
                "unsent": peer.link.unsent_bytes,
                "connecting": peer.connecting,
            }
            yield Cause("link-stands", (0,), since_s, sure, one.vitals.rank, params=params)


def _standing_ranks(seen: Outside) -> Iterator[Cause]:
    """Ranks that wait for something else than another rank, while some wait for them."""
    standing = [one for one in seen.ranks if _waits_elsewhere(one, seen.history)]
    if len(standing) < len(seen.ranks):
        for one in standing:
            since_s = min((peer.link.heard_age_s for peer in one.peers), default=0.0)
            yield Cause("rank-stands", (0,), since_s, "likely", one.vitals.rank)


def _waits_elsewhere(one: Process, history: RunHistory) -> bool:
    looks = [
        rank
        for _, vitals in history.hosts[0].looks
        for rank in vitals.ranks
        if rank.rank == one.vitals.rank
    ]
    # Of one that has ended meanwhile nothing holds any more.
    return one.vitals.state == "S" and all(
        look.state == "S" and _reason(look) and not _at_peer(look) for look in looks
    )


def _reason(vitals: RankVitals) -> str:
    """For what a process waits; empty: that is not known. Gloo's callers wait at a lock too."""
    return "" if vitals.waits_in.startswith("futex") else waits_for(vitals.waits_in)


def _at_peer(vitals: RankVitals) -> bool:
    return "connect" in _reason(vitals)


def words_outside(cause: Cause, seen: Outside) -> Words:
    """What is said of a cause. A run's words would tell of hosts and lines that are not known."""
    return _WORDS[cause.code](cause, seen)


def process_of(cause: Cause, seen: Outside) -> Process | None:
    """The process that a cause is about; None: all of them."""
    return None if cause.rank is None else seen.processes[cause.rank]


def _stopped(cause: Cause, seen: Outside) -> Words:
    pid = seen.processes[cause.rank or 0].vitals.pid
    return Words(
        "it is stopped (SIGSTOP, or Ctrl-Z), and all that wait for it wait",
        (f"kill -CONT {pid}",),
    )


def _on_disk(cause: Cause, seen: Outside) -> Words:
    waits_in = seen.processes[cause.rank or 0].vitals.waits_in
    what = (
        "it waits in the kernel (state D) for a disk or a network mount"
        f"{f', in {one_line(waits_in)}' if waits_in else ''}, and uses no CPU"
    )
    return Words(what, ("df -h; dmesg    which mount does not answer?",))


def _link(cause: Cause, seen: Outside) -> Words:
    del seen
    peer = one_line(str(cause.params["peer"]))
    if cause.params["connecting"]:
        what = (
            f"it connects to {peer}, which does not answer: a firewall there drops it, or it is off"
        )
    else:
        what = (
            f"{peer} has acknowledged nothing for {format_duration(cause.since_s)}, and "
            f"{cause.params['unsent']:,} bytes are sent again and again: it is off or asleep, or "
            "a firewall or a cut link is between"
        )
    return Words(what, (f"ping -c 3 {peer}    an answer leaves a firewall as the cause",))


def _stands(cause: Cause, seen: Outside) -> Words:
    reason = _reason(seen.processes[cause.rank or 0].vitals)
    return Words(f"it waits {reason} and uses no CPU, and the other ranks wait", ())


def _cannot_tell(cause: Cause, seen: Outside) -> Words:
    del cause
    quiet = [
        (peer.link.heard_age_s, one, peer)
        for one in seen.ranks
        for peer in one.peers
        if not peer.window_shut and not peer.connecting
    ]
    shut = [(one, peer) for one in seen.ranks for peer in one.peers if peer.window_shut]
    if shut:
        one, peer = shut[0]
        what = (
            f"{one.name} waits in a connection for peer {peer.address}, which has no room left: "
            "the program there does not read"
        )
        return Words(what, (f"look at {peer.address}: its process is stopped, or stands",))
    if quiet:
        silent_s, one, peer = max(quiet, key=lambda each: each[0])
        what = (
            f"all wait; {one.name} waits in a connection for peer {peer.address}, of which nothing "
            f"came for {format_duration(silent_s)}, and which acknowledges"
        )
        if ip_address(peer.address).is_loopback:
            return Words(what, ())
        return Words(what, (f"look at {peer.address} in the same way: yoked diagnose --pid PID",))
    return Words("it uses no CPU, and has no connection to another rank", ())


_WORDS: Mapping[Code, Callable[[Cause, Outside], Words]] = {
    "rank-stopped": _stopped,
    "rank-stands": _stands,
    "disk-stands": _on_disk,
    "link-stands": _link,
    "cannot-tell": _cannot_tell,
}


# ---- what was seen


def evidence(seen: Outside) -> Iterator[str]:
    """Each rank and its connections, a line each; of workers what is not as it should be."""
    if seen.own_network:
        yield "it has a network of its own, as in a container: its connections are not seen here"
    for one in seen.ranks:
        workers = [other for other in seen.processes if other.worker and other.rank == one.rank]
        yield _of_rank(one, len(workers))
        for peer in one.peers:
            yield f"  {_of_peer(peer)}"
        if one.meets_at and not one.peers and not seen.own_network:
            yield f"  it has no connection; ranks meet at {one_line(one.meets_at)}"
        yield from (
            f"  {worker.name}: {_state(worker.vitals)}"
            for worker in workers
            if worker.vitals.state not in ("R", "S")
        )


def _of_rank(one: Process, workers: int) -> str:
    of = f" of {one.world_size}" if one.rank is not None and one.world_size is not None else ""
    name = one.name.replace(" (", f"{of} (", 1)
    said = [
        _state(one.vitals),
        f"{one.cores:.2f} cores",
        format_bytes(one.resident_bytes),
    ]
    if workers:
        said.append(plural(workers, "worker"))
    return f"{name}: {', '.join(said)}"


def _state(vitals: RankVitals) -> str:
    means = {
        "R": "runs",
        "S": "waits",
        "D": "waits for a disk",
        "T": "is stopped",
        "t": "is traced",
    }
    said = f"{means.get(vitals.state, 'is')} (state {vitals.state}"
    if not vitals.waits_in:
        return f"{said})"
    reason = _reason(vitals) if vitals.state == "S" else ""
    return f"{said}, {one_line(vitals.waits_in)}{f': {reason}' if reason else ''})"


def _of_peer(peer: Peer) -> str:
    link = peer.link
    said = [f"{peer.address}: {plural(link.connections, 'connection')}"]
    if peer.connecting:
        return f"{said[0]} wait for its first answer"
    if peer.bytes_per_s >= BUSY_BYTES_PER_S:
        said.append(f"{format_bytes_per_s(peer.bytes_per_s)} pass")
    elif link.heard_age_s >= _QUIET_S:
        said.append(f"nothing came for {format_duration(link.heard_age_s)}")
    if link.unread_bytes:
        said.append(f"{link.unread_bytes:,} bytes wait to be read here")
    if link.unsent_bytes and peer.window_shut:
        said.append(f"{link.unsent_bytes:,} bytes wait until the program there reads")
    elif unacknowledged(link):
        said.append(
            f"{link.unsent_bytes:,} bytes not acknowledged for {format_duration(link.acked_age_s)}"
        )
    return ", ".join(said)
