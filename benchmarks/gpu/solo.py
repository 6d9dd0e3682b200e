"""Tokens a second, MFU and memory of a training step alone, by rows at once; nanochat's beside it.

All programs are in one process and take their steps by turns, so that what disturbs one disturbs
the other. Where memory has no room for all of them, each is measured by itself.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sides import Options, Step, nanochat_step, peak_bytes, yoked_step

from yoked.costmodel.model_shape import flops_per_token
from yoked.train.profile_step import flops_per_s


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """A result for each depth and number of rows."""
    rate = flops_per_s(options.device, options.dtype)
    for depth in options.depths:
        for rows in options.rows:
            if options.late:
                return
            programs = _programs(options, depth, rows)
            tokens = options.step_rows * options.shape(depth).sequence_len
            try:
                found = _by_turns(options, tokens, programs)
            except torch.OutOfMemoryError:
                found = {}
                for name, program in programs.items():
                    found |= _alone(options, tokens, name, program)
            flops = flops_per_token(options.shape(depth))
            for figures in found.values():
                if "tokens_per_second" in figures:
                    figures["mfu"] = figures["tokens_per_second"] * flops / rate
            yield {"depth": depth, "rows": rows, "flops_per_s": rate, "programs": found}


def _programs(options: Options, depth: int, rows: int) -> dict[str, Callable[[], Step]]:
    programs: dict[str, Callable[[], Step]] = {
        way: lambda way=way: yoked_step(options, depth, rows, compiled=way == "compiled")
        for way in options.ways
    }
    if options.nanochat is not None:
        compiled = "compiled" in options.ways
        programs["nanochat"] = lambda: nanochat_step(options, depth, rows, compiled=compiled)
    return programs


def _alone(options: Options, tokens: int, name: str, program: Callable[[], Step]) -> dict[str, Any]:
    try:
        return _by_turns(options, tokens, {name: program})
    except torch.OutOfMemoryError:
        return {name: {"out_of_memory": True}}


def _by_turns(
    options: Options, tokens: int, programs: dict[str, Callable[[], Step]]
) -> dict[str, Any]:
    """Figures by program. tokens: of a step. Raises OutOfMemoryError."""
    steps: dict[str, Step] = {}
    own, first_s, losses = {}, {}, {}
    gc.collect()  # what the last programs left in circles
    if options.on_gpu:
        torch.cuda.empty_cache()
    for name, program in programs.items():
        before = torch.cuda.memory_allocated(options.device) if options.on_gpu else 0
        steps[name] = program()
        started = time.perf_counter()
        steps[name](0)  # compiles, and makes what the optimizer keeps
        first_s[name] = time.perf_counter() - started
        losses[name] = steps[name](1)
        after = torch.cuda.memory_allocated(options.device) if options.on_gpu else 0
        own[name] = after - before
    taken: dict[str, list[float]] = {name: [] for name in steps}
    peaks = dict.fromkeys(steps, 0)
    numbers = dict.fromkeys(steps, 2)
    for _ in range(options.rounds):
        for name, step in steps.items():
            peak_bytes(options.device)
            until = time.perf_counter() + options.seconds
            while True:
                started = time.perf_counter()
                step(numbers[name])
                ended = time.perf_counter()
                numbers[name] += 1
                taken[name].append(ended - started)
                if ended > until:
                    break
            others = sum(own.values()) - own[name]
            peaks[name] = max(peaks[name], peak_bytes(options.device) - others)
    return {
        name: {
            "tokens_per_second": tokens / statistics.median(times),
            "step_s": times,
            "first_step_s": first_s[name],
            "second_loss": losses[name],
            "peak_bytes": peaks[name],
            "by_turns_with": [other for other in steps if other != name],
        }
        for name, times in taken.items()
    }
