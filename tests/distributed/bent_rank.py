"""A rank of a real run in which BEND puts one thing wrong, or makes the ranks unlike."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from yoked.errors import DataError
from yoked.train import kernels, run
from yoked.train.__main__ import end_process, main
from yoked.train.decisions import compute
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.products import ProductTimes
from yoked.train.model.linear import MatmulBackends
from yoked.train.state import checksum
from yoked.train.trainer import StepStats, Trainer

RANK = int(os.environ["RANK"])
FLIPPED = "transformer.h.1.mlp.c_fc.weight"
take_step = Trainer.step


def flip_a_bit(trainer: Trainer, step: int, rank: int = 1) -> StepStats:
    stats = take_step(trainer, step)
    if rank == RANK and step == 2:
        # Later than the new matrices that are still on their way.
        trainer.drain()
        bits = trainer.buffers.parameters[FLIPPED].data.view(-1).view(torch.int32)
        bits[17] ^= 1
    return stats


def flip_a_bit_of_rank_0(trainer: Trainer, step: int) -> StepStats:
    return flip_a_bit(trainer, step, rank=0)


def fail_in_step_2(trainer: Trainer, step: int) -> StepStats:
    if RANK == 1 and step == 2:
        raise DataError("row 17 cannot be read", fix="prepare it again")
    return take_step(trainer, step)


def break_in_step_2(trainer: Trainer, step: int) -> StepStats:
    if RANK == 1 and step == 2:
        raise ZeroDivisionError("one by none")
    return take_step(trainer, step)


def fail_beside_a_stopped_peer(trainer: Trainer, step: int) -> StepStats:
    if step == 2:
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(10_000_000), async_op=True)
        time.sleep(0.5)  # until it is in flight
        raise DataError("row 17 cannot be read", fix="prepare it again")
    return take_step(trainer, step)


def note_bits(trainer: Trainer, step: int) -> StepStats:
    """Leave what the rank computes of one sequence, and its weights, as sums of bits."""
    stats = take_step(trainer, step)
    if step == 19:
        trainer.gather_weights()  # of a vocab-parallel lm_head each rank has its own rows alone
        with torch.no_grad():
            hidden = trainer.model(torch.arange(64)[None])
        weights = sum(checksum(p) for p in trainer.buffers.parameters.values())
        Path(os.environ["NOTES"], f"bits.{RANK}").write_text(f"{checksum(hidden)} {weights}")
    return stats


def be_unlike() -> None:
    """The first rank multiplies with MKL and has compiled passes; the second neither."""
    library = ("default", "onednn")[RANK]

    def products(
        times: ProductTimes, asked: str
    ) -> tuple[MatmulBackends, MatmulBackends, Decision]:
        mine = MatmulBackends.all(library)  # type: ignore[arg-type]
        return mine, mine, Decision("matmul", str(mine), "bent")

    compute.choose_products = products
    if RANK == 1:
        kernels.switch_off("bent")
    Trainer.step = note_bits  # type: ignore[method-assign]


def bend(way: str) -> None:
    if way != "flip-first":
        # A difference is to be found at the step that makes it.
        run.CHECK_EVERY_STEPS = 1
    steps = {
        "flip": flip_a_bit,
        "flip-first": flip_a_bit_of_rank_0,
        "fail": fail_in_step_2,
        "break": break_in_step_2,
        "stop": fail_beside_a_stopped_peer,
    }
    if way == "unlike":
        be_unlike()
    else:
        Trainer.step = steps[way]  # type: ignore[method-assign]


if __name__ == "__main__":
    bend(os.environ["BEND"])
    end_process(main(sys.argv[1:]))
