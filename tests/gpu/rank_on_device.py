"""A rank of a real run that trains on the simulated device, if ON names it.

ON: ranks, separated by commas. LAG_S: what a kernel takes on the device. NCCL: collectives between
the devices, as NCCL has them. Weights are compared after every step.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import simulated

from yoked.train import resolve, run, setup, trainer
from yoked.train.__main__ import main
from yoked.train.comm.communicator import Communicator
from yoked.train.decisions import timing

LAG_S = float(os.environ.get("LAG_S", "0"))
NCCL = "NCCL" in os.environ


def wait_for_device(device: torch.device) -> None:
    if device.type == simulated.NAME:
        simulated.synchronize()


def communicator(device: torch.device, sync: str) -> Communicator:
    """As where every rank has a GPU; Gloo carries what NCCL would."""
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    return Communicator(dist.new_group(backend="gloo"), control)


def train_on_device(argv: list[str]) -> int:
    device = simulated.register()
    trainer.synchronize = timing.synchronize = wait_for_device
    setup.choose_device = lambda config, rank_info, recorded: (device, None)
    with simulated.entered(lag_s=LAG_S, nccl=NCCL):
        return main(argv)


if __name__ == "__main__":
    run.CHECK_EVERY_STEPS = 1
    resolve._DEFAULTS[simulated.NAME] = resolve._DEFAULTS["cuda"]
    if NCCL:
        setup.init_communicator = communicator
    on = os.environ["ON"].split(",")
    mine = os.environ.get("RANK", "0") in on
    sys.exit((train_on_device if mine else main)(sys.argv[1:]))
