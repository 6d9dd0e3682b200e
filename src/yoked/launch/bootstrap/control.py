"""The word between the hosts of a run: each writes a notice, all read all notices.

The notices are keys of torch's own TCPStore, which node 0's host program serves; torchrun's
rendezvous and the ranks use the same server, so one port is all that must be open. A host that
stops renewing its notice is silent; when the connection to node 0 breaks, so is everybody.

Only the thread in here touches the store: a client must not be shared, and may block.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from yoked.errors import HostError
from yoked.launch.bootstrap.hearing import CONNECT_S, SILENCE_S
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.verdict import Decision, Failure, Stop

if TYPE_CHECKING:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

_PERIOD_S = 0.2
# Once a host has reported it has nothing left to do but to hear what was decided.
_HASTE_S = 0.05
_RETRY_S = 0.1
_KNOCK_S = 5.0


@dataclass(frozen=True)
class Notice:
    """What a host says of itself; it replaces what it said before.

    attempt: the one this host is in, or -1 before the first.
    failing: a rank of it has died in this attempt; the others end theirs.
    report: all its failures of this attempt, once it has no rank left.
    stop: what a person asked this host for.
    decision: node 0's, of the attempt before or of this one.
    leaving: this host has read what it needed.
    """

    attempt: int = -1
    failing: bool = False
    report: tuple[Failure, ...] | None = None
    stop: Stop | None = None
    decision: Decision | None = None
    leaving: bool = False

    def to_json(self, beat: int) -> str:
        """One line; beat: a number that grows, so that a reader sees that the host lives."""
        return json.dumps({**asdict(self), "beat": beat})

    @classmethod
    def from_json(cls, text: str | bytes) -> Notice:
        """The notice that `to_json` wrote."""
        content: dict[str, Any] = json.loads(text)
        report, decision = content["report"], content["decision"]
        return cls(
            attempt=content["attempt"],
            failing=content["failing"],
            report=None if report is None else tuple(Failure.from_dict(one) for one in report),
            stop=content["stop"],
            decision=None if decision is None else Decision.from_dict(decision),
            leaving=content["leaving"],
        )


class Control:
    """This host's seat at the store. `close` ends its thread.

    Connects in the background: until then there are no notices, and `trouble` tells if it cannot.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._changed = threading.Condition()
        self._own = Notice()
        self._said: Notice | None = None
        self._unsent = True
        self._closing = False
        self._connected = False
        self._notices: dict[int, Notice] = {}
        self._heard_s: dict[int, float] = {}
        self._trouble: HostError | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    @property
    def notices(self) -> dict[int, Notice]:
        """The last notice of each node that was heard, this one's own among them."""
        with self._changed:
            return {**self._notices, self._job.node_rank: self._own}

    @property
    def connected(self) -> bool:
        """Whether the store is there, for torchrun too."""
        with self._changed:
            return self._connected

    @property
    def trouble(self) -> HostError | None:
        """Why there is no word from anybody any more, or was none at all."""
        with self._changed:
            return self._trouble

    def silent_s(self, node: int) -> float | None:
        """Seconds since the notice of another node last changed; None if it never came."""
        with self._changed:
            heard_s = self._heard_s.get(node)
        return None if heard_s is None else time.monotonic() - heard_s

    def say(self, **changes: Any) -> None:
        """Change fields of this host's notice; the word leaves at once."""
        with self._changed:
            self._own = replace(self._own, **changes)
            self._unsent = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when something was heard, and at the latest after the time."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wait_until_said(self, timeout_s: float) -> None:
        """Return when what was said has left, and at the latest after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._said == self._own or self._trouble, timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Send what is unsent and end; a store that hangs is left behind."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        # Here, and not above: a run whose ranks meet by themselves says its notices without torch.
        from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined]

        try:
            store = connect(self._job)
            with self._changed:
                self._connected = True
                self._changed.notify_all()
            self._talk(store, PrefixStore(self._job.launch_id, store))
        except HostError as problem:
            self._give_up(problem)
        except (DistError, RuntimeError) as problem:
            self._give_up(_lost(self._job, problem))

    def _talk(self, everything: TCPStore, store: PrefixStore) -> None:
        beat = 0
        forgotten = -1
        raw: dict[int, bytes] = {}
        while True:
            with self._changed:
                own, closing = self._own, self._closing
                self._unsent = False
            if own.decision and own.decision.again and own.decision.attempt > forgotten:
                forgotten = own.decision.attempt
                _forget_ranks(everything, self._job)
            beat += 1
            store.set(_key(self._job.node_rank), own.to_json(beat))
            with self._changed:
                self._said = own
                self._changed.notify_all()
            for node, text in _read(store, self._job, raw).items():
                if raw.get(node) != text:
                    raw[node] = text
                    self._hear(node, Notice.from_json(text))
            with self._changed:
                if closing:
                    return
                period_s = _PERIOD_S if own.report is None else _HASTE_S
                self._changed.wait_for(lambda: self._unsent or self._closing, period_s)

    def _hear(self, node: int, notice: Notice) -> None:
        with self._changed:
            self._heard_s[node] = time.monotonic()
            if self._notices.get(node) != notice:
                self._notices[node] = notice
                self._changed.notify_all()

    def _give_up(self, problem: HostError) -> None:
        with self._changed:
            self._trouble = problem
            self._changed.notify_all()


def connect(job: Job) -> TCPStore:
    """A client of the run's store; node 0 serves it too, on its own address alone.

    The server ends with the last client in this process. TCPStore itself would listen on every
    interface, so it is handed a socket: the one in `control_fd`, or a new one.
    Raises HostError when the store cannot be reached within CONNECT_S.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    serves = job.node_rank == 0
    address, port = job.nodes[0].address, job.control_port
    descriptor = _listening(job) if serves else None
    if not serves:
        _await_port(job)
    return TCPStore(
        address,
        port,
        None,
        serves,
        # Of the connection, and then of every request.
        timedelta(seconds=SILENCE_S),
        wait_for_workers=False,
        # torchrun's rendezvous in this process shares the server.
        multi_tenant=True,
        master_listen_fd=descriptor,
    )


def _listening(job: Job) -> int:
    if job.control_fd is not None:
        return job.control_fd
    address, port = job.nodes[0].address, job.control_port
    listener = socket.socket(_family(address))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError as problem:
        listener.close()
        raise HostError(
            f"{job.node.host} cannot listen on {address} port {port}: {problem.strerror}.",
            fix=(
                "`Address already in use`: start the run again; it takes another port",
                f"`Cannot assign requested address`: yoked init finds {job.node.host}'s new one",
            ),
        ) from problem
    return listener.detach()


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]


def _await_port(job: Job) -> None:
    """Wait until node 0 listens: it may start later than this host.

    torch's own client waits as well, but does not tell a refusal from silence.
    """
    address, port = job.nodes[0].address, job.control_port
    deadline_s = time.monotonic() + CONNECT_S
    reason = "no answer"
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), min(left_s, _KNOCK_S)).close()
        except TimeoutError:
            reason = "no answer"
        except OSError as problem:
            reason = problem.strerror or str(problem)
        else:
            return
        time.sleep(_RETRY_S)
    raise HostError(
        f"{job.node.host} did not reach {job.nodes[0].host} at {address} port {port} within "
        f"{CONNECT_S:.0f} s: {reason}.",
        fix=(
            f"`Connection refused`: logs/launcher.err on {job.nodes[0].host} says why",
            f"`no answer`: a firewall on {job.nodes[0].host} is the usual cause: yoked doctor",
            f"`No route to host`: {job.node.host} is not on the network of {address}",
        ),
    )


def _lost(job: Job, problem: Exception) -> HostError:
    first_line = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
    return HostError(
        f"the connection to the launcher on {job.nodes[0].host} was lost: {first_line}",
        fix=f"look at {job.nodes[0].host}: it was switched off or cut off, or its launcher killed",
    )


def _forget_ranks(store: TCPStore, job: Job) -> None:
    """Remove what the ranks of an attempt have left in the store; none of them runs any more.

    Gloo writes there where its ranks listen, under the same keys in every attempt: a rank of the
    next one would dial the dead, if it came before its peer.
    """
    for key in store.list_keys():
        if not key.startswith(f"{job.launch_id}/"):
            store.delete_key(key)


def _key(node: int) -> str:
    return f"notice/{node}"


def _read(store: PrefixStore, job: Job, known: dict[int, bytes]) -> dict[int, bytes]:
    """The notices of the other nodes that have written one; asking for others would block."""
    others = [node for node in range(len(job.nodes)) if node != job.node_rank]
    there = [node for node in others if node in known or store.check([_key(node)])]
    if not there:
        return {}
    return dict(zip(there, store.multi_get([_key(node) for node in there]), strict=True))
