"""One of two ranks: how much longer it computes for a byte that travels meanwhile.

It takes an lm_head's forward and backward pass again and again, in turns with nothing else and
with messages of 8 MB on their way in both directions, as a training step has them.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
import torch.distributed as dist

from yoked.ranks.exchange import gather_json, read_list, read_number
from yoked.train import kernels
from yoked.train.device import keep_freed_memory
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.linear import MatmulBackends, onednn_available

TOKENS, WIDTH, VOCABULARY = 1024, 256, 32_768
MESSAGES, NUMBERS = 3, 2_000_000
TURNS, HEADS = 10, 8


class Rank:
    """This rank's head and its messages."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.head = FusedLinearCrossEntropy(
            VOCABULARY, MatmulBackends.all("onednn" if onednn_available() else "default")
        )
        self.hidden = torch.randn(TOKENS, WIDTH)
        self.weight = 0.01 * torch.randn(VOCABULARY, WIDTH)
        self.targets = torch.randint(0, VOCABULARY, (TOKENS,))
        self.gradient = torch.zeros(VOCABULARY, WIDTH)
        self.leaving = [torch.zeros(NUMBERS) for _ in range(MESSAGES)]
        self.coming = [torch.zeros(NUMBERS) for _ in range(MESSAGES)]
        self.other = 1 - dist.get_rank()

    def head_s(self, *, sending: bool) -> float:
        """Median seconds of one head, with or without messages beside it."""
        dist.barrier()
        took_s = []
        for _ in range(HEADS):
            works = self._exchange() if sending else []
            began_s = time.perf_counter()
            self.head.loss(
                self.hidden,
                self.weight,
                self.targets,
                grad_scale=1 / TOKENS,
                weight_grad_VC=self.gradient,
            )
            took_s.append(time.perf_counter() - began_s)
            for work in works:
                work.wait()
        return statistics.median(took_s)

    def _exchange(self) -> list[dist.Work]:
        receives = [dist.irecv(each, self.other, tag=n) for n, each in enumerate(self.coming)]
        sends = [dist.isend(each, self.other, tag=n) for n, each in enumerate(self.leaving)]
        return [work for work in (*receives, *sends) if work is not None]


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    kernels.kernels()
    dist.init_process_group("gloo")
    rank = Rank()
    for sending in (True, False):
        rank.head_s(sending=sending)
    turns = [[rank.head_s(sending=False), rank.head_s(sending=True)] for _ in range(TURNS)]
    by_rank = gather_json(turns, read_list(read_list(read_number)))
    if dist.get_rank() == 0:
        moved = 2 * MESSAGES * 4 * NUMBERS
        print(json.dumps({"bytes_a_head": moved, "without_and_with_s": by_rank}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
