"""Every step's gradient is this step's sum over ranks, as one process would have it.

In which number format it travels is the codec's matter (`codecs`).

What is learned does not depend on how many ranks took part: the gradient of a step is the sum of
the ranks' (each already divided by the step's tokens). It leaves while it is being made: the
lm_head's chunk by chunk, each layer's matrices as soon as backward is through with them
(`matrix_reducer`), rows of the embedding tables in buckets (`row_reduce`). The new matrices are
waited for only when the next forward pass comes to the layers. `yoked.costmodel.schedule` draws
what hides behind what in a step of several micro-batches.

    forward | lm_head        | layers backward | Muon (own)      | AdamW        | forward
    rows ->   head chunks ->   rows, matrices -> own matrices ->    (arriving)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from yoked.costmodel.work import rows_compression
from yoked.errors import UsageError
from yoked.train.comm.communicator import Communicator, Work
from yoked.train.model.cross_entropy import grad_chunk_edges
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.param_buffers import ParamBuffers, ReplicatedGrads, Update
from yoked.train.step_batch import StepBatch
from yoked.train.sync.codecs import CODECS, Codec
from yoked.train.sync.dense_reduce import dense_all_reduce
from yoked.train.sync.matrix_reducer import CollectiveReducer, MatrixReducer
from yoked.train.sync.row_reduce import EmbeddingGradReducer

HEAD_GRADIENT = "the lm_head's gradient"


class SameStepSync:
    """Sums gradients step by step; collective: all ranks call in the same order.

    codec: of gradients and updates; None: they travel as they are. sums_head: whether the lm_head's
    gradient is summed; vocab-parallel, each rank has its part of the sum already.
    """

    def __init__(
        self,
        comm: Communicator,
        buffers: ParamBuffers,
        codec: Codec | None = None,
        *,
        sums_head: bool = True,
    ) -> None:
        self.comm, self.buffers = comm, buffers
        self.matrices = self._reducer(codec)
        width = buffers.head_grad.size(1)
        edges = grad_chunk_edges(buffers.head_grad.size(0)) if sums_head else []
        chunks = [slice(a * width, b * width) for a, b in edges]  # rows a to b of the flat gradient
        flat = buffers.head_grad.view(-1)
        self.head = dense_all_reduce(comm, flat, chunks, codec, HEAD_GRADIENT)
        self.rows = EmbeddingGradReducer(
            comm,
            buffers.table_widths,
            buffers.model.config.padded_vocab_size,
            None if codec is None else rows_codec(codec, buffers.table_widths.values()),
            buffers.model.tables_device,
        )
        self._scalars: Work | None = None
        self._all_done: Work | None = None
        self._micro_batches = self._done = self._chunks_sent = 0
        self._unsent = dict.fromkeys(self.matrices.names)  # a set in the order of sending
        self._before: Tensor | None = None
        # A tensor's ordinary hook would run before backward has added to `.grad`.
        self._hooks = [
            buffers.parameters[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, name=name: self._grad_accumulated(name)
            )
            for name in (self.matrices.names if comm.active else ())
        ]

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # --- a step, in this order

    def begin_step(self, batch: StepBatch) -> list[RowGrads]:
        """Post the receives. Returns where the tables' gradients of each micro-batch go."""
        self._micro_batches = len(batch.micro_batches)
        self._done = self._chunks_sent = 0
        self._unsent = dict.fromkeys(self.matrices.names)
        row_grads = self.rows.begin_step(batch)
        if self.comm.active:
            self.matrices.post_receives()
            self.head.post_receives()
            self._send_rows()  # buckets in which this rank has no micro-batch
        return row_grads

    def head_grad_ready(self, chunk: int) -> None:
        """A chunk of this rank's lm_head gradient is complete: send it while backward goes on."""
        if not self.comm.active:
            return
        self.head.reduce_chunk(chunk)
        self._chunks_sent = chunk + 1
        self._send_rows()

    def micro_batch_done(self, index: int) -> None:
        """A micro-batch has gone back: the table rows that are complete with it leave."""
        self._done = index + 1
        if self.comm.active:
            self._send_rows()

    def _send_rows(self) -> None:
        """All but the last bucket; behind the lm_head's gradient all but the first wait for it."""
        head_sent = self._chunks_sent == len(self.head.chunks)
        self.rows.send(self._done, limit=-1 if head_sent else 1)

    def _grad_accumulated(self, name: str) -> None:
        """Backward is through with a matrix; in the last micro-batch its gradient is complete."""
        if self._done >= self._micro_batches - 1 and name in self._unsent:
            del self._unsent[name]
            self.matrices.reduce_grad(name)

    def backward_done(self) -> None:
        """All gradients of this rank are complete: what has not left yet leaves."""
        if not self.comm.active:
            self._backward_is_through()
            return
        self.wait_parameters()  # a rank without rows had no forward pass that waited
        self._all_done = self.comm.barrier_async()
        self._send_the_rest()
        self._backward_is_through()

    def _send_the_rest(self) -> None:
        """Send the gradients that have not left yet."""
        # A rank without rows has sent nothing yet: the others wait for its zeros.
        self._send_head()
        self._send_matrices()
        self._send_scalars_and_rows()

    def _send_head(self) -> None:
        for chunk in range(self._chunks_sent, len(self.head.chunks)):
            self.head_grad_ready(chunk)

    def _send_matrices(self) -> None:
        for name in list(self._unsent):
            self._grad_accumulated(name)

    def _send_scalars_and_rows(self) -> None:
        self._scalars = self.comm.all_reduce(self.buffers.scalar_grads, "scalar gradients")
        self.rows.send(self._done)  # the last bucket, here on all ranks: NCCL pairs by order

    def _backward_is_through(self) -> None:
        # It reads the old ones no more.
        self.matrices.post_parameter_receives()

    def early_updates(self) -> Iterator[Update]:
        """None: all gradients are this step's."""
        return iter(())

    def updates(self) -> Iterator[Update]:
        """This rank's stacks of matrices, each once its gradients are summed."""
        self._wait_for_all()
        for bucket in self.matrices.own:
            if self.comm.active:
                self.matrices.wait_reduced(bucket)
            due = self.buffers.update_of(bucket)
            # Lossy: the difference to it is sent.
            self._before = due.matrices.clone() if self.matrices.sends_differences else None
            yield due

    def _wait_for_all(self) -> None:
        """Tells waiting for the slowest rank from waiting for bytes."""
        if self._all_done is not None:
            self._all_done.wait()
            self._all_done = None

    def publish(self, due: Update) -> None:
        """A stack of this rank's is updated: send it while the rest of the optimizer works."""
        if self.comm.active:
            self.matrices.publish(due, self._before)

    def head_gradient(self) -> Tensor:
        """The lm_head's, the same bytes on all ranks."""
        if self.comm.active:
            self.head.wait()
        return self.buffers.head_grad

    def replicated(self) -> ReplicatedGrads:
        """The scalars' and the tables' gradients, the same bytes on all ranks."""
        if self.comm.active:
            assert self._scalars is not None, "backward_done() comes first"
            self.matrices.wait_sent()  # the next step begins by clearing the gradients
            self._scalars.wait()
            self.matrices.publish_all()  # NCCL's broadcasts; messages left in publish()
        rows = self.rows.wait()
        return ReplicatedGrads(self.buffers.scalar_grads, rows)

    def wait_parameters(self) -> None:
        """Until this rank's matrices are those of the last step, on all ranks the same bytes."""
        if self.comm.active:
            self.matrices.wait_parameters()

    def drain(self) -> None:
        """The same, and until nothing of the last step is in flight: parameters may change."""
        if self.comm.active:
            self.matrices.drain()

    def _reducer(self, codec: Codec | None) -> MatrixReducer:
        if self.comm.device_group is None:
            return MatrixReducer(self.comm, self.buffers, codec)
        if codec is not None:
            raise for_gloo(codec.name)
        return CollectiveReducer(self.comm, self.buffers)


def rows_codec(codec: Codec, widths: Iterable[int]) -> Codec:
    """That of the tables' rows, beside that of the other gradients. widths: of the tables."""
    return CODECS[rows_compression(codec.name, widths)]


def for_gloo(sync: str) -> UsageError:
    """The error of a sync that NCCL does not have."""
    return UsageError(
        f"--sync {sync} is for Gloo; every rank here has a GPU, and uses NCCL",
        fix="--sync exact",
    )
