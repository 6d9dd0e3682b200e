"""Ranks and the wire, played against each other on one clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from yoked.timeline.messages import Mail, Passage, StepMail, messages
from yoked.timeline.work import HostStep, Network, RankWork, StepForecast, Traffic

# However fast the wire, computing goes on at this part of its speed.
LEAST_SPEED = 0.1
# Two of the lm_head's three products come before the first block of its gradient is complete.
HEAD_BEFORE_FIRST_PIECE = 2 / 3
STEADY_AFTER_STEPS = 2
# Below the resolution of what it is computed from.
ROUNDING_S = 1e-12


def predict_step(works: Sequence[RankWork], traffic: Traffic, network: Network) -> StepForecast:
    """The steady state of training with these ranks; each of several hosts needs a port."""
    assert works, "no rank"
    if len(works) == 1:
        alone_s = works[0].alone_s
        return StepForecast(alone_s, 0.0, {works[0].host: HostStep(alone_s, 0.0, 0.0, 0.0)})
    mail = Mail(works, network)
    first = messages(mail, traffic)
    steps = [first, *(first.again() for _ in range(STEADY_AFTER_STEPS))]
    run = _Run(mail, traffic, steps)
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


@dataclass(frozen=True)
class _Act:
    """Compute for `seconds`, then hand over `send`, or wait for `wait`; begins: a step does."""

    seconds: float = 0.0
    send: Passage | None = None
    wait: tuple[Passage, ...] = ()
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
    """What a rank of one kind does, step after step. total: ranks of the fleet; tokens: theirs."""

    def __init__(self, work: RankWork, traffic: Traffic, total: int, tokens: float) -> None:
        self.work, self.traffic, self.total, self.tokens = work, traffic, total, tokens

    def acts(self, steps: Sequence[StepMail]) -> Iterator[_Act]:
        """All steps in order."""
        arriving: list[Passage] = []
        for mail in steps:
            yield _Act(begins=True)
            if self.work.owned < 1:
                yield _Act(wait=tuple(arriving))
            yield _Act(self.work.decode_s * self.traffic.matrix_numbers if arriving else 0.0)
            yield from self._gradients(mail)
            yield from self._optimizer(mail)
            arriving = mail.updates

    def _gradients(self, mail: StepMail) -> Iterator[_Act]:
        work, traffic = self.work, self.traffic
        yield _Act(work.before_s, send=mail.early)
        yield _Act(work.ahead_s + work.forward_s)
        yield from self._head(mail)
        for seconds, touched in zip(work.deferred_s, mail.deferred, strict=True):
            yield _Act(seconds, send=touched)
        foreign = (1 - work.owned) * traffic.matrix_numbers
        layers_s = work.backward_s + work.encode_s * foreign
        for passage in mail.layers:
            yield _Act(layers_s / len(mail.layers), send=passage)
        yield _Act(send=mail.rows)

    def _head(self, mail: StepMail) -> Iterator[_Act]:
        return self._divided_head(mail) if mail.divided else self._whole_head(mail)

    def _whole_head(self, mail: StepMail) -> Iterator[_Act]:
        head_s = self.work.head_s
        yield _Act(head_s * HEAD_BEFORE_FIRST_PIECE)
        encode_s = self.work.encode_s * self.traffic.head_numbers
        piece_s = head_s * (1 - HEAD_BEFORE_FIRST_PIECE) + encode_s
        for passage in mail.head:
            yield _Act(piece_s / len(mail.head), send=passage)

    def _divided_head(self, mail: StepMail) -> Iterator[_Act]:
        hidden, sums, gradient = mail.divided
        logits_s = self.work.head_s * HEAD_BEFORE_FIRST_PIECE
        own_s = logits_s * self.work.tokens / self.tokens
        yield _Act(send=hidden)
        yield _Act(own_s)
        yield _Act(wait=(hidden,))
        yield _Act(logits_s - own_s, send=sums)
        yield _Act(wait=(sums,))
        yield _Act(send=gradient)
        yield _Act(self.work.head_s - logits_s)
        yield _Act(wait=(gradient,))

    def _optimizer(self, mail: StepMail) -> Iterator[_Act]:
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

    def __init__(self, mail: Mail, traffic: Traffic, steps: Sequence[StepMail]) -> None:
        self.now = 0.0
        tokens = sum(n * work.tokens for n, work in zip(mail.counts, mail.works, strict=True))
        self.kinds = [
            _Kind(_Program(work, traffic, mail.total, tokens).acts(steps), work.cpu_s_per_byte)
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

    def _travelling(self) -> Passage | None:
        """The message that is on the wire now."""
        if self.front == len(self.queue):
            return None
        passage = self.queue[self.front]
        return passage if self.now >= passage.ready + passage.latency_s else None

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
            first = self.queue[self.front]
            moments.append(first.ready + first.latency_s - self.now)
        passed = min(moments)
        assert passed < math.inf, "every rank waits for another"
        # A message that is due at once may lie a rounding error in the future.
        self.now = self.now + passed if passed > 0 else math.nextafter(self.now, math.inf)
        for kind, speed in zip(self.kinds, speeds, strict=True):
            self._compute(kind, passed * speed)
        if passage is not None:
            self._carry(passage, passed)

    def _speed(self, number: int, passage: Passage | None) -> float:
        if passage is None or passage.wire_s == 0:
            return 1.0
        drag = self.kinds[number].drag_s_per_byte * passage.moved[number] / passage.wire_s
        return max(LEAST_SPEED, 1 - drag)

    @staticmethod
    def _idle(kind: _Kind) -> bool:
        return kind.finished or (kind.then is not None and bool(kind.then.wait))

    def _carry(self, passage: Passage, passed: float) -> None:
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

    def _hand_over(self, passage: Passage) -> None:
        passage.missing -= 1
        if passage.missing == 0:
            passage.ready = self.now
