"""A program that starts no process group, as nanochat on a CPU: it looks for one as it steps."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist


class Averaging(torch.optim.SGD):
    """Shares gradients when there is a group, and says whether there was."""

    shared = False

    @torch.no_grad()
    def step(self, closure=None):
        if dist.is_initialized():
            self.shared = True
            for group in self.param_groups:
                for parameter in group["params"]:
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        return super().step(closure)


def main() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = Averaging([weight], lr=1.0)
    # A program that asks in order to start its own must hear the truth.
    before = dist.is_initialized()
    (weight * (1.0 + 2 * int(os.environ["RANK"]))).sum().backward()
    optimizer.step()
    print(json.dumps({"before": before, "shared": optimizer.shared, "weight": weight.item()}))


if __name__ == "__main__":
    main()
