"""A rank of a real run that trains on a device, if ON names it; the others are on the CPU.

ON: ranks, separated by commas. DEVICE: sim, or cuda. LAG_S: what a kernel takes on the simulated
one. NCCL: collectives between the devices, as NCCL has them. ENCODES: the simulated device encodes
what travels, as CUDA's does by its kernels. Weights are compared after every step.
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
from yoked.train.sync.codecs import Codec

LAG_S = float(os.environ.get("LAG_S", "0"))
NCCL = "NCCL" in os.environ
SIMULATED = os.environ.get("DEVICE", simulated.NAME) == simulated.NAME


def wait_for_device(device: torch.device) -> None:
    if device.type == simulated.NAME:
        simulated.synchronize()


def communicator(device: torch.device, sync: str) -> Communicator:
    """As where every rank has a GPU; Gloo carries what NCCL would."""
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    return Communicator(dist.new_group(backend="gloo"), control)


def train_on_device(argv: list[str]) -> int:
    if not SIMULATED:
        # Without TF32: losses are compared with the CPU's.
        setup.prepare_cuda = torch.cuda.set_device
        card = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if NCCL else 0)
        setup.choose_device = lambda config, rank_info, recorded: (card, None)
        return main(argv)
    device = simulated.register()
    trainer.synchronize = timing.synchronize = wait_for_device
    setup.choose_device = lambda config, rank_info, recorded: (device, None)
    if "ENCODES" in os.environ:
        Codec.works_on = lambda codec, there: there
    with simulated.entered(lag_s=LAG_S, nccl=NCCL):
        return main(argv)


def train_on_cpu(argv: list[str]) -> int:
    os.environ["YOKED_DEVICE"] = "cpu"
    return main(argv)


if __name__ == "__main__":
    run.CHECK_EVERY_STEPS = 1
    resolve._DEFAULTS[simulated.NAME] = resolve._DEFAULTS["cuda"]
    if NCCL and SIMULATED:
        setup.init_communicator = communicator
    on = os.environ["ON"].split(",")
    mine = os.environ.get("RANK", "0") in on
    sys.exit((train_on_device if mine else train_on_cpu)(sys.argv[1:]))
