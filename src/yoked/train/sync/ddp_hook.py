"""DistributedDataParallel's gradients reduced in our payload dtypes, weighted by tokens.

DDP hands over a bucket of gradients as backward completes it, and takes back a future of its
mean. Between the two a bucket passes through two threads of a state, one for each stage of its
reduction that may block, so that backward goes on meanwhile and every process group sees its
collectives in the order of the buckets, on all ranks alike.

Where NCCL serves the bucket's device nothing blocks, and a stream does what the threads do.
Where the bucket is on a GPU and the group is Gloo's, it goes through host memory.
"""

# DDP looks at the annotations of a hook, which must be the types themselves: none from __future__.

import ctypes
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.futures import Future

from yoked.errors import UsageError, YokedError
from yoked.ranks.meeting import meet
from yoked.train.comm.communicator import Communicator
from yoked.train.sync.codecs import CODECS
from yoked.train.sync.compressed_reduce import ErrorFeedback, PairReduce, ShardedReduce

POWERSGD = "powersgd"
NAME = "the mean of a bucket of gradients"
# DDP forms its buckets anew after the first step, and PowerSGD remembers them by number.
POWERSGD_FROM_STEP = 2
_UNTOLD = -1  # a rank without data tells 0


class Weights:
    """What each rank's gradient counts for in one step. Traffic a rank: 8(N-1) bytes."""

    def __init__(self, told: int, comm: Communicator, device: torch.device) -> None:
        """told: this rank's tokens, or _UNTOLD."""
        self.own = 1 if told == _UNTOLD else told
        # (N, 1) once the work is done.
        self._by_rank, self._work = comm.all_gather(torch.tensor([told], device=device), NAME)
        self._total: int | None = None

    def total(self) -> int:
        """The sum over ranks; waits for them. Raises UsageError when it cannot be meant."""
        if self._total is not None:
            return self._total
        self._work.wait()
        by_rank: list[int] = self._by_rank[:, 0].tolist()
        silent = [str(rank) for rank, tokens in enumerate(by_rank) if tokens == _UNTOLD]
        if len(silent) == len(by_rank):
            by_rank = [1] * len(by_rank)  # nobody told
        elif silent:
            who = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(silent)}"
            raise UsageError(
                f"{who} did not say how many tokens this step has there, and others did",
                fix="call state.tokens(n) before backward on every rank, or on none",
            )
        if sum(by_rank) == 0:
            raise UsageError(
                "no rank has a token in this step, so its gradient has no mean",
                fix="skip the step on all ranks",
            )
        self._total = sum(by_rank)
        return self._total


@dataclass
class BucketState:
    """What a bucket keeps from step to step, as long as it holds the same parameters.

    weight: what this rank's gradient counted for when something was lost of it.
    """

    parameters: tuple[int, ...]
    feedback: ErrorFeedback
    weight: int


class CompressionState:
    """How DDP's gradients travel: one for each model, made on all ranks after the process group.

    payload: fp32, bf16, int8, int4, or powersgd (PyTorch's own PowerSGD, for comparison, of
    matrix rank powersgd_rank). group: DDP's process_group, if it was given one.
    Memory: 4 bytes a parameter, with N > 2 ranks 4/N more; fp32 keeps nothing.

    Collective: all ranks make it, with the same arguments. Raises UsageError.
    """

    def __init__(
        self,
        payload: str = "int8",
        *,
        powersgd_rank: int = 1,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        _check(payload)
        self.payload = payload
        self.comms = _communicators(group, payload)
        _hold_for_good(self.comms)
        self._told = _UNTOLD
        self._weights: Weights | None = None
        if payload == POWERSGD:
            self._average = _PowerSGD(self.comms.start, powersgd_rank).average
        else:
            self._average = _Coded(payload, self.comms).average

    def tokens(self, count: SupportsIndex) -> None:
        """The next backward's gradient is a mean over so many tokens (or rows) of this rank.

        Called before it, on every rank or on none; 0 where a rank has no data. Raises UsageError.
        """
        try:
            told = operator.index(count)
        except TypeError:
            told = _UNTOLD
        if told < 0:
            raise UsageError(
                f"state.tokens({count!r}) is no number of tokens",
                fix="give a whole number, 0 where this rank has no data in this step",
            )
        self._told = told

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """The mean of a bucket over ranks, weighted by their tokens.

        Raises RuntimeError, here or where the future is waited for.
        """
        buffer, comm = bucket.buffer(), self.comms.start
        try:
            if buffer.layout != torch.strided:
                raise UsageError(
                    "yoked's hook does not take sparse gradients",
                    fix="nn.Embedding(..., sparse=False)",
                )
            if bucket.index() == 0 or self._weights is None:
                self._weights = Weights(self._told, comm, _wire_device(buffer, comm))
                self._told = _UNTOLD
            if comm.world_size == 1:
                self._weights.total()  # what cannot be meant is refused, as with several ranks
                return _done(buffer)
            return self._average(bucket, self._weights)
        except YokedError as error:
            # What DDP makes of an error that comes by the future.
            raise RuntimeError(str(error)) from error


def compression_hook(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    """The hook: `model.register_comm_hook(CompressionState(payload="int8"), compression_hook)`.

    Collective. Traffic a rank and step: 2(N-1)/N times the encoded gradients, and 8(N-1) bytes.
    """
    return state.average(bucket)


def _check(payload: str) -> None:
    if payload not in (*CODECS, POWERSGD):
        raise UsageError(
            f"CompressionState knows no payload {payload!r}",
            fix=f"choose among {', '.join([*CODECS, POWERSGD])}",
        )
    if not dist.is_initialized():
        raise UsageError(
            "CompressionState needs torch.distributed's process group, which is not there yet",
            fix="call torch.distributed.init_process_group() before CompressionState()",
        )


class HookCommunicators(NamedTuple):
    """Of the same ranks, one for each stage that sends: they run in different threads."""

    start: Communicator
    combine: Communicator


def _communicators(group: dist.ProcessGroup | None, payload: str) -> HookCommunicators:
    first = group or dist.group.WORLD
    assert first is not None, "the process group is there"
    backends = dist.get_backend_config(first)
    start = Communicator(first if "cuda:nccl" in backends else None, group=group)
    # Between two ranks `combine` sends nothing, PowerSGD has no stages, and a stream needs no
    # second group.
    if start.world_size <= 2 or payload == POWERSGD or "cpu:" not in backends:
        return HookCommunicators(start, start)
    # A new group would take the default deadline, half an hour, whatever this one's is.
    options = first._get_backend(torch.device("cpu")).options  # noqa: SLF001 - no public way
    second = meet(
        lambda: dist.new_group(
            dist.get_process_group_ranks(first),
            timeout=options._timeout,  # noqa: SLF001
            backend="gloo",
            use_local_synchronization=group is not None,  # ranks outside a subgroup do not call it
        ),
        "the hook's second",
    )
    return HookCommunicators(start, Communicator(group=second))


def _hold_for_good(comms: HookCommunicators) -> None:
    """Never free process groups: their sockets and threads end with the process.

    A thread of Gloo's that drops a collective's tensors wants the interpreter's lock. A DDP model
    that is freed frees its group, which joins those threads with the lock held: now and then a
    program hung at its end (torch 2.13).
    """
    for group in {comm.group or dist.group.WORLD for comm in comms}:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _wire_device(tensor: Tensor, comm: Communicator) -> torch.device:
    """Where a group can take it from."""
    direct = tensor.device.type == "cuda" and comm.device_group is not None
    return tensor.device if direct else torch.device("cpu")


def _done(tensor: Tensor) -> Future[Tensor]:
    future = _future(tensor.device)
    future.set_result(tensor)
    return future


def _future(device: torch.device) -> Future[Tensor]:
    # On a GPU the future makes who waits for it wait for the stream that set it.
    return Future(devices=[device]) if device.type == "cuda" else Future()


class _Coded:
    """Buckets by one of our codecs."""

    def __init__(self, payload: str, comms: HookCommunicators) -> None:
        self.codec, self.comms = CODECS[payload], comms
        self._kept: dict[int, BucketState] = {}
        self._stream: torch.cuda.Stream | None = None
        # One thread each: collectives start in the order of the buckets.
        self._combines = ThreadPoolExecutor(1, thread_name_prefix="yoked-combine")
        self._finishes = ThreadPoolExecutor(1, thread_name_prefix="yoked-finish")

    def average(self, bucket: GradBucket, weights: Weights) -> Future[Tensor]:
        buffer = bucket.buffer()
        device = _wire_device(buffer, self.comms.start)
        if device.type == "cuda":
            return self._on_stream(bucket, weights)
        reduce = self._start(bucket, weights, device)
        outcome: Future[Any] = _future(buffer.device)
        # Codecs write float32 in host memory.
        in_place = buffer.device.type == "cpu" and buffer.dtype == torch.float32
        mean = buffer if in_place else torch.empty(buffer.shape)

        def finish() -> None:
            reduce.finish(mean)
            if not in_place:
                buffer.copy_(mean)
            outcome.set_result(buffer)

        def combine() -> None:
            reduce.combine(weights.total())
            self._finishes.submit(_guarded, finish, outcome)

        self._combines.submit(_guarded, combine, outcome)
        return outcome.then(_tensor_or_error)

    def _on_stream(self, bucket: GradBucket, weights: Weights) -> Future[Tensor]:
        buffer = bucket.buffer()
        if self._stream is None:
            self._stream = torch.cuda.Stream(buffer.device)  # type: ignore[no-untyped-call]
        # Backward's stream may still be filling the bucket.
        self._stream.wait_stream(torch.cuda.current_stream(buffer.device))
        with torch.cuda.stream(self._stream):
            reduce = self._start(bucket, weights, buffer.device)
            reduce.combine(weights.total())
            mean = torch.empty(buffer.shape, device=buffer.device)
            reduce.finish(mean)
            buffer.copy_(mean)
            return _done(buffer)

    def _start(
        self, bucket: GradBucket, weights: Weights, device: torch.device
    ) -> PairReduce | ShardedReduce:
        values = bucket.buffer().to(device, torch.float32)
        if weights.own == 0:
            # The mean over no tokens may well be NaN.
            values = torch.zeros_like(values)
        elif weights.own != 1:
            values = values * weights.own
        # A stream sees its collectives in one order, and needs no second group.
        start, combine = self.comms
        feedback = self._feedback(bucket, values, weights.own)
        reduce: PairReduce | ShardedReduce = PairReduce(self.codec, start, feedback, NAME)
        if start.world_size > 2:
            second = start if device.type == "cuda" else combine
            reduce = ShardedReduce(self.codec, start, feedback, NAME, second)
        reduce.start(values)
        return reduce

    def _feedback(self, bucket: GradBucket, values: Tensor, weight: int) -> ErrorFeedback:
        """What the bucket's last step lost, counting for as much as this step's gradient does;
        nothing when DDP has put other parameters into it.
        """
        parameters = tuple(id(parameter) for parameter in bucket.parameters())
        kept = self._kept.get(bucket.index())
        if kept is None or kept.parameters != parameters:
            kept = BucketState(
                parameters, ErrorFeedback.fresh(self.codec, values, self.comms.start), weight
            )
            self._kept[bucket.index()] = kept
        own = kept.feedback.own
        if weight == 0:
            # What was lost waits until this rank counts again.
            return ErrorFeedback(None, kept.feedback.mean)
        if own is not None and weight != kept.weight:
            own *= weight / kept.weight if kept.weight else 0.0  # 0 before: nothing was lost yet
        kept.weight = weight
        return kept.feedback


def _guarded(stage: Callable[[], None], outcome: Future[Any]) -> None:
    """Run a stage; what it raises becomes the outcome."""
    try:
        stage()
    except Exception as error:  # noqa: BLE001 - backward would wait for ever
        outcome.set_result(error)


def _tensor_or_error(outcome: Future[Any]) -> Tensor:
    # Raised here it reaches who waits for the bucket; DDP would take Future.set_exception's
    # for the hook's result.
    result = outcome.value()
    if isinstance(result, Exception):
        raise result
    assert isinstance(result, Tensor), type(result)
    return result


class _PowerSGD:
    """Buckets by PyTorch's PowerSGD hook (Vogels et al. 2019), weighted beforehand.

    Its collectives are started by callbacks, whose order on Gloo may differ between ranks, so
    there one bucket waits for the other.
    """

    def __init__(self, comm: Communicator, matrix_rank: int) -> None:
        if matrix_rank < 1:
            raise UsageError(
                f"powersgd_rank={matrix_rank} is no rank of a matrix", fix="give 1, 2 or 4"
            )
        self.comm = comm
        self._state = powersgd.PowerSGDState(
            comm.group,
            matrix_approximation_rank=matrix_rank,
            start_powerSGD_iter=POWERSGD_FROM_STEP,
        )

    def average(self, bucket: GradBucket, weights: Weights) -> Future[Tensor]:
        total, buffer = weights.total(), bucket.buffer()
        # PowerSGD divides by the number of ranks.
        factor = weights.own * self.comm.world_size / total
        if weights.own == 0:
            buffer.zero_()  # NaN times a factor of 0 stays NaN
        elif factor != 1:
            buffer.mul_(factor)
        future: Future[Tensor] = powersgd.powerSGD_hook(self._state, bucket)
        on_gpu = _wire_device(buffer, self.comm).type == "cuda"
        return future if on_gpu else _done(future.wait())
