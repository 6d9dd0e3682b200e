"""Every message of a step: when it can go, how long the wire needs, whose core it costs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from yoked.timeline.work import DENSE_BYTES, Network, RankWork, Traffic

# Of a token's sums over a part of the vocabulary, float32.
SUM_BYTES = 4.0


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """What each rank of a ring all-reduce sends: 2(N-1)/N of the payload (Thakur et al. 2005)."""
    return 2 * (ranks - 1) / ranks * payload_bytes


@dataclass
class Passage:
    """A message in one step. latency_s: from ready everywhere to its first byte; moved: bytes that
    a rank of each kind sends and receives; through: bytes that leave each host; missing: kinds of
    ranks that have not made their part.
    """

    wire_s: float
    latency_s: float
    moved: tuple[float, ...]
    through: dict[str, float]
    missing: int
    left_s: float
    ready: float = math.inf
    end: float = math.inf


class Mail:
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

    def ring(self, payload_bytes: float, *, hops: int) -> Passage:
        """An all-reduce. Ranks of a host are neighbours: one of them sends through its port.

        hops: messages from rank to rank that follow on each other.
        """
        part = ring_bytes(payload_bytes, self.total)
        everywhere = dict.fromkeys(self.hosts, part if len(self.hosts) > 1 else 0.0)
        each = [part] * len(self.works)
        return self._passage(each, each, everywhere, everywhere, hops)

    def direct(self, sent: list[float], received: list[float]) -> Passage:
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
        hops: int = 1,
    ) -> Passage:
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
        latency_s = hops * self.network.latency_s
        return Passage(wire_s, latency_s, moved, leaving, len(self.works), wire_s)


class StepMail:
    """The messages of one step, in the order in which they queue for the wire.

    parted: which messages of table rows there are before the last one: early, and deferred.
    """

    def __init__(
        self, traffic: Traffic, in_order: list[Passage], *, parted: tuple[bool, bool, bool]
    ) -> None:
        self.traffic, self.in_order, self.parted = traffic, in_order, parted
        rest = iter(in_order)
        early, *deferred = parted
        self.early = next(rest) if early else None
        pieces = traffic.head_pieces if traffic.lm_head == "whole" else 0
        self.head = list(islice(rest, pieces))
        # Hidden states, sums, gradients of the hidden states.
        self.divided = list(islice(rest, 3 if traffic.lm_head == "divided" else 0))
        # Hidden states, and their gradients.
        self.to_fastest = list(islice(rest, 2 if traffic.lm_head == "fastest" else 0))
        self.deferred = [next(rest) if there else None for there in deferred]
        self.layers = list(islice(rest, traffic.layers))
        self.rows = next(rest)
        self.updates = list(rest)

    def again(self) -> StepMail:
        """The same messages, to be sent in another step."""
        fresh = [dataclasses.replace(passage) for passage in self.in_order]
        return StepMail(self.traffic, fresh, parted=self.parted)


def messages(mail: Mail, traffic: Traffic) -> StepMail:
    """What all ranks exchange in a step."""
    others, dense = mail.total - 1, traffic.dense_bytes
    layer = traffic.matrix_numbers / traffic.layers * dense
    stack = traffic.matrix_numbers / traffic.stacks * dense
    row = traffic.embedding_row_numbers * traffic.row_bytes
    owned = [work.owned for work in mail.works]
    gradients = mail.direct(
        [(1 - part) * layer for part in owned], [others * part * layer for part in owned]
    )
    rows = _rows(mail, [row * work.table_rows for work in mail.works])
    new = mail.direct(
        [others * part * stack for part in owned], [(1 - part) * stack for part in owned]
    )
    early, first, second = (
        [row * each for each in touched]
        for touched in zip(
            *((work.early_rows, *work.deferred_rows) for work in mail.works), strict=True
        )
    )
    every = [
        *([_rows(mail, early)] if any(early) else []),
        *_head(mail, traffic),
        *[_rows(mail, deferred) for deferred in (first, second) if any(deferred)],
        *[gradients] * traffic.layers,
        rows,
        *[new] * traffic.stacks,
    ]
    return StepMail(traffic, every, parted=(any(early), any(first), any(second))).again()


def _head(mail: Mail, traffic: Traffic) -> list[Passage]:
    """The pieces of the lm_head's gradient, or what is exchanged in its place."""
    if traffic.lm_head == "fastest":
        return _to_fastest(mail, traffic)
    if traffic.lm_head == "divided":
        own = [traffic.token_bytes * work.tokens for work in mail.works]
        hidden = _rows(mail, own)
        every = sum(count * each for count, each in zip(mail.counts, own, strict=True))
        tokens = every / traffic.token_bytes
        sums = _rows(mail, [2 * SUM_BYTES * tokens] * len(own))
        back = mail.direct(
            [every - each for each in own], [(mail.total - 1) * each for each in own]
        )
        return [hidden, sums, back]
    head_bytes = traffic.head_numbers / traffic.head_pieces * traffic.dense_bytes
    piece = mail.ring(head_bytes, hops=_hops(mail.total, traffic.dense_bytes))
    return [piece] * traffic.head_pieces


def _to_fastest(mail: Mail, traffic: Traffic) -> list[Passage]:
    """Hidden states of all that lack it, and their gradient on the way back."""
    given = [traffic.token_bytes * work.tokens * work.lacks_head for work in mail.works]
    every = sum(count * each for count, each in zip(mail.counts, given, strict=True))
    taken = [0.0 if work.lacks_head else every for work in mail.works]
    return [mail.direct(given, taken), mail.direct(taken, given)]


def _hops(ranks: int, dense_bytes: float) -> int:
    """Of the lm_head's sum: a pair's one message each, the ring of an all-reduce in float32, or
    the two of an exchange (`yoked.train.sync.exchange`).
    """
    if ranks <= 2:
        return 1
    return 2 * (ranks - 1) if dense_bytes == DENSE_BYTES["exact"] else 2


def _rows(mail: Mail, own: list[float]) -> Passage:
    """Every rank's rows to all others. own: bytes, by kind of rank."""
    every = sum(count * each for count, each in zip(mail.counts, own, strict=True))
    return mail.direct([(mail.total - 1) * each for each in own], [every - each for each in own])
