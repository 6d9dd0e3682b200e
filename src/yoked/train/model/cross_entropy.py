"""lm_head, softcap and cross-entropy in one pass that never holds all logits.

The logits of a chunk of rows are made block by block over the vocabulary. While a block is in
the cache it becomes u = exp(15 t)(1 - t^2), t = tanh(logit / 15), and its row sums of exp(15 t)
are added to Z. Because the softcap bounds the exponent, no running maximum is needed, and
because 1/Z is one number a row, the gradient of the hidden states can be summed before Z is
known: dx = (u W) / Z. The weight's gradient follows when Z is known, u^T (x / Z). What the
target contributes is one row each. So three matrix products and one elementwise pass do all.

Shape legend: N tokens of a micro-batch, R tokens of a chunk, C n_embd, V padded vocabulary,
W columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from yoked.train import kernels
from yoked.train.model.gpt import SOFTCAP
from yoked.train.model.linear import MatmulBackends, addmm_nt_, mm_nt
from yoked.train.model.precision import wide, widen

IGNORED = -1
CHUNK_TOKENS = 1024
DEVICE_CHUNK_TOKENS = 4096
# What is sent at once of the weight's gradient; the same on all ranks, however they compute.
GRAD_CHUNK_COLUMNS = 2048
# Computed at once by a thread in float32: 2 MB of logits. Of more the caches keep less until they
# are used (`benchmarks/head_blocks`).
THREAD_COLUMNS = 512


@dataclass(frozen=True)
class LossAndGrads:
    """loss_sum: summed cross-entropy of the counted tokens, 0-D fp64 in host memory.

    hidden_grad: (N, C) in the hidden states' dtype, or None in evaluation.
    token_nats: (N,) fp32, zero where the target is ignored.
    """

    loss_sum: Tensor
    token_nats: Tensor
    hidden_grad: Tensor | None


class FusedLinearCrossEntropy:
    """The loss of hidden states under one lm_head; keeps its work buffers between calls."""

    def __init__(self, vocab_size: int, backends: MatmulBackends | None = None) -> None:
        self.vocab_size = vocab_size
        self.backends = backends or MatmulBackends()
        self._logit_blocks: Tensor | None = None

    def loss(
        self,
        hidden_NC: Tensor,
        weight_VC: Tensor,
        targets_N: Tensor,
        *,
        grad_scale: float | None = None,
        weight_grad_VC: Tensor | None = None,
        on_grad_chunk: Callable[[int], None] | None = None,
    ) -> LossAndGrads:
        """Cross-entropy of softcapped logits; with grad_scale, its gradients too.

        hidden_NC, weight_VC: one dtype. targets_N: int64, -1 where a token does not count.
        grad_scale: the factor of every token's loss in the objective (1 / tokens of the step);
        weight_grad_VC: (V, C) fp32, to which the weight's gradient is added. on_piece: called
        with the number of each of its pieces (`grad_chunk_edges`) when nothing more is added to it.
        """
        wants_grad = grad_scale is not None
        assert wants_grad == (weight_grad_VC is not None), "grad_scale and weight_grad go together"
        tokens = hidden_NC.size(0)
        token_nats = hidden_NC.new_zeros(tokens, dtype=wide(hidden_NC.dtype))
        hidden_grad = torch.empty_like(hidden_NC) if wants_grad else None
        chunk = CHUNK_TOKENS if hidden_NC.device.type == "cpu" else DEVICE_CHUNK_TOKENS
        for start in range(0, tokens, chunk):
            rows = slice(start, min(start + chunk, tokens))
            part = Chunk(self, hidden_NC[rows], weight_VC, targets_N[rows].contiguous())
            part.forward(wants_grad)
            token_nats[rows] = part.token_nats()
            if grad_scale is not None and weight_grad_VC is not None and hidden_grad is not None:
                last = rows.stop == tokens
                hidden_grad[rows] = part.hidden_gradient(grad_scale).to(hidden_NC.dtype)
                part.weight_gradient(grad_scale, weight_grad_VC, on_grad_chunk if last else None)
        # In host memory: Metal has no float64.
        return LossAndGrads(token_nats.cpu().double().sum(), token_nats, hidden_grad)

    def logit_blocks(self, rows: int, columns: int, like: Tensor) -> list[Tensor]:
        """Views (R, W) of one buffer, one for each block of the padded vocabulary."""
        vocab = like.size(0)
        needed = rows * vocab
        kept = self._logit_blocks
        alike = kept is not None and (kept.dtype, kept.device) == (like.dtype, like.device)
        if not alike or kept is None or kept.numel() < needed:
            self._logit_blocks = kept = torch.empty(needed, dtype=like.dtype, device=like.device)
        return [kept[rows * a : rows * b].view(rows, b - a) for a, b in _edges(vocab, columns)]


def block_columns(device: torch.device, dtype: torch.dtype) -> int:
    """Columns that are computed at once; a chunk of the gradient has a whole number of blocks.

    The more threads share a block's rows, the more columns it has: a thread's part stays as large.
    In bfloat16, half as large itself, the products gain more by width than the caches do without.
    """
    if device.type != "cpu" or dtype == torch.bfloat16:
        return GRAD_CHUNK_COLUMNS
    # The largest power of two that is not above the number of threads.
    threads: int = 1 << (torch.get_num_threads().bit_length() - 1)
    return min(GRAD_CHUNK_COLUMNS, THREAD_COLUMNS * threads)


def grad_chunk_edges(vocab: int) -> list[tuple[int, int]]:
    """First and last + 1 row of each chunk of the weight's gradient."""
    return _edges(vocab, GRAD_CHUNK_COLUMNS)


def _edges(vocab: int, columns: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(0, vocab, columns), vocab]))


def token_nats(exp_sum_R: Tensor, target_logit_R: Tensor, targets_R: Tensor) -> Tensor:
    """(R,) in the dtype of sums, which are those of the whole vocabulary."""
    nats = exp_sum_R.log() - SOFTCAP * torch.tanh(target_logit_R / SOFTCAP)
    return torch.where(targets_R == IGNORED, 0.0, nats)


class Chunk:
    """One chunk of tokens on its way through the head, or through a part of its vocabulary.

    weight_VC: the rows of the weight from `first_id` on. exp_sum, target_logit: (R,), after
    `forward` of this part; of a part they are to be those of the whole vocabulary before
    `token_nats` and the gradients.
    """

    def __init__(
        self,
        head: FusedLinearCrossEntropy,
        hidden_RC: Tensor,
        weight_VC: Tensor,
        targets_R: Tensor,
        first_id: int = 0,
    ) -> None:
        self.head, self.hidden, self.weight, self.targets = head, hidden_RC, weight_VC, targets_R
        self.first_id = first_id
        rows = hidden_RC.size(0)
        fp32 = {"dtype": wide(hidden_RC.dtype), "device": hidden_RC.device}
        self.exp_sum = torch.zeros(rows, **fp32)  # type: ignore[call-overload]
        self.target_logit = torch.zeros(rows, **fp32)  # type: ignore[call-overload]
        self._hidden_grad = torch.zeros(rows, hidden_RC.size(1), **fp32)  # type: ignore[call-overload]
        self.columns = block_columns(weight_VC.device, weight_VC.dtype)
        self._gradient_blocks: list[Tensor] = []

    def forward(self, wants_grad: bool) -> None:
        """Logits block by block, and what is summed over them."""
        backends = self.head.backends
        rows = self.hidden.size(0)
        blocks = self.head.logit_blocks(rows, self.columns, self.weight) if wants_grad else []
        for number, first in enumerate(range(0, self.weight.size(0), self.columns)):
            weight = self.weight[first : first + self.columns]
            first_id = self.first_id + first
            valid = min(self.head.vocab_size - first_id, weight.size(0))
            if wants_grad and backends.forward == "default":
                logits = torch.mm(self.hidden, weight.t(), out=blocks[number])
            else:
                logits = mm_nt(self.hidden, weight, backends.forward)
            gradient = blocks[number] if wants_grad else None
            self._softcap(logits, gradient, first_id, max(valid, 0))
            if gradient is not None:
                addmm_nt_(self._hidden_grad, gradient, weight.t(), backends.grad_input)
        self._gradient_blocks = blocks

    def _softcap(self, logits: Tensor, gradient: Tensor | None, first: int, valid: int) -> None:
        if kernels.usable(logits):
            kernels.softcap_block(
                logits, gradient, self.exp_sum, self.target_logit, self.targets, first, valid
            )
            return
        here = (self.targets >= first) & (self.targets < first + valid)
        column = torch.where(here, self.targets - first, 0)
        mine = widen(logits.gather(1, column[:, None]).squeeze(1))
        self.target_logit = torch.where(here, mine, self.target_logit)
        t = torch.tanh(widen(logits[:, :valid]) / SOFTCAP)
        e = torch.exp(SOFTCAP * t)
        self.exp_sum += e.sum(dim=1)
        if gradient is not None:
            gradient[:, :valid] = e * (1 - t * t)
            gradient[:, valid:] = 0

    def token_nats(self) -> Tensor:
        """(R,) fp32."""
        return token_nats(self.exp_sum, self.target_logit, self.targets)

    def hidden_gradient(self, grad_scale: float) -> Tensor:
        """(R, C), of this part of the vocabulary, in the dtype of sums."""
        gradient: Tensor = self._hidden_grad * self._per_row(grad_scale)
        target, slope = self._target_slope(grad_scale)
        gradient -= slope[:, None] * widen(self.weight[target])
        return gradient

    def weight_gradient(
        self,
        grad_scale: float,
        weight_grad_VC: Tensor,
        on_grad_chunk: Callable[[int], None] | None = None,
    ) -> None:
        """Add the gradient of this part of the weight."""
        target, slope = self._target_slope(grad_scale)
        scaled = (widen(self.hidden) * self._per_row(grad_scale)).to(self.hidden.dtype)
        # Targets lie anywhere: they come before the blocks, so that each is complete in its turn.
        weight_grad_VC.index_add_(0, target, widen(self.hidden) * slope[:, None], alpha=-1)
        for number, gradient in enumerate(self._gradient_blocks):
            rows = slice(number * self.columns, number * self.columns + gradient.size(1))
            addmm_nt_(
                weight_grad_VC[rows], gradient.t(), scaled.t(), self.head.backends.grad_weight
            )
            ends_grad_chunk = rows.stop % GRAD_CHUNK_COLUMNS == 0 or rows.stop == len(
                weight_grad_VC
            )
            if on_grad_chunk is not None and ends_grad_chunk:
                on_grad_chunk(rows.start // GRAD_CHUNK_COLUMNS)

    def _per_row(self, grad_scale: float) -> Tensor:
        """(R, 1): the factor of what a token's exponentials give."""
        counted = self.targets != IGNORED
        factor: Tensor = torch.where(counted, grad_scale, 0.0) / self.exp_sum
        return factor[:, None]

    def _target_slope(self, grad_scale: float) -> tuple[Tensor, Tensor]:
        """(R,) each: the target's row here, and its factor; 0 where it is in another part."""
        target = self.targets - self.first_id
        here = (target >= 0) & (target < self.weight.size(0)) & (self.targets != IGNORED)
        slope = 1 - torch.tanh(self.target_logit / SOFTCAP).square()
        return torch.where(here, target, 0), torch.where(here, grad_scale, 0.0) * slope
