"""Every message of a step: when it can go, how long the wire needs, whose core it costs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from yoked.timeline.work import DENSE_BYTES, Network, RankWork, StepTraffic

# Of a token's sums over a part of the vocabulary, float32.
SUM_BYTES = 4.0


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """What each rank of a ring all-reduce sends: 2(N-1)/N of the payload (Thakur et al. 2005)."""
    return 2 * (ranks - 1) / ranks * payload_bytes


@dataclass
class Message:
    """A message in one step. latency_s: from ready everywhere to its first byte; bytes_by_class:
    that a rank of each class sends and receives; bytes_by_host: that leave each host; senders_left:
    classes of ranks that have not made their part.
    """

    transfer_s: float
    latency_s: float
    bytes_by_class: tuple[float, ...]
    bytes_by_host: dict[str, float]
    senders_left: int
    remaining_s: float
    ready_s: float = math.inf
    end_s: float = math.inf


class RankClasses:
    """Ranks by class, so that those which are alike are followed once, and who sits where."""

    def __init__(self, works: Sequence[RankWork], network: Network) -> None:
        self.network, self.num_ranks = network, len(works)
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

    def all_reduce(self, payload_bytes: float, *, hops: int) -> Message:
        """An all-reduce. Ranks of a host are neighbours: one of them sends through its port.

        hops: messages from rank to rank that follow on each other.
        """
        part = ring_bytes(payload_bytes, self.num_ranks)
        everywhere = dict.fromkeys(self.hosts, part if len(self.hosts) > 1 else 0.0)
        each = [part] * len(self.works)
        return self._message(each, each, everywhere, everywhere, hops)

    def exchange(self, sent: list[float], received: list[float]) -> Message:
        """From rank to rank, by class; what goes to ranks of the same host does not leave it."""
        return self._message(
            sent, received, self._bytes_off_host(sent), self._bytes_off_host(received)
        )

    def _bytes_off_host(self, bytes_by_class: list[float]) -> dict[str, float]:
        away = {}
        for host, counts in self.hosts.items():
            here = sum(counts.values())
            part = (self.num_ranks - here) / max(self.num_ranks - 1, 1)
            away[host] = part * sum(n * bytes_by_class[number] for number, n in counts.items())
        return away

    def _message(
        self,
        sent: list[float],
        received: list[float],
        egress: dict[str, float],
        ingress: dict[str, float],
        hops: int = 1,
    ) -> Message:
        bytes_by_class = tuple(a + b for a, b in zip(sent, received, strict=True))
        transfer_s = max(bytes_by_class) / self.network.local_bytes_per_s
        if len(self.hosts) > 1:
            ports = self.network.ports
            transfer_s = max(
                max(
                    egress[host] / ports[host].out_bytes_per_s,
                    ingress[host] / ports[host].in_bytes_per_s,
                )
                for host in self.hosts
            )
        latency_s = hops * self.network.latency_s
        return Message(transfer_s, latency_s, bytes_by_class, egress, len(self.works), transfer_s)


class StepMessages:
    """The messages of one step, in the order in which they queue for the wire.

    has_rows: which messages of table rows there are before the last one: early, and deferred.
    """

    def __init__(
        self, traffic: StepTraffic, in_order: list[Message], *, has_rows: tuple[bool, bool, bool]
    ) -> None:
        self.traffic, self.in_order, self.has_rows = traffic, in_order, has_rows
        rest = iter(in_order)
        early, *deferred = has_rows
        self.early = next(rest) if early else None
        chunks = traffic.head_chunks if traffic.lm_head == "replicated" else 0
        self.head = list(islice(rest, chunks))
        # Hidden states, sums, gradients of the hidden states.
        self.vocab_parallel = list(islice(rest, 3 if traffic.lm_head == "vocab-parallel" else 0))
        self.deferred = [next(rest) if there else None for there in deferred]
        self.layers = list(islice(rest, traffic.layers))
        self.rows = next(rest)
        self.updates = list(rest)

    def copy(self) -> StepMessages:
        """The same messages, to be sent in another step."""
        fresh = [dataclasses.replace(message) for message in self.in_order]
        return StepMessages(self.traffic, fresh, has_rows=self.has_rows)


def step_messages(classes: RankClasses, traffic: StepTraffic) -> StepMessages:
    """What all ranks exchange in a step."""
    others, dense = classes.num_ranks - 1, traffic.dense_bytes
    layer = traffic.matrix_numbers / traffic.layers * dense
    bucket = traffic.matrix_numbers / traffic.buckets * dense
    row = traffic.embedding_row_numbers * traffic.row_bytes
    owned = [work.owned_fraction for work in classes.works]
    gradients = classes.exchange(
        [(1 - part) * layer for part in owned], [others * part * layer for part in owned]
    )
    rows = _all_gather(classes, [row * work.table_rows for work in classes.works])
    new = classes.exchange(
        [others * part * bucket for part in owned], [(1 - part) * bucket for part in owned]
    )
    early, first, second = (
        [row * each for each in touched]
        for touched in zip(
            *((work.early_rows, *work.deferred_rows) for work in classes.works), strict=True
        )
    )
    every = [
        *([_all_gather(classes, early)] if any(early) else []),
        *_head_messages(classes, traffic),
        *[_all_gather(classes, deferred) for deferred in (first, second) if any(deferred)],
        *[gradients] * traffic.layers,
        rows,
        *[new] * traffic.buckets,
    ]
    return StepMessages(traffic, every, has_rows=(any(early), any(first), any(second))).copy()


def _head_messages(classes: RankClasses, traffic: StepTraffic) -> list[Message]:
    """The chunks of the lm_head's gradient, or what is exchanged in its place."""
    if traffic.lm_head == "vocab-parallel":
        own = [traffic.token_bytes * work.tokens for work in classes.works]
        hidden = _all_gather(classes, own)
        every = sum(count * each for count, each in zip(classes.counts, own, strict=True))
        tokens = every / traffic.token_bytes
        sums = _all_gather(classes, [2 * SUM_BYTES * tokens] * len(own))
        back = classes.exchange(
            [every - each for each in own], [(classes.num_ranks - 1) * each for each in own]
        )
        return [hidden, sums, back]
    head_bytes = traffic.head_numbers / traffic.head_chunks * traffic.dense_bytes
    chunk = classes.all_reduce(
        head_bytes, hops=_all_reduce_hops(classes.num_ranks, traffic.dense_bytes)
    )
    return [chunk] * traffic.head_chunks


def _all_reduce_hops(ranks: int, dense_bytes: float) -> int:
    """Of the lm_head's sum: a pair's one message each, the ring of an all-reduce in float32, or
    the two of an exchange (`yoked.train.sync.exchange`).
    """
    if ranks <= 2:
        return 1
    return 2 * (ranks - 1) if dense_bytes == DENSE_BYTES["exact"] else 2


def _all_gather(classes: RankClasses, own_bytes: list[float]) -> Message:
    """Every rank's rows to all others. own_bytes: by class of rank."""
    every = sum(count * each for count, each in zip(classes.counts, own_bytes, strict=True))
    return classes.exchange(
        [(classes.num_ranks - 1) * each for each in own_bytes], [every - each for each in own_bytes]
    )
