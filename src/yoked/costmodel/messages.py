"""Every message of a step: when it is ready, its time on the network, and the bytes per rank."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from yoked.costmodel.work import DENSE_BYTES, Network, RankWork, StepTraffic

# One float32 sum of a token, over a part of the vocabulary.
SUM_BYTES = 4.0


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """Bytes that each rank of a ring all-reduce sends: 2(N-1)/N of the payload.

    Source: Thakur et al. 2005.
    """
    return 2 * (ranks - 1) / ranks * payload_bytes


@dataclass
class Message:
    """A message of one step, sent by all ranks at once.

    latency_s: from the moment when it is ready on all ranks to its first byte.
    bytes_by_class: sent plus received by one rank of each class.
    bytes_by_host: sent through the port of each host.
    senders_left: rank classes that have not computed their part yet.
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
    """Ranks grouped into classes of identical ranks, each simulated once, and their hosts."""

    def __init__(self, works: Sequence[RankWork], network: Network) -> None:
        self.network, self.num_ranks = network, len(works)
        ranks_on_host = Counter(work.host for work in works)
        numbers: dict[object, int] = {}
        self.works: list[RankWork] = []
        self.counts: list[int] = []
        self.hosts: dict[str, Counter[int]] = {}
        for work in works:
            without_host = dataclasses.replace(work, host="")
            key = (without_host, network.ports.get(work.host), ranks_on_host[work.host])
            number = numbers.setdefault(key, len(numbers))
            if number == len(self.works):
                self.works.append(work)
                self.counts.append(0)
            self.counts[number] += 1
            self.hosts.setdefault(work.host, Counter())[number] += 1

    def all_reduce(self, payload_bytes: float, *, hops: int) -> Message:
        """A ring all-reduce. The ranks of a host are neighbours: one of them uses the port.

        hops: messages from rank to rank, one after the other.
        """
        rank_bytes = ring_bytes(payload_bytes, self.num_ranks)
        by_host = dict.fromkeys(self.hosts, rank_bytes if len(self.hosts) > 1 else 0.0)
        by_class = [rank_bytes] * len(self.works)
        return self._message(by_class, by_class, by_host, by_host, hops)

    def exchange(self, sent: list[float], received: list[float]) -> Message:
        """A message from every rank to every other. sent, received: bytes, by rank class."""
        return self._message(
            sent, received, self._bytes_off_host(sent), self._bytes_off_host(received)
        )

    def _bytes_off_host(self, bytes_by_class: list[float]) -> dict[str, float]:
        """Bytes by host, without those between ranks of the same host."""
        found = {}
        for host, counts in self.hosts.items():
            off_host = (self.num_ranks - sum(counts.values())) / max(self.num_ranks - 1, 1)
            found[host] = off_host * sum(n * bytes_by_class[number] for number, n in counts.items())
        return found

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
    """The messages of one step, in the order in which they queue for the network.

    has_rows: which messages of embedding rows there are before the last one: that of the early
    micro-batches, and the two of the deferred ones.
    """

    def __init__(
        self, traffic: StepTraffic, in_order: list[Message], *, has_rows: tuple[bool, bool, bool]
    ) -> None:
        self.traffic, self.in_order, self.has_rows = traffic, in_order, has_rows
        rest = iter(in_order)
        has_early, *has_deferred = has_rows
        self.early = next(rest) if has_early else None
        chunks = traffic.head_chunks if traffic.lm_head == "replicated" else 0
        self.head = list(islice(rest, chunks))
        # Hidden states, sums, gradients of the hidden states.
        self.vocab_parallel = list(islice(rest, 3 if traffic.lm_head == "vocab-parallel" else 0))
        self.deferred = [next(rest) if has else None for has in has_deferred]
        self.layers = list(islice(rest, traffic.layers))
        self.rows = next(rest)
        self.updates = list(rest)

    def copy(self) -> StepMessages:
        """The same messages for another step."""
        fresh = [dataclasses.replace(message) for message in self.in_order]
        return StepMessages(self.traffic, fresh, has_rows=self.has_rows)


def step_messages(classes: RankClasses, traffic: StepTraffic) -> StepMessages:
    """All messages of a step."""
    others, dense = classes.num_ranks - 1, traffic.dense_bytes
    layer = traffic.matrix_numbers / traffic.layers * dense
    bucket = traffic.matrix_numbers / traffic.buckets * dense
    row = traffic.embedding_row_numbers * traffic.row_bytes
    owned = [work.owned_fraction for work in classes.works]
    gradients = classes.exchange(
        [(1 - fraction) * layer for fraction in owned],
        [others * fraction * layer for fraction in owned],
    )
    rows = _all_gather(classes, [row * work.table_rows for work in classes.works])
    updates = classes.exchange(
        [others * fraction * bucket for fraction in owned],
        [(1 - fraction) * bucket for fraction in owned],
    )
    early, first, second = (
        [row * count for count in counts]
        for counts in zip(
            *((work.early_rows, *work.deferred_rows) for work in classes.works), strict=True
        )
    )
    in_order = [
        *([_all_gather(classes, early)] if any(early) else []),
        *_head_messages(classes, traffic),
        *[_all_gather(classes, deferred) for deferred in (first, second) if any(deferred)],
        *[gradients] * traffic.layers,
        rows,
        *[updates] * traffic.buckets,
    ]
    return StepMessages(traffic, in_order, has_rows=(any(early), any(first), any(second))).copy()


def _head_messages(classes: RankClasses, traffic: StepTraffic) -> list[Message]:
    """The chunks of the lm_head's gradient, or the messages of a vocab-parallel lm_head."""
    if traffic.lm_head == "vocab-parallel":
        own = [traffic.token_bytes * work.tokens for work in classes.works]
        hidden = _all_gather(classes, own)
        total = sum(count * each for count, each in zip(classes.counts, own, strict=True))
        tokens = total / traffic.token_bytes
        sums = _all_gather(classes, [2 * SUM_BYTES * tokens] * len(own))
        hidden_grads = classes.exchange(
            [total - each for each in own], [(classes.num_ranks - 1) * each for each in own]
        )
        return [hidden, sums, hidden_grads]
    head_bytes = traffic.head_numbers / traffic.head_chunks * traffic.dense_bytes
    chunk = classes.all_reduce(
        head_bytes, hops=_all_reduce_hops(classes.num_ranks, traffic.dense_bytes)
    )
    return [chunk] * traffic.head_chunks


def _all_reduce_hops(ranks: int, dense_bytes: float) -> int:
    """Messages, one after the other, in which the lm_head's gradient is summed.

    Two ranks send each other one message. More use the ring all-reduce for float32, and the two
    phases of `yoked.train.sync.exchange` for compressed gradients.
    """
    if ranks <= 2:
        return 1
    return 2 * (ranks - 1) if dense_bytes == DENSE_BYTES["exact"] else 2


def _all_gather(classes: RankClasses, own_bytes: list[float]) -> Message:
    """Send every rank's own_bytes, given by rank class, to all others."""
    total = sum(count * each for count, each in zip(classes.counts, own_bytes, strict=True))
    return classes.exchange(
        [(classes.num_ranks - 1) * each for each in own_bytes], [total - each for each in own_bytes]
    )
