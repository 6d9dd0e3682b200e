"""A discrete-event simulation of training steps: ranks that compute, and what they send."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from yoked.costmodel.messages import Message, RankClasses, Send, StepMessages, step_messages
from yoked.costmodel.work import HostStep, Network, RankWork, StepForecast, StepTraffic

# A rank computes at least at this fraction of its speed, however fast messages arrive.
MIN_SPEED = 0.1
# The lm_head's gradient is the last of its three products: its first chunk is ready after two.
HEAD_BEFORE_FIRST_CHUNK = 2 / 3
# Steps before the one that counts: in the first, no new matrices of an earlier step arrive.
STEADY_AFTER_STEPS = 2
# Smaller differences are rounding errors.
ROUNDING_S = 1e-12
# What a rank computes in a step. PASSES: forward, lm_head and backward of several micro-batches.
PASSES, FORWARD, LM_HEAD, BACKWARD = "micro-batches", "forward", "lm_head", "backward"
MUON, ADAMW, CODEC = "Muon", "AdamW", "encode, decode"


def simulate_step(
    works: Sequence[RankWork], traffic: StepTraffic, network: Network
) -> StepForecast:
    """A step in the steady state of training. If there are several hosts, each needs a port."""
    assert works, "no rank"
    if len(works) == 1:
        alone_s = works[0].alone_s
        return StepForecast(alone_s, 0.0, {works[0].host: HostStep(alone_s, 0.0, 0.0, 0.0)})
    simulation = _simulated(works, traffic, network)
    step_s = max(rank_class.step_s for rank_class in simulation.classes)
    hosts: dict[str, HostStep] = {}
    for host, classes in simulation.hosts.items():
        # A host's figures are those of its rank that computes longest.
        slowest = max(
            (simulation.classes[number] for number in classes),
            key=lambda rank_class: rank_class.compute_s,
        )
        # A host's parts add up to step_s: if its own step is shorter, it waits for the rest.
        wait_s = slowest.wait_s + step_s - slowest.step_s
        last = {
            id(s): s for group in simulation.steps[-1] for message in group for s in message.sends
        }
        sent = sum(send.egress.get(host, 0.0) for send in last.values())
        hosts[host] = HostStep(slowest.compute_s, slowest.exposed_s, wait_s, sent)
    return StepForecast(step_s, simulation.in_flight_s(), hosts)


@dataclass(frozen=True)
class Span:
    """Seconds of a step, from its beginning, in which a rank computes something, or a message of
    its own is on its way. what: of these words for the picture of a step.
    """

    what: str
    begins_s: float
    ends_s: float


def step_timeline(
    works: Sequence[RankWork], traffic: StepTraffic, network: Network
) -> tuple[list[Span], list[Span]]:
    """Spans of the first of several ranks in the steady state: its computation, its messages."""
    simulation = _simulated(works, traffic, network)
    return simulation.classes[0].computed, simulation.sent_by_first()


def _simulated(works: Sequence[RankWork], traffic: StepTraffic, network: Network) -> _Simulation:
    """Of several ranks, when every one has done every step."""
    rank_classes = RankClasses(works, network)
    first = step_messages(rank_classes, traffic)
    steps = [first, *(first.copy() for _ in range(STEADY_AFTER_STEPS))]
    simulation = _Simulation(rank_classes, traffic, steps)
    simulation.run()
    return simulation


@dataclass(frozen=True)
class _Event:
    """Compute for `seconds`; then send a part of a message, or wait for what others send.

    what: is computed. begins_step: this is the first event of a step.
    """

    seconds: float = 0.0
    what: str = ""
    send: Send | None = None
    wait: tuple[Send, ...] = ()
    begins_step: bool = False


@dataclass
class _RankClass:
    """The state of identical ranks, and the times of their last complete step. computed: what of
    it was when.
    """

    events: Iterator[_Event]
    slowdown_s_per_byte: float
    left_s: float = 0.0  # of the current event, at full speed
    current: _Event | None = None
    blocked_since_s: float = 0.0
    finished: bool = False
    began_s: float = 0.0
    step_s: float = 0.0
    wait_s: float = 0.0
    exposed_s: float = 0.0
    computed: list[Span] = field(default_factory=list)

    @property
    def compute_s(self) -> float:
        return self.step_s - self.wait_s - self.exposed_s

    def unblock(self, now_s: float) -> None:
        """End a wait: it was for ranks until they had sent, and for bytes afterwards."""
        assert self.current is not None
        ready_s = max(send.ready_s for send in self.current.wait)
        self.wait_s += max(0.0, ready_s - self.blocked_since_s)
        self.exposed_s += now_s - max(self.blocked_since_s, ready_s)
        self.current = None


class _RankTimeline:
    """The events of a rank of one class. tokens: of all ranks together."""

    def __init__(
        self, number: int, rank_classes: RankClasses, traffic: StepTraffic, tokens: float
    ) -> None:
        self.number, self.work, self.traffic = number, rank_classes.works[number], traffic
        self.num_ranks, self.tokens = rank_classes.num_ranks, tokens

    def _send(self, what: str, seconds: float, messages: Sequence[Message]) -> Iterator[_Event]:
        """Compute for so long, and send each of these when an equal part of it is done."""
        if not messages:
            yield _Event(seconds, what)
        for message in messages:
            yield _Event(seconds / len(messages), what, send=message.sends[self.number])

    def _wait(self, messages: Sequence[Message]) -> _Event:
        """Wait for what this class receives of these."""
        sends = (send for message in messages for send in message.sends)
        return _Event(wait=tuple(send for send in sends if self.number in send.received_by))

    def events(self, steps: Sequence[StepMessages]) -> Iterator[_Event]:
        """All steps in order."""
        arriving: list[Message] = []
        before: StepMessages | None = None
        for messages in steps:
            yield _Event(begins_step=True)
            # An owner of all matrices receives none.
            if self.work.owned_fraction < 1:
                yield self._wait(arriving)
            # An owner decodes its own updates too: all ranks must hold the same bits.
            decode_s = self.work.decode_s * self.traffic.matrix_numbers
            yield _Event(decode_s if arriving else 0.0, CODEC)
            yield from self._gradients(messages, before)
            yield from self._optimizer(messages, before)
            arriving, before = messages.updates, messages

    def _gradients(self, messages: StepMessages, before: StepMessages | None) -> Iterator[_Event]:
        """before: the messages of the step before."""
        work, late = self.work, self.traffic.late
        yield from self._send(PASSES, work.early_s, messages.early)
        # Late matrices are updated between two micro-batches, in about the middle.
        if late.matrices and work.early_s:
            yield from self._matrices(before, messages)
        none_waits = late.head and not messages.vocab_parallel
        if none_waits:
            yield from self._deferred(PASSES, messages)
        yield _Event(work.deferred_forward_s + work.forward_s, FORWARD)
        if late.matrices and not work.early_s:
            yield from self._matrices(before, messages)
        encode_s = work.encode_s * self.traffic.head_numbers
        if messages.vocab_parallel:
            yield from self._vocab_parallel_head(messages)
        elif late.head:
            yield _Event(work.head_s, LM_HEAD)
        else:
            yield _Event(work.head_s * HEAD_BEFORE_FIRST_CHUNK, LM_HEAD)
            rest_s = work.head_s * (1 - HEAD_BEFORE_FIRST_CHUNK)
            yield from self._send(LM_HEAD, rest_s + encode_s, messages.head)
        if not none_waits:
            yield from self._deferred(BACKWARD, messages)
        if late.matrices:
            yield _Event(work.backward_s, BACKWARD)
        else:
            backward_s = work.backward_s + self._encode_matrices_s
            yield from self._send(BACKWARD, backward_s, messages.layers)
        # Backward reaches the token embedding last.
        yield from self._send(BACKWARD, 0.0, [*messages.rows, *messages.done])

    def _deferred(self, what: str, messages: StepMessages) -> Iterator[_Event]:
        first_s, second_s = self.work.deferred_backward_s
        yield from self._send(what, first_s, messages.deferred_first)
        yield from self._send(what, second_s, messages.deferred_second)

    def _vocab_parallel_head(self, messages: StepMessages) -> Iterator[_Event]:
        hidden, sums, gradient = ([message] for message in messages.vocab_parallel)
        logits_s = self.work.head_s * HEAD_BEFORE_FIRST_CHUNK
        # A rank begins with its own tokens: the others' hidden states are still in flight.
        own_s = logits_s * self.work.tokens / self.tokens
        yield from self._send(LM_HEAD, 0.0, hidden)
        yield _Event(own_s, LM_HEAD)
        yield self._wait(hidden)
        yield from self._send(LM_HEAD, logits_s - own_s, sums)
        yield self._wait(sums)
        # The hidden states' gradients leave first; the weight's is computed meanwhile.
        yield from self._send(LM_HEAD, 0.0, gradient)
        yield _Event(self.work.head_s - logits_s, LM_HEAD)
        yield self._wait(gradient)

    @property
    def _encode_matrices_s(self) -> float:
        """A rank encodes only the gradients that it sends: those of matrices that others own."""
        work = self.work
        return work.encode_s * (1 - work.owned_fraction) * self.traffic.matrix_numbers

    def _optimizer(self, messages: StepMessages, before: StepMessages | None) -> Iterator[_Event]:
        """before: the messages of the step before, of which late gradients are used."""
        work, traffic = self.work, self.traffic
        yield self._wait(messages.done)
        if not traffic.late.matrices:
            yield from self._matrices(messages, messages)
        # Rows of earlier micro-batches are ahead of these in the queue: they have arrived then.
        due = before if traffic.late.head else messages
        head = [] if due is None else due.head
        yield self._wait([*head, *messages.rows])
        # Those for the next step leave.
        if traffic.late.matrices:
            yield from self._send(CODEC, self._encode_matrices_s, messages.layers)
        if traffic.late.head:
            encode_s = work.encode_s * traffic.head_numbers
            yield from self._send(CODEC, encode_s, messages.head)
        # A rank decodes its own chunks too, so that all ranks sum the same values.
        # Of more than two ranks: N payloads of a shard, then all shards of the sum.
        yield _Event(2 * work.decode_s * traffic.head_numbers + work.adamw_s, ADAMW)

    def _matrices(self, gradients: StepMessages | None, new: StepMessages) -> Iterator[_Event]:
        """Wait for the gradients of the matrices that this rank owns, and send new ones."""
        work = self.work
        owned_numbers = work.owned_fraction * self.traffic.matrix_numbers
        if owned_numbers and gradients is not None:
            yield self._wait(gradients.layers)
            # One payload from each other rank.
            yield _Event(work.decode_s * owned_numbers * (self.num_ranks - 1), CODEC)
        yield from self._send(MUON, work.muon_s + work.encode_s * owned_numbers, new.updates)


class _Simulation:
    """All rank classes and what they have in flight, on one clock."""

    def __init__(
        self, rank_classes: RankClasses, traffic: StepTraffic, steps: Sequence[StepMessages]
    ) -> None:
        self.now_s, self.steps, self.hosts = 0.0, steps, rank_classes.hosts
        tokens = sum(
            n * work.tokens for n, work in zip(rank_classes.counts, rank_classes.works, strict=True)
        )
        self.classes = [
            _RankClass(
                _RankTimeline(number, rank_classes, traffic, tokens).events(steps),
                work.cpu_s_per_byte,
            )
            for number, work in enumerate(rank_classes.works)
        ]
        self.ports = rank_classes.network.ports if len(rank_classes.hosts) > 1 else {}
        self.ready: list[Send] = []  # and not yet arrived, in the order of readiness
        self.arrived: list[Send] = []

    def run(self) -> None:
        """Run until every rank has done every step."""
        for rank_class in self.classes:
            self._next_event(rank_class)
        while not all(rank_class.finished for rank_class in self.classes):
            self._advance()

    def in_flight_s(self) -> float:
        """Time with a message in flight during the last step, the largest of all ranks."""
        sends = sorted([*self.arrived, *self.ready], key=lambda each: each.ready_s)
        longest_s = 0.0
        for rank_class in self.classes:
            total_s, reached_s = 0.0, rank_class.began_s
            for send in sends:
                # Several may be in flight at once: that time counts once.
                begins_s = max(send.ready_s, reached_s)
                ends_s = min(send.end_s, rank_class.began_s + rank_class.step_s)
                if ends_s > begins_s:
                    total_s, reached_s = total_s + ends_s - begins_s, ends_s
            longest_s = max(longest_s, total_s)
        return longest_s

    def sent_by_first(self) -> list[Span]:
        """Spans of the first class's messages in its last step."""
        names = {
            id(send): name
            for messages in self.steps
            for name, group in messages._asdict().items()
            for message in group
            for send in message.sends
        }
        rank_class, free_s, found = self.classes[0], 0.0, list[Span]()
        for send in sorted([*self.arrived, *self.ready], key=lambda each: each.ready_s):
            if 0 not in send.classes or not send.transfer_s:
                continue
            # Its messages leave one by one.
            begins_s, free_s = max(send.ready_s + send.latency_s, free_s), send.end_s
            within_s = [
                min(max(0.0, time_s - rank_class.began_s), rank_class.step_s)
                for time_s in (begins_s, send.end_s)
            ]
            if within_s[0] < within_s[1]:
                found.append(Span(names[id(send)], *within_s))
        return found

    def _first_of_each_class(self) -> list[Send]:
        """The Sends in flight: each class sends one at a time, in the order of readiness."""
        found: list[Send] = []
        busy: set[int] = set()
        for send in self.ready:
            if send.transfer_s == 0 or busy.isdisjoint(send.classes):
                found.append(send)
            busy |= send.classes if send.transfer_s else set()
        return found

    def _contention(self, moving: Sequence[Send]) -> float:
        """How many times longer these take than each alone, where they share a port."""
        most = 1.0
        for host, port in self.ports.items():
            out = sum(send.egress[host] / send.transfer_s for send in moving)
            into = sum(send.ingress[host] / send.transfer_s for send in moving)
            most = max(most, out / port.out_bytes_per_s, into / port.in_bytes_per_s)
        return most

    def _advance(self) -> None:
        """Advance the clock to the next moment at which something begins or ends."""
        firsts = self._first_of_each_class()
        # The latency may pass while the message before is sent, so it counts from ready_s.
        there = [send for send in firsts if self.now_s >= send.ready_s + send.latency_s]
        moving = [send for send in there if send.transfer_s]
        contention = self._contention(moving)
        speeds = [self._speed(number, moving, contention) for number in range(len(self.classes))]
        moments = [
            rank_class.left_s / speed
            for rank_class, speed in zip(self.classes, speeds, strict=True)
            if not self._is_idle(rank_class)
        ]
        moments += [
            send.remaining_s * contention
            if send in there
            else send.ready_s + send.latency_s - self.now_s
            for send in firsts
        ]
        assert moments, "every rank waits for another"
        passed_s = min(moments)
        # An event may be due now, or be past by a rounding error: the clock must move on.
        self.now_s = self.now_s + passed_s if passed_s > 0 else math.nextafter(self.now_s, math.inf)
        for rank_class, speed in zip(self.classes, speeds, strict=True):
            self._compute(rank_class, passed_s * speed)
        for send in there:
            send.remaining_s -= passed_s / contention
            if send.remaining_s <= ROUNDING_S:
                self._arrive(send)

    def _speed(self, number: int, moving: Sequence[Send], contention: float) -> float:
        """The part of its speed with which a class computes beside these."""
        bytes_per_s = sum(send.bytes_by_class[number] / send.transfer_s for send in moving)
        # CPU seconds that sending and receiving take of each second.
        slowdown = self.classes[number].slowdown_s_per_byte * bytes_per_s / contention
        return max(MIN_SPEED, 1 - slowdown)

    @staticmethod
    def _is_idle(rank_class: _RankClass) -> bool:
        return rank_class.finished or (
            rank_class.current is not None and bool(rank_class.current.wait)
        )

    def _arrive(self, send: Send) -> None:
        send.end_s = self.now_s
        self.ready.remove(send)
        self.arrived.append(send)
        for rank_class in self.classes:
            waits = rank_class.current.wait if rank_class.current is not None else ()
            if waits and all(each.end_s <= self.now_s for each in waits):
                rank_class.unblock(self.now_s)
                self._next_event(rank_class)

    def _leave(self, send: Send) -> None:
        """A class has computed its part; it leaves when all of its senders have."""
        send.senders_left -= 1
        if send.senders_left > 0:
            return
        send.ready_s = self.now_s
        if send.received_by:
            self.ready.append(send)

    def _compute(self, rank_class: _RankClass, done_s: float) -> None:
        if self._is_idle(rank_class):
            return
        rank_class.left_s -= done_s
        if rank_class.left_s <= ROUNDING_S:
            self._next_event(rank_class)

    def _next_event(self, rank_class: _RankClass) -> None:
        """The current event is done: send its message, and begin the next one."""
        while True:
            if rank_class.current is not None and rank_class.current.seconds:
                times_s = rank_class.blocked_since_s, self.now_s
                begins_s, ends_s = (time_s - rank_class.began_s for time_s in times_s)
                rank_class.computed.append(Span(rank_class.current.what, begins_s, ends_s))
            if rank_class.current is not None and rank_class.current.send is not None:
                self._leave(rank_class.current.send)
            rank_class.current = next(rank_class.events, None)
            if rank_class.current is None:
                rank_class.finished = True
                rank_class.step_s = self.now_s - rank_class.began_s
                return
            if rank_class.current.begins_step:
                # Earlier steps only lead to the steady state and do not count.
                rank_class.began_s, rank_class.wait_s, rank_class.exposed_s = self.now_s, 0.0, 0.0
                rank_class.computed.clear()
            rank_class.left_s, rank_class.blocked_since_s = rank_class.current.seconds, self.now_s
            # Work of no time, and a wait for what has arrived, end at once.
            if rank_class.left_s > 0 or any(
                each.end_s > self.now_s for each in rank_class.current.wait
            ):
                return
