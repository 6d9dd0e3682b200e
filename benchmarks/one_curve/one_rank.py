"""One rank of a comparison: trains as the product does, and keeps what it learned from.

usage: one_rank.py JOB.json, under the environment that torchrun gives a rank

JOB: {"config": of TrainConfig, "steps", "dtype": float32 or float64, "out": folder,
"weights": file or null}. Rank 0 leaves in `out`: losses.json, gradient.npz (of the first
step), later.npz (of the step after the last, on the weights in `weights`, so that all cases
compute it of the same model), and weights.pt (after the last step).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console

from yoked.console import StageProgress
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions.working import Working
from yoked.train.device import DTYPES
from yoked.train.lm_head.vocab_parallel import VocabParallelHead
from yoked.train.model.linear import MatmulBackends
from yoked.train.resume import build_trainer
from yoked.train.setup import RunSetup, init_process_group, setup_fleet, setup_run
from yoked.train.state import all_gather_rows
from yoked.train.trainer import Trainer


def in_float64(setup: RunSetup) -> RunSetup:
    """The same session, computed and kept in float64 by the same code."""
    DTYPES["float64"] = torch.float64
    torch.set_default_dtype(torch.float64)
    compute = dataclasses.replace(
        setup.compute,
        dtype="float64",
        tables_dtype="float64",
        layers=MatmulBackends(),
        head=MatmulBackends(),
        attention="sdpa",
    )
    return dataclasses.replace(setup, compute=compute)


def whole_gradient(trainer: Trainer, step: int) -> dict[str, np.ndarray]:
    """The gradient of a step by parameter name, summed over all ranks; collective."""
    buffers, optimizer, tables = trainer.buffers, trainer.optimizer, []
    # Nothing is updated, but the others wait for what this rank owns.
    optimizer.step_bucket = lambda step, due: None
    optimizer.step_head = lambda step, gradient: None
    optimizer.step_adamw = lambda step, grads: tables.append(grads.rows)
    trainer.step(step)
    del optimizer.step_bucket, optimizer.step_head, optimizer.step_adamw
    (rows,) = tables
    trainer.drain()
    if isinstance(trainer.lm_head, VocabParallelHead):
        all_gather_rows(trainer.comm, buffers.head_grad, trainer.lm_head.placement)
    # Only a matrix's owner has its sum.
    summed = buffers.matrix_grads.clone()
    for bucket in buffers.buckets:
        trainer.comm.broadcast(bucket.view(summed), bucket.owner, "a gradient").wait()
    gradient = {}
    for bucket in buffers.buckets:
        gradient.update(zip(bucket.names, bucket.view(summed), strict=True))
    for name, parameter in buffers.parameters.items():
        if name in rows.tables:
            gradient[name] = torch.zeros_like(parameter.data, dtype=rows.flat.dtype)
            gradient[name][rows.rows] = rows.tables[name]
        elif name not in gradient:
            gradient[name] = buffers.gradient(name)
    return {name: g.double().numpy().copy() for name, g in gradient.items()}


def main(job: dict) -> None:
    rank_info = RankInfo.from_environment()
    init_process_group(rank_info)
    config = TrainConfig.from_dict(job["config"])
    fleet = setup_fleet(config, rank_info, StageProgress(Console(quiet=True)))
    setup = setup_run(fleet, fleet.comm, Working(tuple(range(rank_info.world_size))))
    if job["dtype"] == "float64":
        setup = in_float64(setup)
    trainer = build_trainer(setup)
    trainer.state.broadcast(print, None, has_owned=False)
    out = Path(job["out"])
    first = whole_gradient(trainer, 0)
    losses = []
    for step in range(job["steps"]):
        stats = trainer.step(step)
        nats = torch.tensor([stats.nats], dtype=torch.float64)
        setup.comm.all_reduce(nats, "the loss").wait()
        losses.append(float(nats) / setup.schedule.total_batch_size)
    trainer.gather_weights()
    trainer.state.require_equal(list(trainer.buffers.parameters), job["steps"])
    weights = {name: p.detach().clone() for name, p in trainer.buffers.parameters.items()}
    if job["weights"] is not None:
        for name, tensor in torch.load(job["weights"], weights_only=True).items():
            trainer.buffers.parameters[name].data.copy_(tensor)
    # A step to which no run comes: nothing of it is late.
    later = whole_gradient(trainer, setup.schedule.num_iterations)
    if rank_info.rank == 0:
        torch.save(weights, out / "weights.pt")
        np.savez(out / "gradient.npz", **first)
        np.savez(out / "later.npz", **later)
        hosts = [{"rank": h["rank"], "choices": h["choices"]} for h in setup.hosts]
        facts = {"losses": losses, "hosts": hosts, "lm_head": setup.strategy.lm_head.value}
        (out / "losses.json").write_text(json.dumps(facts))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(Path(sys.argv[1]).read_text()))
