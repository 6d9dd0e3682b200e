"""A discrete-event simulation of training steps: ranks that compute, and a queue of messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from yoked.costmodel.messages import Message, RankClasses, StepMessages, step_messages
from yoked.costmodel.work import HostStep, Network, RankWork, StepForecast, StepTraffic

# A rank computes at least at this fraction of its speed, however fast messages arrive.
MIN_SPEED = 0.1
# The lm_head's gradient is the last of its three products: its first chunk is ready after two.
HEAD_BEFORE_FIRST_CHUNK = 2 / 3
STEADY_AFTER_STEPS = 2
# Smaller differences are rounding errors.
ROUNDING_S = 1e-12


def simulate_step(
    works: Sequence[RankWork], traffic: StepTraffic, network: Network
) -> StepForecast:
    """A step in the steady state of training. If there are several hosts, each needs a port."""
    assert works, "no rank"
    if len(works) == 1:
        alone_s = works[0].alone_s
        return StepForecast(alone_s, 0.0, {works[0].host: HostStep(alone_s, 0.0, 0.0, 0.0)})
    rank_classes = RankClasses(works, network)
    first = step_messages(rank_classes, traffic)
    steps = [first, *(first.copy() for _ in range(STEADY_AFTER_STEPS))]
    simulation = _Simulation(rank_classes, traffic, steps)
    simulation.run()
    step_s = max(rank_class.step_s for rank_class in simulation.classes)
    hosts: dict[str, HostStep] = {}
    for host, classes in rank_classes.hosts.items():
        # A host's figures are those of its rank that computes longest.
        slowest = max(
            (simulation.classes[number] for number in classes),
            key=lambda rank_class: rank_class.compute_s,
        )
        wait_s = slowest.wait_s + step_s - slowest.step_s
        sent = sum(message.bytes_by_host.get(host, 0.0) for message in steps[-1].in_order)
        hosts[host] = HostStep(slowest.compute_s, slowest.exposed_s, wait_s, sent)
    return StepForecast(step_s, simulation.in_flight_s(), hosts)


@dataclass(frozen=True)
class _Event:
    """Compute for `seconds`; then send a message, or wait for messages.

    begins_step: this is the first event of a step.
    """

    seconds: float = 0.0
    send: Message | None = None
    wait: tuple[Message, ...] = ()
    begins_step: bool = False


@dataclass
class _RankClass:
    """The state of identical ranks, and the times of their last complete step."""

    events: Iterator[_Event]
    slowdown_s_per_byte: float
    left_s: float = 0.0
    current: _Event | None = None
    blocked_since_s: float = 0.0
    finished: bool = False
    began_s: float = 0.0
    step_s: float = 0.0
    wait_s: float = 0.0
    exposed_s: float = 0.0

    @property
    def compute_s(self) -> float:
        return self.step_s - self.wait_s - self.exposed_s

    def begin(self, now_s: float) -> None:
        """Begin a step. Earlier ones only lead to the steady state and do not count."""
        self.began_s, self.wait_s, self.exposed_s = now_s, 0.0, 0.0

    def finish(self, now_s: float) -> None:
        """End the last step."""
        self.finished, self.step_s = True, now_s - self.began_s

    def unblock(self, now_s: float) -> None:
        """End a wait: it was for ranks until the messages were ready, and for bytes afterwards."""
        assert self.current is not None
        ready_s = max(message.ready_s for message in self.current.wait)
        self.wait_s += max(0.0, ready_s - self.blocked_since_s)
        self.exposed_s += now_s - max(self.blocked_since_s, ready_s)
        self.current = None


class _RankTimeline:
    """The events of a rank of one class. num_ranks, tokens: of all ranks together."""

    def __init__(self, work: RankWork, traffic: StepTraffic, num_ranks: int, tokens: float) -> None:
        self.work, self.traffic, self.num_ranks, self.tokens = work, traffic, num_ranks, tokens

    def events(self, steps: Sequence[StepMessages]) -> Iterator[_Event]:
        """All steps in order."""
        arriving: list[Message] = []
        for messages in steps:
            yield _Event(begins_step=True)
            if self.work.owned_fraction < 1:
                yield _Event(wait=tuple(arriving))
            yield _Event(self.work.decode_s * self.traffic.matrix_numbers if arriving else 0.0)
            yield from self._gradients(messages)
            yield from self._optimizer(messages)
            arriving = messages.updates

    def _gradients(self, messages: StepMessages) -> Iterator[_Event]:
        work, traffic = self.work, self.traffic
        yield _Event(work.early_s, send=messages.early)
        yield _Event(work.deferred_forward_s + work.forward_s)
        yield from self._head(messages)
        for seconds, rows in zip(work.deferred_backward_s, messages.deferred, strict=True):
            yield _Event(seconds, send=rows)
        sent_numbers = (1 - work.owned_fraction) * traffic.matrix_numbers
        layers_s = work.backward_s + work.encode_s * sent_numbers
        for message in messages.layers:
            yield _Event(layers_s / len(messages.layers), send=message)
        yield _Event(send=messages.rows)

    def _head(self, messages: StepMessages) -> Iterator[_Event]:
        return (
            self._vocab_parallel_head(messages)
            if messages.vocab_parallel
            else self._replicated_head(messages)
        )

    def _replicated_head(self, messages: StepMessages) -> Iterator[_Event]:
        head_s = self.work.head_s
        yield _Event(head_s * HEAD_BEFORE_FIRST_CHUNK)
        encode_s = self.work.encode_s * self.traffic.head_numbers
        chunk_s = head_s * (1 - HEAD_BEFORE_FIRST_CHUNK) + encode_s
        for message in messages.head:
            yield _Event(chunk_s / len(messages.head), send=message)

    def _vocab_parallel_head(self, messages: StepMessages) -> Iterator[_Event]:
        hidden, sums, gradient = messages.vocab_parallel
        logits_s = self.work.head_s * HEAD_BEFORE_FIRST_CHUNK
        own_s = logits_s * self.work.tokens / self.tokens
        yield _Event(send=hidden)
        yield _Event(own_s)
        yield _Event(wait=(hidden,))
        yield _Event(logits_s - own_s, send=sums)
        yield _Event(wait=(sums,))
        yield _Event(send=gradient)
        yield _Event(self.work.head_s - logits_s)
        yield _Event(wait=(gradient,))

    def _optimizer(self, messages: StepMessages) -> Iterator[_Event]:
        work, traffic = self.work, self.traffic
        owned_numbers = work.owned_fraction * traffic.matrix_numbers
        if owned_numbers:
            yield _Event(wait=tuple(messages.layers))
            yield _Event(work.decode_s * owned_numbers * (self.num_ranks - 1))
        buckets_s = work.muon_s + work.encode_s * owned_numbers
        for message in messages.updates:
            yield _Event(buckets_s / len(messages.updates), send=message)
        yield _Event(wait=(*messages.head, messages.rows))
        # A rank decodes its own chunks too, so that all ranks sum the same values.
        yield _Event(2 * work.decode_s * traffic.head_numbers + work.adamw_s)


class _Simulation:
    """All rank classes and the message queue, on one clock."""

    def __init__(
        self, rank_classes: RankClasses, traffic: StepTraffic, steps: Sequence[StepMessages]
    ) -> None:
        self.now_s = 0.0
        tokens = sum(
            n * work.tokens for n, work in zip(rank_classes.counts, rank_classes.works, strict=True)
        )
        self.classes = [
            _RankClass(
                _RankTimeline(work, traffic, rank_classes.num_ranks, tokens).events(steps),
                work.cpu_s_per_byte,
            )
            for work in rank_classes.works
        ]
        self.queue = [message for step in steps for message in step.in_order]
        self.front = 0

    def run(self) -> None:
        """Run until every rank has done every step."""
        for rank_class in self.classes:
            self._next_event(rank_class)
        while not all(rank_class.finished for rank_class in self.classes):
            self._advance()

    def in_flight_s(self) -> float:
        """Time with a message in flight during the last step, the largest of all ranks."""
        return max(
            self._in_flight_s(rank_class.began_s, rank_class.began_s + rank_class.step_s)
            for rank_class in self.classes
        )

    def _in_flight_s(self, start: float, end: float) -> float:
        total, reached = 0.0, start
        for message in self.queue:
            begins, ends = max(message.ready_s, reached), min(message.end_s, end)
            if ends > begins:
                total, reached = total + ends - begins, ends
        return total

    def _in_flight(self) -> Message | None:
        """The message whose bytes are being sent now."""
        if self.front == len(self.queue):
            return None
        message = self.queue[self.front]
        return message if self.now_s >= message.ready_s + message.latency_s else None

    def _advance(self) -> None:
        """Advance the clock to the next moment at which something begins or ends."""
        message = self._in_flight()
        speeds = [self._speed(number, message) for number in range(len(self.classes))]
        moments = [
            rank_class.left_s / speed
            for rank_class, speed in zip(self.classes, speeds, strict=True)
            if not self._is_idle(rank_class)
        ]
        if message is not None:
            moments.append(message.remaining_s)
        elif self.front < len(self.queue):
            first = self.queue[self.front]
            moments.append(first.ready_s + first.latency_s - self.now_s)
        passed_s = min(moments)
        assert passed_s < math.inf, "every rank waits for another"
        # An event may be due now, or be past by a rounding error: the clock must move on.
        self.now_s = self.now_s + passed_s if passed_s > 0 else math.nextafter(self.now_s, math.inf)
        for rank_class, speed in zip(self.classes, speeds, strict=True):
            self._compute(rank_class, passed_s * speed)
        if message is not None:
            self._transfer(message, passed_s)

    def _speed(self, number: int, message: Message | None) -> float:
        if message is None or message.transfer_s == 0:
            return 1.0
        slowdown = (
            self.classes[number].slowdown_s_per_byte
            * message.bytes_by_class[number]
            / message.transfer_s
        )
        return max(MIN_SPEED, 1 - slowdown)

    @staticmethod
    def _is_idle(rank_class: _RankClass) -> bool:
        return rank_class.finished or (
            rank_class.current is not None and bool(rank_class.current.wait)
        )

    def _transfer(self, message: Message, passed_s: float) -> None:
        message.remaining_s -= passed_s
        if message.remaining_s > ROUNDING_S:
            return
        message.end_s = self.now_s
        self.front += 1
        for rank_class in self.classes:
            waits = rank_class.current.wait if rank_class.current is not None else ()
            if waits and all(each.end_s <= self.now_s for each in waits):
                rank_class.unblock(self.now_s)
                self._next_event(rank_class)

    def _compute(self, rank_class: _RankClass, done_s: float) -> None:
        if self._is_idle(rank_class):
            return
        rank_class.left_s -= done_s
        if rank_class.left_s <= ROUNDING_S:
            self._next_event(rank_class)

    def _next_event(self, rank_class: _RankClass) -> None:
        """The current event is done: send its message, and begin the next one."""
        while True:
            if rank_class.current is not None and rank_class.current.send is not None:
                message = rank_class.current.send
                message.senders_left -= 1
                if message.senders_left == 0:
                    message.ready_s = self.now_s
            rank_class.current = next(rank_class.events, None)
            if rank_class.current is None:
                rank_class.finish(self.now_s)
                return
            if rank_class.current.begins_step:
                rank_class.begin(self.now_s)
            rank_class.left_s, rank_class.blocked_since_s = rank_class.current.seconds, self.now_s
            # Work of no time, and a wait for messages that have arrived, end at once.
            if rank_class.left_s > 0 or any(
                each.end_s > self.now_s for each in rank_class.current.wait
            ):
                return
