"""lm_head, softcap and cross-entropy with their gradients, without all the logits in memory.

A chunk of tokens takes the vocabulary block by block. While a block of logits is in the cache it
becomes u = exp(15 t)(1 - t^2), t = tanh(logit / 15), and its row sums of exp(15 t) are added to Z.
The softcap bounds the exponent, so no running maximum is needed. 1/Z is one factor a row, so the
gradient of the hidden states can be summed before Z is known, dx = (u W) / Z, and the weight's
follows once it is, dW = u^T (x / Z). A token's target adds one row to each. Three matrix products
and one elementwise pass do all.

Shape legend: N tokens of a micro-batch, R tokens of a chunk, C n_embd, V padded vocabulary (or the
part of it that a rank has), W columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from yoked.costmodel.memory import GPU_HEAD_CHUNK_TOKENS, HEAD_CHUNK_TOKENS
from yoked.costmodel.messages import GRAD_CHUNK_COLUMNS
from yoked.train import kernels
from yoked.train.model.gpt import SOFTCAP
from yoked.train.model.linear import MatmulBackends, addmm_nt_, mm_nt
from yoked.train.model.precision import wide, widen

IGNORED = -1  # a target that does not count
# Columns of a block whose softcap is one compiled pass, without float32 copies of the logits.
ALL_COLUMNS = 1 << 30
# A thread's share of a block in float32: 2 MB of logits. With more, the caches lose them before
# they are used (`benchmarks/head_blocks`).
THREAD_COLUMNS = 512


@dataclass(frozen=True)
class LossAndGrads:
    """Of one micro-batch; the weight's gradient is added where the caller said.

    loss_sum: cross-entropy of all counted tokens, in nats, 0-D fp64 in host memory.
    token_nats: (N,) fp32, zero where the target is ignored.
    hidden_grad: (N, C) in the hidden states' dtype; None in evaluation.
    """

    loss_sum: Tensor
    token_nats: Tensor
    hidden_grad: Tensor | None


class FusedLinearCrossEntropy:
    """The loss of hidden states under one lm_head; keeps its buffer of logits between calls.

    compiled: whether torch.compile makes the softcap of a block one pass, on a GPU.
    """

    def __init__(
        self,
        vocab_size: int,
        backends: MatmulBackends | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.vocab_size = vocab_size
        self.backends = backends or MatmulBackends()
        self.compiled = compiled
        self.softcap = softcap
        if compiled:
            self.softcap = torch.compile(softcap, dynamic=True, fullgraph=True)
        self._logits: Tensor | None = None

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
        grad_scale: a token's weight in the objective, 1 / tokens of the step.
        weight_grad_VC: fp32; the weight's gradient is added to it.
        on_grad_chunk: called with the number of a chunk of it (`grad_chunk_edges`) that is final.
        """
        wants_grad = grad_scale is not None
        assert wants_grad == (weight_grad_VC is not None), "grad_scale and weight_grad go together"
        tokens = hidden_NC.size(0)
        token_nats = hidden_NC.new_zeros(tokens, dtype=wide(hidden_NC.dtype))
        hidden_grad = torch.empty_like(hidden_NC) if wants_grad else None
        chunk = HEAD_CHUNK_TOKENS if hidden_NC.device.type == "cpu" else GPU_HEAD_CHUNK_TOKENS
        for start in range(0, tokens, chunk):
            rows = slice(start, min(start + chunk, tokens))
            part = Chunk(self, hidden_NC[rows], weight_VC, targets_N[rows].contiguous())
            part.forward(wants_grad)
            token_nats[rows] = part.token_nats()
            if grad_scale is not None and weight_grad_VC is not None and hidden_grad is not None:
                hidden_grad[rows] = part.hidden_gradient(grad_scale).to(hidden_NC.dtype)
                last = rows.stop == tokens  # after it nothing more is added
                part.weight_gradient(grad_scale, weight_grad_VC, on_grad_chunk if last else None)
        # Summed in host memory: Metal has no float64.
        return LossAndGrads(token_nats.cpu().double().sum(), token_nats, hidden_grad)

    def logit_blocks(self, rows: int, columns: int, like: Tensor) -> list[Tensor]:
        """Views (R, W) of one buffer (R * V,), a block of the vocabulary each; like: the weight."""
        vocab = like.size(0)
        needed = rows * vocab
        kept = self._logits
        alike = kept is not None and (kept.dtype, kept.device) == (like.dtype, like.device)
        if not alike or kept is None or kept.numel() < needed:
            self._logits = kept = torch.empty(needed, dtype=like.dtype, device=like.device)
        # Each is contiguous, as the C pass needs it; columns of an (R, V) tensor would not be.
        return [kept[rows * a : rows * b].view(rows, b - a) for a, b in _edges(vocab, columns)]


def block_columns(device: torch.device, dtype: torch.dtype) -> int:
    """Columns W of a block. A chunk of the weight's gradient has a whole number of blocks."""
    # bfloat16 is half as large, and its products gain more by width than the caches lose.
    if device.type != "cpu" or dtype == torch.bfloat16:
        return GRAD_CHUNK_COLUMNS
    # Threads share a block's rows: with more of them a block may be wider. The largest power of
    # two up to their number, so that blocks divide GRAD_CHUNK_COLUMNS.
    threads: int = 1 << (torch.get_num_threads().bit_length() - 1)
    return min(GRAD_CHUNK_COLUMNS, THREAD_COLUMNS * threads)


def grad_chunk_edges(vocab: int) -> list[tuple[int, int]]:
    """First and last + 1 row of each chunk of the weight's gradient."""
    return _edges(vocab, GRAD_CHUNK_COLUMNS)


def _edges(vocab: int, columns: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(0, vocab, columns), vocab]))


def softcap(
    logits_RW: Tensor,
    u_RW: Tensor | None,
    exp_sum_R: Tensor,
    target_logit_R: Tensor,
    targets_R: Tensor,
    first_id: int,
    valid: int,
) -> None:
    """What `kernels.softcap_block` does, in plain PyTorch; torch.compile makes it one pass."""
    here = (targets_R >= first_id) & (targets_R < first_id + valid)
    column = torch.where(here, targets_R - first_id, 0)  # gather needs a column for each row
    mine = widen(logits_RW.gather(1, column[:, None]).squeeze(1))  # (R,)
    target_logit_R.copy_(torch.where(here, mine, target_logit_R))
    t = torch.tanh(widen(logits_RW[:, :valid]) / SOFTCAP)
    e = torch.exp(SOFTCAP * t)
    exp_sum_R += e.sum(dim=1)
    if u_RW is not None:
        u_RW[:, :valid] = e * (1 - t * t)
        u_RW[:, valid:] = 0  # the products take whole blocks


def token_nats(exp_sum_R: Tensor, target_logit_R: Tensor, targets_R: Tensor) -> Tensor:
    """(R,) log(Z) - softcapped logit of the target; exp_sum_R: Z of the whole vocabulary."""
    nats = exp_sum_R.log() - SOFTCAP * torch.tanh(target_logit_R / SOFTCAP)
    return torch.where(targets_R == IGNORED, 0.0, nats)


class Chunk:
    """One chunk of tokens against the lm_head, or against the rows of it that a rank has.

    weight_VC: those rows, from `first_id` on. exp_sum, target_logit: (R,), of these rows after
    `forward`. With a part of the vocabulary the caller replaces both by those of the whole before
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
        # (R, C): u W, not yet divided by Z.
        self._hidden_grad = torch.zeros(rows, hidden_RC.size(1), **fp32)  # type: ignore[call-overload]
        self.columns = block_columns(weight_VC.device, weight_VC.dtype)
        if head.compiled:
            self.columns = ALL_COLUMNS
        self._u_blocks: list[Tensor] = []

    def forward(self, wants_grad: bool) -> None:
        """Make the logits block by block; sum exp_sum, target_logit and u W over the blocks."""
        backends = self.head.backends
        rows = self.hidden.size(0)
        # Evaluation needs no block twice, so it keeps none.
        blocks = self.head.logit_blocks(rows, self.columns, self.weight) if wants_grad else []
        for number, first in enumerate(range(0, self.weight.size(0), self.columns)):
            weight_WC = self.weight[first : first + self.columns]
            first_id = self.first_id + first
            # Columns of the padding count in no sum.
            valid = min(self.head.vocab_size - first_id, weight_WC.size(0))
            if wants_grad and backends.forward == "default":
                logits_RW = torch.mm(self.hidden, weight_WC.t(), out=blocks[number])
            else:
                logits_RW = mm_nt(self.hidden, weight_WC, backends.forward)
            u_RW = blocks[number] if wants_grad else None
            self._softcap(logits_RW, u_RW, first_id, max(valid, 0))  # 0: a block of padding alone
            if u_RW is not None:
                addmm_nt_(self._hidden_grad, u_RW, weight_WC.t(), backends.grad_input)
        self._u_blocks = blocks

    def _softcap(self, logits_RW: Tensor, u_RW: Tensor | None, first_id: int, valid: int) -> None:
        """Add a block to the sums; write its u, which may be where the logits are."""
        if kernels.usable(logits_RW):
            kernels.softcap_block(
                logits_RW, u_RW, self.exp_sum, self.target_logit, self.targets, first_id, valid
            )
            return
        self.head.softcap(
            logits_RW, u_RW, self.exp_sum, self.target_logit, self.targets, first_id, valid
        )

    def token_nats(self) -> Tensor:
        """(R,) fp32."""
        return token_nats(self.exp_sum, self.target_logit, self.targets)

    def hidden_gradient(self, grad_scale: float) -> Tensor:
        """(R, C) fp32: the hidden states' gradient from these rows of the weight."""
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
        """Add the gradient of these rows of the weight."""
        target, slope = self._target_slope(grad_scale)
        scaled_RC = (widen(self.hidden) * self._per_row(grad_scale)).to(self.hidden.dtype)
        # Targets may be in any row. They come first, so that each block's rows are final in turn.
        weight_grad_VC.index_add_(0, target, widen(self.hidden) * slope[:, None], alpha=-1)
        for number, u_RW in enumerate(self._u_blocks):
            block = number * self.columns  # its first row of the weight
            for start, stop in grad_chunk_edges(u_RW.size(1)):
                rows = slice(block + start, block + stop)
                part_RW = u_RW[:, start:stop]
                backend = self.head.backends.grad_weight
                addmm_nt_(weight_grad_VC[rows], part_RW.t(), scaled_RC.t(), backend)
                ends_chunk = rows.stop % GRAD_CHUNK_COLUMNS == 0 or rows.stop == len(weight_grad_VC)
                if on_grad_chunk is not None and ends_chunk:
                    on_grad_chunk(rows.start // GRAD_CHUNK_COLUMNS)

    def _per_row(self, grad_scale: float) -> Tensor:
        """(R, 1): grad_scale / Z, the factor of a token's u; 0 where the target is ignored."""
        counted = self.targets != IGNORED
        factor: Tensor = torch.where(counted, grad_scale, 0.0) / self.exp_sum
        return factor[:, None]

    def _target_slope(self, grad_scale: float) -> tuple[Tensor, Tensor]:
        """(R,) each: the target's row here, and its factor; 0 where another rank has the row."""
        target = self.targets - self.first_id
        here = (target >= 0) & (target < self.weight.size(0)) & (self.targets != IGNORED)
        # The softcap's derivative at the target: d 15 tanh(x / 15) / dx.
        slope = 1 - torch.tanh(self.target_logit / SOFTCAP).square()
        return torch.where(here, target, 0), torch.where(here, grad_scale, 0.0) * slope
