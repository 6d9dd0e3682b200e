"""Every message of a step: who sends it to whom, and its time on the network."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from yoked.costmodel.work import DENSE_BYTES, Network, RankWork, StepTraffic

# One float32 sum of a token, over a part of the vocabulary.
SUM_BYTES = 4.0
# Rows of the lm_head's gradient that are sent at once, on all ranks alike.
GRAD_CHUNK_COLUMNS = 2048


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """Bytes that each rank of a ring all-reduce sends: 2(N-1)/N of the payload.

    Source: Thakur et al. 2005.
    """
    return 2 * (ranks - 1) / ranks * payload_bytes


@dataclass
class Send:
    """The part of a message that ranks of one class send. A collective is one Send of all classes.

    classes: whose ranks send it. transfer_s: where nothing else is on the network.
    latency_s: from the moment when it is ready to its first byte.
    egress, ingress: bytes through the port of each host.
    bytes_by_class: that a rank of each class sends and receives of it; received_by: those that get
    some. senders_left: classes that have not computed their part yet.
    """

    classes: frozenset[int]
    transfer_s: float
    latency_s: float
    egress: dict[str, float]
    ingress: dict[str, float]
    bytes_by_class: tuple[float, ...]
    received_by: frozenset[int]
    senders_left: int
    remaining_s: float
    ready_s: float = math.inf
    end_s: float = math.inf


@dataclass(frozen=True)
class Message:
    """A message of one step from every rank to others. sends: of each rank class.

    A rank receives, and waits for, those sends whose `received_by` has its class.
    """

    sends: tuple[Send, ...]

    def copy(self) -> Message:
        """The same message of another step, with nothing sent yet."""
        fresh = {id(send): dataclasses.replace(send) for send in self.sends}
        return Message(tuple(fresh[id(send)] for send in self.sends))


class RankClasses:
    """Ranks grouped into classes of identical ranks, each simulated once, and their hosts."""

    def __init__(self, works: Sequence[RankWork], network: Network) -> None:
        self.network, self.num_ranks = network, len(works)
        ranks_on_host = Counter(work.host for work in works)
        numbers: dict[object, int] = {}
        self.works: list[RankWork] = []
        self.counts: list[int] = []  # ranks of each class
        self.hosts: dict[str, Counter[int]] = {}  # by host: its ranks of each class
        for work in works:
            without_host = dataclasses.replace(work, host="")
            # Ranks with equal work behave alike if equally many of them share an equally fast port.
            key = (without_host, network.ports.get(work.host), ranks_on_host[work.host])
            number = numbers.setdefault(key, len(numbers))
            if number == len(self.works):
                self.works.append(work)
                self.counts.append(0)
            self.counts[number] += 1
            self.hosts.setdefault(work.host, Counter())[number] += 1

    def all_reduce(self, payload_bytes: float, *, hops: int) -> Message:
        """A ring all-reduce: its bytes move once all ranks have called it. The ranks of a host are
        neighbours: one of them uses the port.

        hops: messages from rank to rank, one after the other.
        """
        rank_bytes = ring_bytes(payload_bytes, self.num_ranks)
        by_host = dict.fromkeys(self.hosts, rank_bytes if len(self.hosts) > 1 else 0.0)
        numbers = frozenset(range(len(self.works)))
        send = self._send(numbers, [2 * rank_bytes] * len(numbers), by_host, by_host, numbers, hops)
        return Message((send,) * len(numbers))

    def exchange(self, pair_bytes: Callable[[int, int], float]) -> Message:
        """A message from every rank to every other, sent as soon as its sender has it.

        pair_bytes: from a rank of one class to a rank of another, or of the same.
        """
        return Message(
            tuple(self._send_of(number, pair_bytes) for number in range(len(self.works)))
        )

    def _send_of(self, sender: int, pair_bytes: Callable[[int, int], float]) -> Send:
        each = [pair_bytes(sender, receiver) for receiver in range(len(self.works))]
        by_class = [self._ranks_but_one(sender, other) * each[other] for other in range(len(each))]
        receivers = frozenset(number for number, received in enumerate(by_class) if received)
        sent = sum(
            self._ranks_but_one(receiver, sender) * size for receiver, size in enumerate(each)
        )
        by_class[sender] += sent
        egress, ingress = dict.fromkeys(self.hosts, 0.0), dict.fromkeys(self.hosts, 0.0)
        for host, counts in self.hosts.items():
            for receiver, size in enumerate(each):  # only what is for other hosts uses the port
                elsewhere = self.counts[receiver] - counts[receiver]
                egress[host] += counts[sender] * elsewhere * size
                senders_elsewhere = self.counts[sender] - counts[sender]
                ingress[host] += counts[receiver] * senders_elsewhere * size
        return self._send(frozenset({sender}), by_class, egress, ingress, receivers)

    def _ranks_but_one(self, number: int, other: int) -> int:
        """Ranks of a class, without that of `other` itself: nobody sends to himself."""
        return self.counts[number] - (number == other)

    def _send(
        self,
        numbers: frozenset[int],
        bytes_by_class: Sequence[float],
        egress: dict[str, float],
        ingress: dict[str, float],
        received_by: frozenset[int],
        hops: int = 1,
    ) -> Send:
        transfer_s = max(bytes_by_class) / self.network.local_bytes_per_s
        if len(self.hosts) > 1:
            ports = self.network.ports
            # A port sends and receives at once: the slowest direction of any port decides.
            transfer_s = max(
                max(
                    egress[host] / ports[host].out_bytes_per_s,
                    ingress[host] / ports[host].in_bytes_per_s,
                )
                for host in self.hosts
            )
        return Send(
            classes=numbers,
            transfer_s=transfer_s,
            latency_s=hops * self.network.latency_s,
            egress=egress,
            ingress=ingress,
            bytes_by_class=tuple(bytes_by_class),
            received_by=received_by,
            senders_left=len(numbers),
            remaining_s=transfer_s,
        )


class StepMessages(NamedTuple):
    """The messages of one step, in the order in which a rank sends them; lists may be empty.

    early: embedding rows of the early micro-batches; deferred_first, deferred_second: of both parts
    of the deferred ones; rows: of the last one. head: chunks of the lm_head's gradient.
    vocab_parallel: hidden states, sums, gradients of the hidden states. layers: gradients of the
    matrices. done: all ranks wait for the slowest. updates: new matrices.
    """

    early: list[Message]
    head: list[Message]
    vocab_parallel: list[Message]
    deferred_first: list[Message]
    deferred_second: list[Message]
    layers: list[Message]
    rows: list[Message]
    done: list[Message]
    updates: list[Message]

    def copy(self) -> StepMessages:
        """The same messages for another step."""
        return StepMessages(*([message.copy() for message in group] for group in self))


def step_messages(classes: RankClasses, traffic: StepTraffic) -> StepMessages:
    """All messages of a step."""
    dense = traffic.dense_bytes
    layer = traffic.matrix_numbers / traffic.layers * dense  # bytes; so are bucket and row
    bucket = traffic.matrix_numbers / traffic.buckets * dense
    row = traffic.embedding_row_numbers * traffic.row_bytes
    owned = [work.owned_fraction for work in classes.works]
    # A rank sends what others own, and receives from each other rank what it owns.
    gradients = classes.exchange(lambda _, receiver: owned[receiver] * layer)
    # The reverse: an owner sends its new matrices to each other rank.
    updates = classes.exchange(lambda sender, _: owned[sender] * bucket)

    hops = 2 * (classes.num_ranks - 1)
    own_rows = [
        work.early_rows + sum(work.deferred_rows) + work.table_rows for work in classes.works
    ]
    all_rows = sum(count * own for count, own in zip(classes.counts, own_rows, strict=True))
    whole = whole_tables_are_less(all_rows, traffic.table_rows, traffic.row_bytes)

    def rows_message(counts: Iterable[float]) -> list[Message]:
        """Of these embedding rows, given by rank class; none if no rank has any."""
        if whole:
            return []
        own_bytes = [row * count for count in counts]
        return [_all_gather(classes, own_bytes)] if any(own_bytes) else []

    if whole:
        tables_bytes = traffic.table_rows * traffic.embedding_row_numbers * DENSE_BYTES["exact"]
        last_rows = [classes.all_reduce(tables_bytes, hops=hops)]
    else:
        last_rows = [_all_gather(classes, [row * work.table_rows for work in classes.works])]
    vocab_parallel = traffic.lm_head == "vocab-parallel"
    # As `yoked.train.sync.same_step` sends them: deferred rows stay behind the lm_head's gradient.
    messages = StepMessages(
        early=rows_message(work.early_rows for work in classes.works),
        head=[] if vocab_parallel else [_head_chunk(classes, traffic)] * traffic.head_chunks,
        vocab_parallel=_vocab_parallel_messages(classes, traffic) if vocab_parallel else [],
        deferred_first=rows_message(work.deferred_rows[0] for work in classes.works),
        deferred_second=rows_message(work.deferred_rows[1] for work in classes.works),
        layers=[gradients] * traffic.layers,
        rows=last_rows,
        # All wait for the slowest before they wait for its bytes (`SameStepSync.backward_done`).
        done=[classes.all_reduce(0.0, hops=hops)],
        updates=[updates] * traffic.buckets,
    )
    # One object stands for several messages; each of the copy has a state of its own.
    return messages.copy()


def whole_tables_are_less(total_rows: float, table_rows: float, row_bytes: float) -> bool:
    """Whether an all-reduce of whole tables carries less than all ranks' rows to all others.

    Of N ranks 2 (N - 1) tables in float32 against (N - 1) times total_rows, those of all ranks.
    row_bytes: of a number of a row.
    """
    return total_rows * row_bytes > 2 * table_rows * DENSE_BYTES["exact"]


def _vocab_parallel_messages(classes: RankClasses, traffic: StepTraffic) -> list[Message]:
    """Hidden states, sums over the parts, and gradients of the hidden states."""
    own = [traffic.token_bytes * work.tokens for work in classes.works]  # bytes, by class
    hidden = _all_gather(classes, own)
    total = sum(count * each for count, each in zip(classes.counts, own, strict=True))
    tokens = total / traffic.token_bytes
    # For each token: the sum of the part's exponentials, and the target's logit.
    sums = _all_gather(classes, [2 * SUM_BYTES * tokens] * len(own))
    # From each part of the vocabulary, each rank gets a gradient of its own tokens.
    hidden_grads = classes.exchange(lambda _, receiver: own[receiver])
    return [hidden, sums, hidden_grads]


def _head_chunk(classes: RankClasses, traffic: StepTraffic) -> Message:
    """A chunk of the lm_head's gradient."""
    head_bytes = traffic.head_numbers / traffic.head_chunks * traffic.dense_bytes
    ranks = classes.num_ranks
    if ranks <= 2:  # they send each other what they have, and both add
        return _all_gather(classes, [head_bytes] * len(classes.works))
    # A ring for float32, the two phases of a `ShardedReduce` for compressed gradients.
    hops = 2 * (ranks - 1) if traffic.dense_bytes == DENSE_BYTES["exact"] else 2
    return classes.all_reduce(head_bytes, hops=hops)


def _all_gather(classes: RankClasses, own_bytes: list[float]) -> Message:
    """Send every rank's own_bytes, given by rank class, to all others."""
    return classes.exchange(lambda sender, _: own_bytes[sender])
