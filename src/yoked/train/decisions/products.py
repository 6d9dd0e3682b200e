"""In which dtype, and by which library, this device multiplies fastest.

What is measured are the products of the model that is about to be trained, at its own shapes,
for well under a second. A GPU that is present but does not train influences nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from yoked.costmodel.dtypes import compute_dtypes, speed_of_all
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import MIN_SPEEDUP
from yoked.errors import DeviceError
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.timing import thread_time_clock, time_interleaved
from yoked.train.device import DTYPES
from yoked.train.model.cross_entropy import block_columns
from yoked.train.model.linear import (
    MATMUL_BACKENDS,
    MatmulBackend,
    MatmulBackends,
    addmm_nt_,
    mm_nt,
    onednn_available,
)
from yoked.train.model.precision import wide

SAMPLE_FLOPS = 5.4e8
SAMPLE_TOKENS = 512
# A GPU is not busy with less, and telling it what to do would take longer.
GPU_SAMPLE_FLOPS = 1e11
GPU_SAMPLE_TOKENS = 16_384
# bfloat16 costs precision: it must be worth it.
BFLOAT16_WORTHWHILE = 1.1
# What all ranks together take for a token where each computes in its own dtype.
OWN_DTYPES_S = "own_dtypes_s_per_token"
# A dtype that is so many times slower in one small product is not looked at further.
HOPELESS = 4.0
SMALL_TOKENS = 64
KINDS = ("forward", "grad_input", "grad_weight")


@dataclass(frozen=True)
class ProductTimes:
    """Seconds per token of a model's products in one dtype, with the best library of each kind.

    by_kind: (place, kind) to seconds by library; place is "layers" or "head".
    """

    by_kind: dict[tuple[str, str], dict[MatmulBackend, float]]

    def products(self, place: str) -> MatmulBackends:
        """The fastest library for each kind of product of a place."""
        return MatmulBackends(*(_fastest(self.by_kind[place, kind]) for kind in KINDS))

    @property
    def best_s(self) -> float:
        """With the fastest library for each."""
        return sum(min(times.values()) for times in self.by_kind.values())

    def total_s(self, library: MatmulBackend) -> float:
        """With one library for all that it was measured for."""
        return sum(times[library] for times in self.by_kind.values() if library in times)


def _fastest(times: dict[MatmulBackend, float]) -> MatmulBackend:
    # The default unless another is clearly faster: equal hosts should choose alike.
    best = min(times, key=lambda library: times[library])
    faster = times[best] * MIN_SPEEDUP < times.get("default", math.inf)
    return best if faster else "default"


def _shapes(
    config: ModelShape, device: torch.device, dtype: torch.dtype
) -> list[tuple[str, int, int, float]]:
    """(place, inputs, outputs, how often a token meets it) of the model's products."""
    width, kv_width = config.n_embd, config.n_kv_head * config.head_dim
    layers = config.n_layer
    block = min(block_columns(device, dtype), config.padded_vocab_size)
    return [
        ("layers", width, width, 2.0 * layers),
        ("layers", width, kv_width, 2.0 * layers),
        ("layers", width, 4 * width, 1.0 * layers),
        ("layers", 4 * width, width, 1.0 * layers),
        ("head", width, block, config.padded_vocab_size / block),
    ]


def _as_trained(
    place: str, kind: str, a: Tensor, b: Tensor, library: MatmulBackend
) -> Callable[[], object]:
    """A product in the way that training makes it, ready to be timed.

    The head adds its gradients to a wide sum, which costs one library more than the other.
    """
    if place != "head" or kind == "forward":
        return lambda: mm_nt(a, b, library)
    total = torch.zeros(a.size(0), b.size(0), dtype=wide(a.dtype), device=a.device)
    return lambda: addmm_nt_(total, a, b, library)


def measure_products(
    config: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    libraries: Sequence[MatmulBackend],
) -> ProductTimes:
    """Time the three products of each of the model's shapes with each library."""
    by_kind: dict[tuple[str, str], dict[MatmulBackend, float]] = {}
    merged: dict[tuple[str, int, int], float] = {}
    for place, inputs, outputs, count in _shapes(config, device, dtype):
        merged[place, inputs, outputs] = merged.get((place, inputs, outputs), 0.0) + count
    for (place, inputs, outputs), count in merged.items():
        tokens = sample_tokens(device, inputs * outputs)
        x = torch.randn(tokens, inputs, device=device).to(dtype)
        weight = torch.randn(outputs, inputs, device=device).to(dtype)
        dy = torch.randn(tokens, outputs, device=device).to(dtype)
        operands: dict[str, tuple[Tensor, Tensor]] = {
            "forward": (x, weight),
            "grad_input": (dy, weight.t()),
            "grad_weight": (dy.t(), x.t()),
        }
        for kind, (a, b) in operands.items():
            runs = {library: _as_trained(place, kind, a, b, library) for library in libraries}
            times = by_kind.setdefault((place, kind), {})
            for library, took in time_interleaved(runs, device, thread_time_clock(device)).items():
                times[library] = times.get(library, 0.0) + took * count / tokens
    return ProductTimes(by_kind)


def sample_tokens(device: torch.device, numbers: int) -> int:
    """Tokens of a product that is timed for a dtype or a library. numbers: of its weight."""
    most, flops = SAMPLE_TOKENS, SAMPLE_FLOPS
    if device.type != "cpu":
        most, flops = GPU_SAMPLE_TOKENS, GPU_SAMPLE_FLOPS
    return max(32, min(most, int(flops / (2 * numbers)) // 32 * 32))


def libraries_for(
    device: torch.device, dtype: torch.dtype, asked: str
) -> tuple[MatmulBackend, ...]:
    """The libraries to compare; asked is auto, mkl or onednn (`--matmul`)."""
    if device.type != "cpu":
        return ("default",)
    if asked == "onednn" and not onednn_available():
        raise DeviceError("this PyTorch has no oneDNN", fix="--matmul=auto")
    # In bfloat16 PyTorch's own product is oneDNN's already.
    if asked == "mkl" or dtype != torch.float32 or not onednn_available():
        return ("default",)
    return ("onednn",) if asked == "onednn" else MATMUL_BACKENDS


@dataclass(frozen=True)
class ProductChoice:
    """Times by dtype name; the run's dtype is chosen from those of all ranks.

    estimated_s: seconds per token of a dtype that is too slow to be measured product by product.
    """

    times: dict[str, ProductTimes]
    estimated_s: dict[str, float] = field(default_factory=dict)

    @property
    def best_s(self) -> dict[str, float]:
        """Seconds per token by dtype name."""
        return {
            **{name: times.best_s for name, times in self.times.items()},
            **self.estimated_s,
        }


def measure_dtypes(
    config: ModelShape, device: torch.device, *, dtype: str, matmul: str
) -> ProductChoice:
    """Measure the dtypes that may be chosen: the one asked for, or both.

    A CPU without instructions for bfloat16 is up to 35 times slower in it: one small product
    tells, where all of them would take seconds.
    """
    names = list(DTYPES) if dtype == "auto" else [dtype]
    if device.type == "mps":
        names = ["float32"] if dtype == "auto" else names
    times: dict[str, ProductTimes] = {}
    estimated_s: dict[str, float] = {}
    for name in names:
        if times and (slower := _times_slower(config, device, DTYPES[name])) > HOPELESS:
            estimated_s[name] = slower * times["float32"].best_s
            continue
        libraries = libraries_for(device, DTYPES[name], matmul)
        times[name] = measure_products(config, device, DTYPES[name], libraries)
    return ProductChoice(times, estimated_s)


def _times_slower(config: ModelShape, device: torch.device, dtype: torch.dtype) -> float:
    """How many times longer one small product takes than in float32."""
    x = torch.randn(SMALL_TOKENS, config.n_embd, device=device)
    weight = torch.randn(config.n_embd, config.n_embd, device=device)
    pairs = {"plain": (x, weight), "other": (x.to(dtype), weight.to(dtype))}
    runs = {name: functools.partial(mm_nt, *pair, "default") for name, pair in pairs.items()}
    times = time_interleaved(runs, device, thread_time_clock(device))
    return times["other"] / times["plain"]


def choose_dtype(by_rank: Sequence[dict[str, float]], asked: str) -> Decision:
    """One dtype for the run: the one in which its ranks together compute most.

    by_rank: seconds per token by dtype name. A slow rank has few rows, whatever it computes in.
    """
    # Apple's GPUs are measured in one alone.
    common = [name for name in by_rank[0] if all(name in times for times in by_rank)]
    total_s = {name: 1 / speed_of_all(by_rank, [name] * len(by_rank)) for name in common}
    where = "here" if len(by_rank) == 1 else "on all ranks together"
    measured = {f"{name}_s_per_token": took for name, took in total_s.items()}
    if asked != "auto":
        return Decision("dtype", asked, "asked for with --dtype", measured)
    if len(total_s) == 1:
        where = "for this device" if len(by_rank) == 1 else "for all devices"
        return Decision("dtype", next(iter(total_s)), f"the only one {where}", measured)
    ratio = total_s["float32"] / total_s["bfloat16"]
    if ratio >= BFLOAT16_WORTHWHILE:
        return Decision("dtype", "bfloat16", f"{ratio:.1f}x float32 {where}", measured)
    return Decision("dtype", "float32", f"bfloat16 is {ratio:.2g}x {where}", measured)


def rank_dtypes(
    names: Sequence[str], times_s: Sequence[Mapping[str, float]], common: Decision
) -> list[Decision]:
    """The dtype of each rank. names: of its host; times_s: seconds per token by dtype name.

    common: the run's, in which the embedding tables are on all ranks.
    """
    dtypes = compute_dtypes(times_s, common.value)
    by_name = dict(zip(names, dtypes, strict=True))
    unlike = {name: dtype for name, dtype in by_name.items() if dtype != common.value}
    if not unlike:
        return [common] * len(dtypes)
    measured = {**common.measured, OWN_DTYPES_S: 1 / speed_of_all(times_s, dtypes)}
    exceptions = "; ".join(f"{name} computes in {dtype}" for name, dtype in unlike.items())
    found = []
    for times, dtype in zip(times_s, dtypes, strict=True):
        reason = f"{common.reason}; {exceptions}"
        if dtype != common.value:
            faster = "the only one for this device"
            if common.value in times:
                faster = f"{times[common.value] / times[dtype]:.2g}x {common.value} here"
            reason = f"{faster}; embedding tables in {common.value}"
        found.append(Decision("dtype", dtype, reason, measured))
    return found


def products_name(layers: MatmulBackends, head: MatmulBackends) -> str:
    """The libraries of a model, for people."""
    return str(layers) if layers == head else f"layers {layers}, head {head}"


def choose_products(
    times: ProductTimes, asked: str
) -> tuple[MatmulBackends, MatmulBackends, Decision]:
    """Libraries for the layers and for the head, from this rank's own times."""
    if asked != "auto":
        forced = MatmulBackends.all("onednn" if asked == "onednn" else "default")
        return forced, forced, Decision("matmul", str(forced), "asked for with --matmul")
    layers, head = times.products("layers"), times.products("head")
    value = products_name(layers, head)
    if len(next(iter(times.by_kind.values()))) == 1:
        return layers, head, Decision("matmul", value, "the only library for this dtype and device")
    all_default, all_onednn = times.total_s("default"), times.total_s("onednn")
    reason = (
        f"oneDNN {all_default / all_onednn:.2f}x PyTorch's default, "
        f"the best of each product {all_default / times.best_s:.2f}x"
    )
    measured = {
        "default_s_per_token": all_default,
        "onednn_s_per_token": all_onednn,
        "best_s_per_token": times.best_s,
    }
    return layers, head, Decision("matmul", value, reason, measured)
