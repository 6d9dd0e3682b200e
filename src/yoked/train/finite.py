"""A loss or a weight that is not finite ends the run, on all ranks, with the ranks that have it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from yoked.errors import LossNotFiniteError
from yoked.ranks.exchange import read_text
from yoked.train.comm.communicator import Communicator
from yoked.train.state import Replicated, TrainState
from yoked.train.trainer import StepStats
from yoked.units import listed

LOWER_RATE = (
    "resume the last checkpoint with a lower rate: --resume --matrix-lr 0.01 --embedding-lr 0.15",
    "if it comes back, from an earlier one: --resume-from-step STEP",
)
# Where the others' numbers are finite: they began the step with the same weights.
ITS_OWN = (
    "resume the last checkpoint: --resume",
    "if it comes back there: that rank's rows of the step, its dtype (--dtype float32), its memory",
)


def require_finite_loss(comm: Communicator, step: int, by_rank: Sequence[StepStats]) -> None:
    """Raise LossNotFiniteError where the loss of a step is NaN or infinite on any rank."""
    bad = [rank for rank, stats in enumerate(by_rank) if not math.isfinite(stats.nats)]
    if bad:
        raise _error(comm, f"the loss is not a finite number in step {step + 1}", bad)


def require_finite_weights(
    comm: Communicator, state: TrainState, parameters: Iterable[tuple[str, Tensor]], done: int
) -> None:
    """The same of weights: a finite loss can be followed by some, and they must not be saved.

    Collective. Traffic a rank: the name of a parameter.
    """
    named = comm.all_gather_json(_first_unfinite(parameters), read_text)
    bad = [rank for rank, name in enumerate(named) if name]
    if not bad:
        return
    name = named[bad[0]]
    entry = state.entries.get(name)
    if entry is not None and not isinstance(entry.placement, Replicated):
        # Only the owner of these rows has them as they are: that says nothing against it.
        bad = list(range(comm.world_size))
    raise _error(comm, f"{name} is not finite after step {done}, so it was not saved", bad)


def _first_unfinite(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """The name of the first that is not finite; empty: all are."""
    for name, parameter in parameters:
        # Apple's GPUs have no float64; there a sum beyond float32 is no weight's either.
        exact = torch.float32 if parameter.device.type == "mps" else torch.float64
        if not math.isfinite(float(parameter.detach().sum(dtype=exact))):
            return name
    return ""


def _error(comm: Communicator, what: str, bad: Sequence[int]) -> LossNotFiniteError:
    ranks = tuple(comm.global_rank(rank) for rank in bad)
    if len(bad) == comm.world_size:
        problem = LossNotFiniteError(what, fix=LOWER_RATE)
    else:
        # Whoever shows it names one rank; of several it names none.
        alone = f"{what}; that of the other ranks is"
        if len(ranks) > 1:
            alone = f"on ranks {listed(map(str, ranks))} alone {what}"
        problem = LossNotFiniteError(alone, fix=ITS_OWN)
    problem.of_ranks = ranks
    return problem
