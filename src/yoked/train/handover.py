"""The exchange of hidden states and gradients where a rank computes lm_head tokens for another.

What is handed over, and when, is in `yoked.timeline.evening`: some tokens of one micro-batch; or in
`yoked.timeline.fastest`: all of every one. The gradient of the lm_head's weight stays with the
helper, the sum over ranks is the same; what the tokens cost (nats) goes back with the gradient of
their hidden states, so that each rank's loss is that of its own rows.

Traffic of a handover: its tokens' hidden states one way, their gradient the other.

Shape legend: N tokens of a micro-batch, K handed over, C n_embd.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from yoked.timeline.evening import Evening, Handover
from yoked.timeline.fastest import turn
from yoked.train.model.cross_entropy import LossAndGrads
from yoked.train.sync.sync import SyncTimes
from yoked.train.sync.wire import HANDOVER_TAG, Pending, Wire

WHAT = "the lm_head's work for another rank"
# Messages of a handover: hidden states, their gradient, nats.
_MESSAGES = 3


@dataclass
class _Part:
    """This rank's part in one handover of a step. number: of the micro-batch here.

    arrived: (K, C) in host memory, what comes here: the hidden states, or their gradient; nats: 0-D
    fp64, with the gradient. arriving: of these.
    waited_for: it does not go through the head together with the helper's own micro-batch, because
    the source may have none to go on with.
    """

    handover: Handover
    number: int
    tag: int
    targets: Tensor
    arrived: Tensor
    nats: Tensor
    arriving: list[Pending]
    waited_for: bool


class Handovers:
    """This rank's part in the handovers of each step.

    agreed: what they are, on all ranks alike; live: where steps are long enough, they are found
    anew in each, by how far ranks have come (`Evening.in_step`). head_rank: the only one that has
    the lm_head.
    """

    def __init__(self, wire: Wire, width: int, dtype: torch.dtype) -> None:
        self.wire, self._width, self._dtype = wire, width, dtype
        self.head_rank: int | None = None
        self.agreed: tuple[Handover, ...] = ()
        self.live = False
        self._batches: Sequence[Sequence[Tensor]] = ()
        self._rows: list[int] = []
        self._report: tuple[Tensor, Pending] | None = None
        self._given: list[_Part] = []
        self._taken: list[_Part] = []
        self._leaving: list[Pending] = []
        self._evening: Evening
        self._times, self._started = SyncTimes(), 0.0
        self._in_step = False

    @property
    def gives_all(self) -> bool:
        """Whether this rank has no lm_head, and every micro-batch of its waits for another rank."""
        return self.head_rank not in (None, self.wire.rank)

    @property
    def extra_tokens(self) -> int:
        """That this rank computes for others; below zero: that others do for it."""
        taken = sum(part.handover.tokens for part in self._taken)
        return taken - sum(part.handover.tokens for part in self._given)

    def begin(
        self, batches: Sequence[Sequence[Tensor]], evening: Evening, times: SyncTimes
    ) -> None:
        """Start a step: post what will be received.

        batches: of each rank, the rows (b, T + 1) of its micro-batches. times: what is waited for
        is added there.
        """
        for pending in self._leaving:
            pending.wait()
        self._leaving, self._times, self._evening = [], times, evening
        self._given, self._taken, self._report = [], [], None
        self._batches, self._rows = batches, [sum(map(len, each)) for each in batches]
        self._in_step = self.live and evening.in_step(self._rows)
        self._started = time.perf_counter()
        if self.head_rank is not None:
            self._prepare_all(self.head_rank)
        elif not self._in_step:
            self._prepare(self.agreed)

    def follow(self, number: int) -> None:
        """This rank begins a micro-batch; where ranks report within the step, it may be time to."""
        own = self._rows[self.wire.rank]
        if self._in_step and number == self._evening.report_batch(own):
            waited_s = self._times.wait_s + self._times.comm_s
            elapsed_s = time.perf_counter() - self._started - waited_s
            figures = torch.tensor(elapsed_s, dtype=torch.float64)
            self._report = self.wire.gather_all(figures, WHAT, signal=True)

    def _decide(self, number: int) -> None:
        """By all reports, before the first micro-batch of which anything may be handed over."""
        at = self._evening.source_batch(self.wire.rank, self._rows)
        if self._report is None or number < at:
            return
        (elapsed_s, pending), self._report = self._report, None
        self._await([pending])
        self._prepare(self._evening.from_reports(self._rows, elapsed_s.tolist()))

    def _prepare(self, handovers: Sequence[Handover]) -> None:
        taken_of: dict[int, int] = {}
        for number, handover in enumerate(handovers):
            source, helper = handover.source, handover.helper
            at = self._evening.source_batch(source, self._rows)
            targets = self._batches[source][at][:, 1:].flatten()
            # Several helpers take from the end, one after the other.
            end = len(targets) - taken_of.get(source, 0)
            taken_of[source] = len(targets) - end + handover.tokens
            if self.wire.rank not in (source, helper):
                continue
            if self.wire.rank == helper:
                at = self._evening.helper_batch(handover, self._rows)
            tag = HANDOVER_TAG + _MESSAGES * number
            waited_for = len(self._batches[source]) == 1
            self._expect(handover, at, tag, targets[end - handover.tokens : end], waited_for)

    def _prepare_all(self, helper: int) -> None:
        """All of the others' micro-batches, in the order in which the helper does them."""
        own = len(self._batches[helper])
        for source, batches in enumerate(self._batches):
            if source == helper or self.wire.rank not in (source, helper):
                continue
            for number, rows in enumerate(batches):
                at = number
                if self.wire.rank == helper:
                    at = turn(number, len(batches), self._evening.deferred, own)
                targets = rows[:, 1:].flatten()
                handover = Handover(source, helper, len(targets))
                self._expect(handover, at, HANDOVER_TAG + _MESSAGES * number, targets, True)

    def _expect(
        self, handover: Handover, at: int, tag: int, targets: Tensor, waited_for: bool
    ) -> None:
        """Post what this rank will receive for a handover in which it takes part."""
        part = _Part(
            handover,
            at,
            tag,
            targets,
            torch.empty(handover.tokens, self._width, dtype=self._dtype),
            torch.zeros((), dtype=torch.float64),
            [],
            waited_for,
        )
        source, helper = handover.source, handover.helper
        if self.wire.rank == source:
            part.arriving = [
                self.wire.receive(part.arrived, helper, tag + 1, WHAT),
                self.wire.receive(part.nats, helper, tag + 2, WHAT),
            ]
            self._given.append(part)
        else:
            part.arriving = [self.wire.receive(part.arrived, source, tag, WHAT)]
            self._taken.append(part)

    def ahead(self, number: int) -> Iterator[tuple[Tensor, Tensor, Callable[[LossAndGrads], None]]]:
        """What goes through the lm_head here before this rank's own micro-batch, or after the last
        one, because it is waited for: hidden states, targets, and where the result goes.
        """
        for part in self._at(number, self._taken):
            if part.waited_for:
                self._await(part.arriving)
                yield part.arrived, part.targets, partial(self._answer, part, 0)

    def enter(self, number: int, hidden_NC: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """What goes through the lm_head here with a micro-batch: without what is handed over,
        which leaves, and with what others hand over, which is waited for.
        """
        self._decide(number)
        end = len(targets_N)
        for part in self._at(number, self._given):
            start = end - part.handover.tokens
            self._send(hidden_NC[start:end], part.handover.helper, part.tag)
            end = start
        taken = self._merged(number)
        if not taken:
            return hidden_NC[:end], targets_N[:end]
        for part in taken:
            self._await(part.arriving)
        hidden = [part.arrived.to(hidden_NC.device) for part in taken]
        targets = [part.targets for part in taken]
        return torch.cat([hidden_NC, *hidden]), torch.cat([targets_N, *targets])

    def leave(self, number: int, loss: LossAndGrads, tokens: int) -> tuple[float, Tensor]:
        """A micro-batch of so many tokens has been through the head: send back what is others'.

        Returns its nats and the gradient of its hidden states, (N, C), which lack what was handed
        over until `complete`.
        """
        assert loss.hidden_grad is not None
        start = tokens
        for part in self._merged(number):
            self._answer(part, start, loss)
            start += part.handover.tokens
        own = loss.hidden_grad[:tokens]
        if len(own) < tokens:
            gradient = own.new_empty(tokens, own.size(1))
            gradient[: len(own)] = own
            return float(loss.loss_sum), gradient
        if start == tokens:
            return float(loss.loss_sum), own
        return float(loss.token_nats[:tokens].cpu().double().sum()), own

    def _answer(self, part: _Part, start: int, loss: LossAndGrads) -> None:
        """Send back what begins at a token of a result."""
        assert loss.hidden_grad is not None
        rows = slice(start, start + part.handover.tokens)
        nats = loss.token_nats[rows].cpu().double().sum()
        self._send(loss.hidden_grad[rows], part.handover.source, part.tag + 1)
        self._send(nats, part.handover.source, part.tag + 2)

    def _merged(self, number: int) -> list[_Part]:
        """What goes through the lm_head together with this rank's own micro-batch."""
        return [part for part in self._at(number, self._taken) if not part.waited_for]

    def owes(self, number: int) -> bool:
        """Whether others still compute for a micro-batch."""
        return bool(self._at(number, self._given))

    def complete(self, number: int, gradient_NC: Tensor) -> float:
        """Wait for what was handed over of a micro-batch; returns its nats."""
        nats, end = 0.0, len(gradient_NC)
        for part in self._at(number, self._given):
            self._await(part.arriving)
            start = end - part.handover.tokens
            gradient_NC[start:end] = part.arrived.to(gradient_NC.device)
            nats, end = nats + float(part.nats), start
        return nats

    @staticmethod
    def _at(number: int, parts: list[_Part]) -> list[_Part]:
        return [part for part in parts if part.number == number]

    def _send(self, tensor: Tensor, to: int, tag: int) -> None:
        self._leaving.append(self.wire.send(tensor, to, tag, WHAT))

    def _await(self, arriving: Sequence[Pending]) -> None:
        started = time.perf_counter()
        for pending in arriving:
            pending.wait()
        self._times.wait_s += time.perf_counter() - started
