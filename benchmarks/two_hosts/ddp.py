"""PyTorch's own DistributedDataParallel on yoked's model: what a person writes first.

usage: ddp.py --depth 4 --seq-len 512 --rows 2 --tokens 2048 --steps 6    under torchrun's
environment, or alone

The default buckets, which overlap with the backward pass, over Gloo, in float32; AdamW of PyTorch.
Tables have dense gradients, as an nn.Embedding has. Rank 0 prints a line of JSON for each step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from yoked.costmodel.model_shape import ModelShape
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT

VOCABULARY = 32_768


class _Loss(torch.autograd.Function):
    """Mean loss of yoked's lm_head, which makes its gradients on the way forward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        weight_grad = torch.zeros_like(weight)
        found = FusedLinearCrossEntropy(VOCABULARY).loss(
            hidden, weight, targets, grad_scale=1 / len(targets), weight_grad_VC=weight_grad
        )
        ctx.save_for_backward(found.hidden_grad, weight_grad)
        return hidden.new_tensor(float(found.loss_sum) / len(targets))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad.mul_(upstream[0]), weight_grad.mul_(upstream[0]), None


class WithLoss(nn.Module):
    """A GPT whose forward pass ends with the loss."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        """rows: (b, T + 1) ids."""
        hidden = self.model(rows[:, :-1]).flatten(0, 1)
        loss: Tensor = _Loss.apply(hidden, self.model.lm_head.weight, rows[:, 1:].flatten())
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("depth", "seq-len", "rows", "tokens", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    shape = ModelShape.from_depth(
        options.depth, sequence_len=options.seq_len, vocab_size=VOCABULARY
    )
    model = GPT(shape, torch.float32)
    model.init_weights(42)
    model.finish()
    training: nn.Module = WithLoss(model)
    if ranks > 1:
        training = DistributedDataParallel(training)
    optimizer = torch.optim.AdamW(training.parameters(), lr=1e-3, foreach=True)
    micro_batches = options.tokens // ranks // (options.rows * options.seq_len)
    generator = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
    for step in range(options.steps):
        began_s, mean_loss = time.perf_counter(), 0.0
        for number in range(micro_batches):
            rows = torch.randint(
                shape.vocab_size, (options.rows, options.seq_len + 1), generator=generator
            )
            last = number == micro_batches - 1
            alone = nullcontext() if last or ranks == 1 else training.no_sync()
            with alone:
                loss = training(rows) / micro_batches
                loss.backward()
            mean_loss += float(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        took_s = time.perf_counter() - began_s
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps({"step": step, "loss": mean_loss, "dt_s": took_s}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
