"""What a training step takes on several hosts: each rank's work and every message, on one clock.

A step of a rank, as `yoked.train.trainer` and `yoked.train.sync` have it:

    forward | lm_head      | layers backward | AdamW of   | Muon (own)      | AdamW | forward
    rows ->   head pieces ->  matrices ->  rows -> idle rows  own matrices ->  of the rest

The messages of a step queue for the wire in that order. A message travels when every rank has
made its part, at the rate of the busiest port, both directions at once. While it travels, the
ranks that move it compute slower by what copying and summing cost their cores. A step counts
in the steady state: the new matrices of one arrive while the next begins.

Pure: numbers in, numbers out. Seconds, bytes, bytes a second; *numbers* are parameters.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Bytes of a number on the wire by `--sync`: of dense gradients and updates, with the scales of
# their blocks, and of rows of embedding tables.
DENSE_BYTES = {"exact": 4.0, "bf16": 2.0, "int8": 1.0 + 4 / 256, "int4": 0.5 + 2 / 64}
ROW_BYTES = {"exact": 4.0, "bf16": 2.0, "int8": 2.0, "int4": 2.0}

# What a core pays for a byte that it sends or receives, Gloo and kernel together: getrusage of two
# ranks on loopback, 1 to 32 MB messages, torch 2.13, AMD Zen 5: 0.38 to 0.63 ns a byte.
GLOO_CPU_S_PER_BYTE = 0.5e-9
# However fast the wire, computing goes on at this part of its speed.
LEAST_SPEED = 0.1
# Two of the lm_head's three products come before the first block of its gradient is complete.
HEAD_BEFORE_FIRST_PIECE = 2 / 3
STEADY_AFTER_STEPS = 2
# Below the resolution of what it is computed from.
ROUNDING_S = 1e-12


@dataclass(frozen=True)
class Port:
    """What a host's connection to the others carries, each way while the other is in use too."""

    out_bytes_per_s: float
    in_bytes_per_s: float


@dataclass(frozen=True)
class Network:
    """Ports by host; latency_s: from the moment a message is ready everywhere to its first byte.

    local_bytes_per_s: between ranks of one host.
    """

    ports: dict[str, Port]
    latency_s: float
    local_bytes_per_s: float = 5e9


@dataclass(frozen=True)
class RankWork:
    """One rank's step. before_s: every micro-batch but the last one, whole; forward_s, head_s,
    backward_s: the last one, 0 without rows.

    idle_rows_s: AdamW of table rows that no rank used, which waits for no gradient. muon_s: of the
    matrices that it owns, the part `owned` of all. adamw_s: of the rest. table_rows: rows of the
    tables that the last micro-batch's tokens touch; early_rows: those of all before. encode_s,
    decode_s: a number's way into its payload dtype and back. cpu_s_per_byte: what a byte sent or
    received costs its cores, divided by its threads.
    """

    host: str
    before_s: float
    forward_s: float
    head_s: float
    backward_s: float
    muon_s: float
    adamw_s: float
    owned: float
    table_rows: float
    early_rows: float = 0.0
    idle_rows_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    cpu_s_per_byte: float = 0.0

    @property
    def alone_s(self) -> float:
        """The step without anything to exchange."""
        gradients_s = self.before_s + self.forward_s + self.head_s + self.backward_s
        return gradients_s + self.idle_rows_s + self.muon_s + self.adamw_s


@dataclass(frozen=True)
class Traffic:
    """What one step exchanges. table_width: numbers of one row in all tables together.

    layers: groups in which the matrices' gradients leave; head_pieces, stacks: messages that the
    lm_head's gradient and the new matrices are parted into.
    """

    head_numbers: float
    matrix_numbers: float
    table_width: float
    layers: int
    dense_bytes: float = 4.0
    row_bytes: float = 4.0
    head_pieces: int = 8
    stacks: int = 4


@dataclass(frozen=True)
class HostStep:
    """A host in one step; compute_s + exposed_comm_s + wait_s is the step.

    exposed_comm_s: its slowest rank stood still while bytes travelled. wait_s: while a slower rank
    computed. sent_bytes: through its port.
    """

    compute_s: float
    exposed_comm_s: float
    wait_s: float
    sent_bytes: float


@dataclass(frozen=True)
class StepForecast:
    """A step of the whole fleet. comm_s: while at least one message was on its way."""

    step_s: float
    comm_s: float
    hosts: dict[str, HostStep]

    @property
    def compute_s(self) -> float:
        """Of the host that computes longest."""
        return max(host.compute_s for host in self.hosts.values())

    @property
    def exposed_comm_s(self) -> float:
        """Of the host that stands still longest for bytes."""
        return max(host.exposed_comm_s for host in self.hosts.values())

    @property
    def hidden_comm_s(self) -> float:
        """Of comm_s, what went on behind the computation of every host."""
        return max(0.0, self.comm_s - self.exposed_comm_s)

    @property
    def sent_bytes(self) -> float:
        """By the host that sends most."""
        return max(host.sent_bytes for host in self.hosts.values())


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """What each rank of a ring all-reduce sends: 2(N-1)/N of the payload (Thakur et al. 2005)."""
    return 2 * (ranks - 1) / ranks * payload_bytes


def predict_step(works: Sequence[RankWork], traffic: Traffic, network: Network) -> StepForecast:
    """The steady state of training with these ranks; each of several hosts needs a port."""
    assert works, "no rank"
    if len(works) == 1:
        alone_s = works[0].alone_s
        return StepForecast(alone_s, 0.0, {works[0].host: HostStep(alone_s, 0.0, 0.0, 0.0)})
    mail = _Mail(works, network)
    first = _messages(mail, traffic)
    steps = [first, *(first.again() for _ in range(STEADY_AFTER_STEPS))]
    run = _Run(mail, traffic, steps, network.latency_s)
    run.play()
    step_s = max(kind.step_s for kind in run.kinds)
    hosts: dict[str, HostStep] = {}
    for host, kinds in mail.hosts.items():
        # The rank of a host that computes longest speaks for it.
        slowest = max((run.kinds[number] for number in kinds), key=lambda kind: kind.compute_s)
        wait_s = slowest.wait_s + step_s - slowest.step_s
        sent = sum(passage.through.get(host, 0.0) for passage in steps[-1].in_order)
        hosts[host] = HostStep(slowest.compute_s, slowest.exposed_s, wait_s, sent)
    return StepForecast(step_s, run.comm_s(), hosts)


# --- messages


@dataclass
class _Passage:
    """A message in one step. moved: bytes that a rank of each kind sends and receives; through:
    bytes that leave each host; missing: kinds of ranks that have not made their part.
    """

    wire_s: float
    moved: tuple[float, ...]
    through: dict[str, float]
    missing: int
    left_s: float
    ready: float = math.inf
    end: float = math.inf


class _Mail:
    """Ranks by kind, so that those which are alike are followed once, and who sits where."""

    def __init__(self, works: Sequence[RankWork], network: Network) -> None:
        self.network, self.total = network, len(works)
        neighbours = Counter(work.host for work in works)
        numbers: dict[object, int] = {}
        self.works: list[RankWork] = []
        self.counts: list[int] = []
        self.hosts: dict[str, Counter[int]] = {}
        for work in works:
            anywhere = dataclasses.replace(work, host="")
            alike = (anywhere, network.ports.get(work.host), neighbours[work.host])
            number = numbers.setdefault(alike, len(numbers))
            if number == len(self.works):
                self.works.append(work)
                self.counts.append(0)
            self.counts[number] += 1
            self.hosts.setdefault(work.host, Counter())[number] += 1

    def ring(self, payload_bytes: float) -> _Passage:
        """An all-reduce. Ranks of a host are neighbours: one of them sends through its port."""
        part = ring_bytes(payload_bytes, self.total)
        everywhere = dict.fromkeys(self.hosts, part if len(self.hosts) > 1 else 0.0)
        each = [part] * len(self.works)
        return self._passage(each, each, everywhere, everywhere)

    def direct(self, sent: list[float], received: list[float]) -> _Passage:
        """From rank to rank, by kind; what goes to ranks of the same host does not leave it."""
        return self._passage(sent, received, self._away(sent), self._away(received))

    def _away(self, bytes_by_kind: list[float]) -> dict[str, float]:
        away = {}
        for host, kinds in self.hosts.items():
            here = sum(kinds.values())
            part = (self.total - here) / max(self.total - 1, 1)
            away[host] = part * sum(n * bytes_by_kind[kind] for kind, n in kinds.items())
        return away

    def _passage(
        self,
        sent: list[float],
        received: list[float],
        leaving: dict[str, float],
        coming: dict[str, float],
    ) -> _Passage:
        moved = tuple(a + b for a, b in zip(sent, received, strict=True))
        wire_s = max(moved) / self.network.local_bytes_per_s
        if len(self.hosts) > 1:
            ports = self.network.ports
            wire_s = max(
                max(
                    leaving[host] / ports[host].out_bytes_per_s,
                    coming[host] / ports[host].in_bytes_per_s,
                )
                for host in self.hosts
            )
        return _Passage(wire_s, moved, leaving, len(self.works), wire_s)


class _StepMail:
    """The messages of one step, in the order in which they queue for the wire."""

    def __init__(self, traffic: Traffic, in_order: list[_Passage], *, early: bool) -> None:
        self.traffic, self.in_order = traffic, in_order
        self.early = in_order[0] if early else None
        rest = in_order[1:] if early else in_order
        pieces, gradients = traffic.head_pieces, traffic.head_pieces + traffic.layers
        self.head, self.layers = rest[:pieces], rest[pieces:gradients]
        self.rows, self.updates = rest[gradients], rest[gradients + 1 :]

    def again(self) -> _StepMail:
        """The same messages, to be sent in another step."""
        fresh = [dataclasses.replace(passage) for passage in self.in_order]
        return _StepMail(self.traffic, fresh, early=self.early is not None)


def _messages(mail: _Mail, traffic: Traffic) -> _StepMail:
    """What all ranks exchange in a step."""
    others, dense = mail.total - 1, traffic.dense_bytes
    layer = traffic.matrix_numbers / traffic.layers * dense
    stack = traffic.matrix_numbers / traffic.stacks * dense
    row = traffic.table_width * traffic.row_bytes
    owned = [work.owned for work in mail.works]
    piece = mail.ring(traffic.head_numbers / traffic.head_pieces * dense)
    gradients = mail.direct(
        [(1 - part) * layer for part in owned], [others * part * layer for part in owned]
    )
    rows = _rows(mail, [row * work.table_rows for work in mail.works])
    new = mail.direct(
        [others * part * stack for part in owned], [(1 - part) * stack for part in owned]
    )
    pieces = [piece] * traffic.head_pieces
    every = [*pieces, *[gradients] * traffic.layers, rows, *[new] * traffic.stacks]
    early = [row * work.early_rows for work in mail.works]
    if any(early):
        every.insert(0, _rows(mail, early))
    return _StepMail(traffic, every, early=any(early)).again()


def _rows(mail: _Mail, own: list[float]) -> _Passage:
    """Every rank's rows to all others. own: bytes, by kind of rank."""
    every = sum(count * each for count, each in zip(mail.counts, own, strict=True))
    return mail.direct([(mail.total - 1) * each for each in own], [every - each for each in own])


# --- the clock


@dataclass(frozen=True)
class _Act:
    """Compute for `seconds`, then hand over `send`, or wait for `wait`; begins: a step does."""

    seconds: float = 0.0
    send: _Passage | None = None
    wait: tuple[_Passage, ...] = ()
    begins: bool = False


@dataclass
class _Kind:
    """Ranks that are alike, where they are, and what their last whole step was."""

    acts: Iterator[_Act]
    drag_s_per_byte: float
    left_s: float = 0.0
    then: _Act | None = None
    blocked_since: float = 0.0
    finished: bool = False
    began: float = 0.0
    step_s: float = 0.0
    wait_s: float = 0.0
    exposed_s: float = 0.0

    @property
    def compute_s(self) -> float:
        return self.step_s - self.wait_s - self.exposed_s

    def begin(self, now: float) -> None:
        """A step begins: what came before it was on the way to the steady state."""
        self.began, self.wait_s, self.exposed_s = now, 0.0, 0.0

    def finish(self, now: float) -> None:
        """The last step is done."""
        self.finished, self.step_s = True, now - self.began

    def unblock(self, now: float) -> None:
        """All that it waited for has come."""
        assert self.then is not None
        ready = max(passage.ready for passage in self.then.wait)
        self.wait_s += max(0.0, ready - self.blocked_since)
        self.exposed_s += now - max(self.blocked_since, ready)
        self.then = None


class _Program:
    """What a rank of one kind does, step after step. total: ranks of the fleet."""

    def __init__(self, work: RankWork, traffic: Traffic, total: int) -> None:
        self.work, self.traffic, self.total = work, traffic, total

    def acts(self, steps: Sequence[_StepMail]) -> Iterator[_Act]:
        """All steps in order."""
        arriving: list[_Passage] = []
        for mail in steps:
            yield _Act(begins=True)
            yield _Act(wait=tuple(arriving))
            yield _Act(self.work.decode_s * self.traffic.matrix_numbers if arriving else 0.0)
            yield from self._gradients(mail)
            yield from self._optimizer(mail)
            arriving = mail.updates

    def _gradients(self, mail: _StepMail) -> Iterator[_Act]:
        work, traffic = self.work, self.traffic
        yield _Act(work.before_s, send=mail.early)
        yield _Act(work.forward_s + work.head_s * HEAD_BEFORE_FIRST_PIECE)
        piece_s = work.head_s * (1 - HEAD_BEFORE_FIRST_PIECE) + work.encode_s * traffic.head_numbers
        for passage in mail.head:
            yield _Act(piece_s / len(mail.head), send=passage)
        foreign = (1 - work.owned) * traffic.matrix_numbers
        layers_s = work.backward_s + work.encode_s * foreign
        for passage in mail.layers:
            yield _Act(layers_s / len(mail.layers), send=passage)
        yield _Act(send=mail.rows)
        yield _Act(work.idle_rows_s)

    def _optimizer(self, mail: _StepMail) -> Iterator[_Act]:
        work, traffic = self.work, self.traffic
        own = work.owned * traffic.matrix_numbers
        if own:
            yield _Act(wait=tuple(mail.layers))
            yield _Act(work.decode_s * own * (self.total - 1))
        stacks_s = work.muon_s + work.encode_s * own
        for passage in mail.updates:
            yield _Act(stacks_s / len(mail.updates), send=passage)
        yield _Act(wait=(*mail.head, mail.rows))
        # Its own piece is decoded too, so that all ranks add the same bytes.
        yield _Act(2 * work.decode_s * traffic.head_numbers + work.adamw_s)


class _Run:
    """Plays all kinds of ranks and the wire against each other."""

    def __init__(
        self, mail: _Mail, traffic: Traffic, steps: Sequence[_StepMail], latency_s: float
    ) -> None:
        self.now, self.latency_s = 0.0, latency_s
        self.kinds = [
            _Kind(_Program(work, traffic, mail.total).acts(steps), work.cpu_s_per_byte)
            for work in mail.works
        ]
        self.queue = [passage for step in steps for passage in step.in_order]
        self.front = 0

    def play(self) -> None:
        """Until every rank has done every step."""
        for kind in self.kinds:
            self._go_on(kind)
        while not all(kind.finished for kind in self.kinds):
            self._pass_time()

    def comm_s(self) -> float:
        """While messages were on their way in the last step, of the rank that saw most of it."""
        return max(self._on_the_way(kind.began, kind.began + kind.step_s) for kind in self.kinds)

    def _on_the_way(self, start: float, end: float) -> float:
        total, reached = 0.0, start
        for passage in self.queue:
            begins, ends = max(passage.ready, reached), min(passage.end, end)
            if ends > begins:
                total, reached = total + ends - begins, ends
        return total

    def _travelling(self) -> _Passage | None:
        """The message that is on the wire now."""
        if self.front == len(self.queue):
            return None
        passage = self.queue[self.front]
        return passage if self.now >= passage.ready + self.latency_s else None

    def _pass_time(self) -> None:
        """To the next moment at which something begins or ends."""
        passage = self._travelling()
        speeds = [self._speed(number, passage) for number in range(len(self.kinds))]
        moments = [
            kind.left_s / speed
            for kind, speed in zip(self.kinds, speeds, strict=True)
            if not self._idle(kind)
        ]
        if passage is not None:
            moments.append(passage.left_s)
        elif self.front < len(self.queue):
            moments.append(self.queue[self.front].ready + self.latency_s - self.now)
        passed = min(moments)
        assert passed < math.inf, "every rank waits for another"
        # A message that is due at once may lie a rounding error in the future.
        self.now = self.now + passed if passed > 0 else math.nextafter(self.now, math.inf)
        for kind, speed in zip(self.kinds, speeds, strict=True):
            self._compute(kind, passed * speed)
        if passage is not None:
            self._carry(passage, passed)

    def _speed(self, number: int, passage: _Passage | None) -> float:
        if passage is None or passage.wire_s == 0:
            return 1.0
        drag = self.kinds[number].drag_s_per_byte * passage.moved[number] / passage.wire_s
        return max(LEAST_SPEED, 1 - drag)

    @staticmethod
    def _idle(kind: _Kind) -> bool:
        return kind.finished or (kind.then is not None and bool(kind.then.wait))

    def _carry(self, passage: _Passage, passed: float) -> None:
        passage.left_s -= passed
        if passage.left_s > ROUNDING_S:
            return
        passage.end = self.now
        self.front += 1
        for kind in self.kinds:
            waits = kind.then.wait if kind.then is not None else ()
            if waits and all(each.end <= self.now for each in waits):
                kind.unblock(self.now)
                self._go_on(kind)

    def _compute(self, kind: _Kind, done_s: float) -> None:
        if self._idle(kind):
            return
        kind.left_s -= done_s
        if kind.left_s <= ROUNDING_S:
            self._go_on(kind)

    def _go_on(self, kind: _Kind) -> None:
        """What it computed is done: hand it over, and begin what comes next."""
        while True:
            if kind.then is not None and kind.then.send is not None:
                self._hand_over(kind.then.send)
            kind.then = next(kind.acts, None)
            if kind.then is None:
                kind.finish(self.now)
                return
            if kind.then.begins:
                kind.begin(self.now)
            kind.left_s, kind.blocked_since = kind.then.seconds, self.now
            # A wait for what has come, and work that is none, take no time.
            if kind.left_s > 0 or any(each.end > self.now for each in kind.then.wait):
                return

    def _hand_over(self, passage: _Passage) -> None:
        passage.missing -= 1
        if passage.missing == 0:
            passage.ready = self.now
