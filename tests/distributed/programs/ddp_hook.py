"""A plain DistributedDataParallel program with one line more, run as several cases in one world.

Ranks have unlike numbers of rows, the last none at all where there are three. Rank 0 prints what
it saw as one JSON object. Arguments: the backend, then `cuda` to train on GPUs.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from yoked.ddp import CompressionState, compression_hook

WIDTH, STEPS = 16, 60
ROWS = {2: (11, 3), 3: (7, 4, 0)}
# Small buckets: several of them, of unlike sizes, on their way at once.
BUCKET_MB = 0.004
ON_GPU = "cuda" in sys.argv
COMPRESSIONS = ("fp32", "bf16", "int8", "int4", "powersgd")


def build(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(61, 61), nn.Tanh())]
    return nn.Sequential(nn.Linear(WIDTH, 61), nn.Tanh(), *hidden, nn.Linear(61, 1)).to(
        device(), dtype
    )


def device() -> torch.device:
    if not ON_GPU:
        return torch.device("cpu")
    return torch.device("cuda", dist.get_rank() % torch.cuda.device_count())


def rows(step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """All ranks' rows of a step."""
    dice = torch.Generator().manual_seed(step)
    inputs = torch.randn(sum(ROWS[dist.get_world_size()]), WIDTH, generator=dice)
    inputs = inputs.to(device())
    return inputs.to(dtype), inputs.sin().sum(dim=1, keepdim=True).to(dtype)


def mine(whole: Tensor) -> Tensor:
    return whole.split(ROWS[dist.get_world_size()])[dist.get_rank()]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    # Over no rows this is NaN, and so is its gradient.
    return nn.functional.mse_loss(model(inputs), targets)


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def hooked(
    payload: str, dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None
) -> tuple[nn.Module, CompressionState]:
    model = DistributedDataParallel(build(dtype), process_group=group, bucket_cap_mb=BUCKET_MB)
    state = CompressionState(payload=payload, group=group)
    model.register_comm_hook(state, compression_hook)
    return model, state


def buckets() -> int:
    """How many the model has, once DDP has formed them anew."""
    seen: list[int] = []

    def count_and_average(state: CompressionState, bucket: dist.GradBucket) -> Future[Tensor]:
        seen.append(bucket.index())
        return compression_hook(state, bucket)

    # DDP wants no annotations, or the types themselves.
    count_and_average.__annotations__.clear()
    model = DistributedDataParallel(build(), bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(CompressionState(), count_and_average)
    for _ in range(2):
        seen.clear()
        model(torch.ones(1, WIDTH, device=device())).sum().backward()
    return len(seen)


def off_by(payload: str, dtype: torch.dtype = torch.float32, steps: int = 3) -> float:
    """The largest difference to one process with all rows, relative to its largest number."""
    model, state = hooked(payload, dtype)
    alone, worst = build(dtype), 0.0
    for step in range(steps):
        inputs, targets = rows(step, dtype)
        model.zero_grad()
        alone.zero_grad()
        state.tokens(len(mine(inputs)))
        loss_of(model, mine(inputs), mine(targets)).backward()
        loss_of(alone, inputs, targets).backward()
        wanted = gradient_of(alone)
        difference = (gradient_of(model) - wanted).abs().max() / wanted.abs().max()
        worst = max(worst, difference.item())
    return worst


def off_by_after_a_large_step(payload: str) -> float:
    """As `off_by`, of a step that counts a thousandth of what the one before it did."""
    model, state = hooked(payload)
    alone, own = build(), mine(rows(0)[0])
    for step, factor in enumerate((1, 1, 1000, 1)):
        inputs, targets = rows(step)
        model.zero_grad()
        alone.zero_grad()
        state.tokens(factor * len(own))
        loss_of(model, mine(inputs), mine(targets)).backward()
        loss_of(alone, inputs, targets).backward()
    wanted = gradient_of(alone)
    return ((gradient_of(model) - wanted).abs().max() / wanted.abs().max()).item()


def off_by_untold() -> float:
    """Without tokens: the difference to the plain mean over ranks that DDP makes by itself."""
    model, _ = hooked("fp32")
    plain = DistributedDataParallel(build(), bucket_cap_mb=BUCKET_MB)
    inputs = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    inputs = inputs.to(device())
    for each in (model, plain):
        loss_of(each, inputs, inputs.sum(dim=1, keepdim=True)).backward()
    return (gradient_of(model) - gradient_of(plain)).abs().max().item()


def train(payload: str, steps: int = STEPS) -> dict[str, object]:
    """What the hook learns with a payload."""
    model, state = hooked(payload)

    def loss_after_telling(own: Tensor, targets: Tensor) -> Tensor:
        state.tokens(len(own))
        return loss_of(model, own, targets)

    return learned(model, loss_after_telling, steps)


def powersgd_by_hand(steps: int) -> dict[str, object]:
    """What PyTorch's own PowerSGD learns in a program that weighs each rank's loss itself."""
    model = DistributedDataParallel(build(), bucket_cap_mb=BUCKET_MB)
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)

    def one_bucket_after_the_other(
        state: powersgd.PowerSGDState, bucket: dist.GradBucket
    ) -> Future[Tensor]:
        found = powersgd.powerSGD_hook(state, bucket)
        if ON_GPU:
            return found
        done: Future[Tensor] = Future()
        done.set_result(found.wait())
        return done

    one_bucket_after_the_other.__annotations__.clear()
    model.register_comm_hook(state, one_bucket_after_the_other)
    counts = ROWS[dist.get_world_size()]

    def weighed_loss(own: Tensor, targets: Tensor) -> Tensor:
        if not len(own):
            return 0.0 * model(own).sum()
        return len(own) * len(counts) / sum(counts) * loss_of(model, own, targets)

    return learned(model, weighed_loss, steps)


def learned(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], steps: int
) -> dict[str, object]:
    """Loss over all rows before and after, and whether all ranks hold the same weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held_out = rows(10_000)
    before = loss_of(model.module, *held_out).item()
    for step in range(steps):
        inputs, targets = rows(step)
        optimizer.zero_grad()
        loss(mine(inputs), mine(targets)).backward()
        optimizer.step()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyones: list[Tensor] = [weights] * dist.get_world_size()
    dist.all_gather_object(everyones, weights.cpu())
    return {
        "before": before,
        "after": loss_of(model.module, *held_out).item(),
        "same": all(torch.equal(weights.cpu(), other) for other in everyones),
    }


def trace_of_a_broken_step() -> dict[str, bool]:
    """A gradient that is not finite on the last rank: seen by all, and gone in the next step."""
    model, _ = hooked("int8")
    inputs = torch.ones(2, WIDTH, device=device())
    last = dist.get_rank() == dist.get_world_size() - 1
    seen = []
    for factor in (torch.inf if last else 1.0, 1.0):
        model.zero_grad()
        (model(inputs).sum() * factor).backward()
        seen.append(bool(gradient_of(model).isfinite().all()))
    return {"broken": seen[0], "next": seen[1]}


def complaint(tell: Callable[[CompressionState], None]) -> str:
    model, state = hooked("int8")
    tell(state)
    try:
        model(torch.ones(2, WIDTH, device=device())).sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def complaint_about_a_rank_that_stays_away() -> str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    model, _ = hooked("int8", group=group)
    said = ""
    if dist.get_rank() == 0:
        try:
            model(torch.ones(2, WIDTH, device=device())).sum().backward()
        except RuntimeError as error:
            said = str(error)
    dist.barrier()
    return said


def one_rank_is_silent(state: CompressionState) -> None:
    if dist.get_rank() == 0:
        state.tokens(5)


def accumulated() -> float:
    """Two micro-batches, one sync: the difference to one process with all rows."""
    model, state = hooked("fp32")
    inputs, targets = rows(1)
    own, own_targets = mine(inputs), mine(targets)
    state.tokens(len(own))
    with model.no_sync():
        for x, y in zip(own[:1], own_targets[:1], strict=True):
            (nn.functional.mse_loss(model(x), y, reduction="sum") / len(own)).backward()
    rest = nn.functional.mse_loss(model(own[1:]), own_targets[1:], reduction="sum")
    (rest / max(len(own), 1)).backward()
    alone = build()
    loss_of(alone, inputs, targets).backward()
    wanted = gradient_of(alone)
    return ((gradient_of(model) - wanted).abs().max() / wanted.abs().max()).item()


def main() -> None:
    # A mean over no rows warns on some ranks.
    warnings.filterwarnings("ignore", "Using a target size")
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=120))
    if ON_GPU:
        torch.cuda.set_device(device())
    found = {
        "buckets": buckets(),
        "off_by": {
            "fp32": off_by("fp32"),
            **{payload: off_by(payload, steps=1) for payload in ("bf16", "int8", "int4")},
        },
        # After two steps it begins to lose something.
        "off_by_powersgd": off_by("powersgd", steps=2),
        "off_by_float64": off_by("fp32", torch.float64),
        "off_by_bfloat16": off_by("fp32", torch.bfloat16),
        "off_by_untold": off_by_untold(),
        "off_by_after_a_large_step": off_by_after_a_large_step("int8"),
        "accumulated": accumulated(),
        "trained": {payload: train(payload) for payload in COMPRESSIONS},
        # Its rounding grows: after 60 steps two programs that do the same are 1% apart.
        "powersgd": [train("powersgd", 10)["after"], powersgd_by_hand(10)["after"]],
        "finite": trace_of_a_broken_step(),
        "one_silent": complaint(one_rank_is_silent),
        "no_tokens": complaint(lambda state: state.tokens(0)),
    }
    if sys.argv[1] == "gloo":
        # NCCL's deadline ends the process.
        found["away"] = complaint_about_a_rank_that_stays_away()
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
