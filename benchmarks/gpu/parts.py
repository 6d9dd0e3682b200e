"""What the parts of a step take: milliseconds by CUDA's own events, beside the bytes and FLOPs that
each cannot do without; and the kernels that take longest, by PyTorch's profiler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sides import Options, element_bytes, yoked_trainer
from torch.profiler import ProfilerActivity, profile

from yoked.costmodel.model_shape import ModelShape, count_parameters, flops_per_token
from yoked.train.comm.step_clock import Phase, StepClock

STEPS = 5
KERNELS = 20


class EventClock(StepClock):
    """Phases by the device's own clock; on a CPU by this host's."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._on_gpu = device.type == "cuda"
        self._spans: list[tuple[Phase, Any, Any]] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        begun = self._now()
        yield
        self._spans.append((name, begun, self._now()))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self) -> dict[str, float]:
        """Milliseconds by phase since the last time; the device is done with them."""
        found: dict[str, float] = {}
        for name, begun, ended in self._spans:
            took_ms = begun.elapsed_time(ended) if self._on_gpu else 1000 * (ended - begun)
            found[name] = found.get(name, 0.0) + took_ms
        self._spans = []
        return found


def needed(shape: ModelShape, tokens: int, dtype: str) -> dict[str, dict[str, float]]:
    """By phase: FLOPs of its products, and bytes of its inputs and outputs where these decide."""
    counts, number = count_parameters(shape), element_bytes(dtype)
    head = 6.0 * counts.lm_head * tokens
    layers = flops_per_token(shape) * tokens - head
    # AdamW: parameter and both moments there and back, the float32 gradient once. A table's moments
    # have its dtype, and its gradient is that of the rows in use: at most all of them.
    adamw = counts.tables * (6 * number + 4) + counts.lm_head * 28.0
    # Muon: gradient, momentum and matrices are read, the last two written too.
    return {
        "forward": {"flops": layers / 3},
        "backward": {"flops": 2 * layers / 3},
        "lm_head": {"flops": head, "bytes": 6.0 * tokens * shape.padded_vocab_size},
        "muon": {"bytes": 20.0 * counts.transformer_matrices},
        "adamw": {"bytes": adamw},
    }


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """A result for each depth and way, at the middle one of the numbers of rows."""
    rows = sorted(options.rows)[len(options.rows) // 2]
    for depth in options.depths:
        for way in options.ways:
            if options.late:
                return
            yield _parts(options, depth, rows, way)


def _parts(options: Options, depth: int, rows: int, way: str) -> dict[str, Any]:
    shape = options.shape(depth)
    try:
        trainer = yoked_trainer(
            shape,
            options.device,
            options.dtype,
            rows=rows,
            step_rows=options.step_rows,
            compiled=way == "compiled",
        )
        clock = trainer.comm.clock = EventClock(options.device)
        for step in range(2):
            trainer.step(step)
        clock.read()
        taken = []
        for step in range(2, 2 + STEPS):
            trainer.step(step)
            taken.append(clock.read())
        kernels = _kernels(options, lambda: trainer.step(2 + STEPS))
    except torch.OutOfMemoryError:
        return {"depth": depth, "rows": rows, "way": way, "out_of_memory": True}
    tokens = options.step_rows * shape.sequence_len
    least = needed(shape, tokens, options.dtype)
    parts = {
        phase: {"ms": statistics.median(each[phase] for each in taken), **figures}
        for phase, figures in least.items()
    }
    return {"depth": depth, "rows": rows, "way": way, "parts": parts, "kernels": kernels}


def _kernels(options: Options, run: Any) -> list[dict[str, Any]]:
    """Those of one step that take longest: name, calls, milliseconds."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if options.on_gpu else [])]
    with profile(activities=kinds) as seen:
        run()
    attribute = "self_device_time_total" if options.on_gpu else "self_cpu_time_total"
    found = [
        {"name": each.key, "calls": each.count, "ms": getattr(each, attribute) / 1000}
        for each in seen.key_averages()
    ]
    return sorted(found, key=lambda each: -each["ms"])[:KERNELS]
