"""Gigabytes of float32 a second that each codec encodes and decodes on one core, and the rounding
error of 4-bit blocks by their length and scale, on gradients of a small model.

usage: python benchmarks/codecs/bench.py [--quick]

Writes results/results.json; with --quick, a short look and nothing written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.costmodel.model_shape import ModelShape
from yoked.train import kernels
from yoked.train.model.gpt import GPT
from yoked.train.sync.codecs import CODECS

HERE = Path(__file__).resolve().parent
DOCUMENTS = HERE.parents[1] / "docs"
# The lm_head of the d4 model with the seeds' vocabulary: four times what a core's cache holds.
NUMBERS = 32_768 * 256
MODEL = ModelShape(
    sequence_len=256,
    vocab_size=256,
    n_layer=4,
    n_head=4,
    n_kv_head=4,
    n_embd=256,
    window_pattern="L",
)
ROWS = 4
INT4_STEPS = 7


def gigabytes_per_s(act: Callable[[], object], rounds: int) -> float:
    """Of the fastest round, counted in the float32 that goes in or comes out.

    By the processor time of this thread, which does it all: others may want the core meanwhile.
    """
    act()
    times_s = []
    for _ in range(rounds):
        started_s = time.thread_time()
        act()
        times_s.append(time.thread_time() - started_s)
    return 4 * NUMBERS / min(times_s) / 1e9


def speeds(rounds: int) -> list[dict[str, Any]]:
    values, residual, out = torch.randn(NUMBERS), torch.zeros(NUMBERS), torch.empty(NUMBERS)
    rows = []
    for codec in CODECS.values():
        payload = torch.empty(codec.encoded_bytes(NUMBERS), dtype=torch.uint8)
        acts: dict[str, Callable[[], object]] = {
            "encode": lambda c=codec, p=payload: c.encode(values, p),
            "encode_feedback": lambda c=codec, p=payload: c.encode(values, p, residual),
            "decode": lambda c=codec, p=payload: c.decode(p, out),
            "decode_add": lambda c=codec, p=payload: c.decode(p, out, add=True),
        }
        figures = {name: gigabytes_per_s(act, rounds) for name, act in acts.items()}
        rows.append({"codec": codec.name, "bits": codec.bits, **figures})
    rows.append(
        {"codec": "copy", "bits": 32, "encode": gigabytes_per_s(lambda: out.copy_(values), rounds)}
    )
    return rows


def gradients(steps: int) -> Tensor:
    """Of all matrices, after so many steps on this project's own documents, byte by byte."""
    text = b"".join(path.read_bytes() for path in sorted(DOCUMENTS.glob("*.md")))
    data = torch.tensor(list(text))
    model = GPT(MODEL)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dice = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(0, len(data) - MODEL.sequence_len - 1, (ROWS,), generator=dice)
        rows = torch.stack([data[start : start + MODEL.sequence_len + 1] for start in starts])
        logits = F.linear(model(rows[:, :-1]), model.lm_head.weight)
        loss = F.cross_entropy(15 * torch.tanh(logits / 15).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"gradients after {steps} steps, loss {loss.item():.2f}", file=sys.stderr)
    matrices = [p.grad for p in model.parameters() if p.grad is not None and p.dim() == 2]
    return torch.cat([matrix.reshape(-1) for matrix in matrices])


def int4_error(values: Tensor, block: int, scale_dtype: torch.dtype) -> float:
    """Root mean square of what is lost, relative to that of the values."""
    blocks = values[: len(values) // block * block].view(-1, block)
    scales = blocks.abs().amax(dim=1, keepdim=True) / INT4_STEPS
    scales = scales.to(scale_dtype).float().clamp_min(torch.finfo(torch.float32).tiny)
    lost = blocks - (blocks / scales).round() * scales
    return (lost.square().mean() / blocks.square().mean()).sqrt().item()


def block_errors(steps: int) -> list[dict[str, Any]]:
    values = gradients(steps)
    rows = []
    for block in (32, 64, 128):
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            bits = 4 + 8 * dtype.itemsize / block
            error = int4_error(values, block, dtype)
            # One bit more halves the error of evenly spaced steps.
            at_4_bits = error * 2 ** (bits - 4)
            rows.append(
                {
                    "block": block,
                    "scale": name,
                    "bits": bits,
                    "error": error,
                    "at_4_bits": at_4_bits,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    print("  ".join(f"{name:>15}" for name in names))
    for row in rows:
        cells = [row.get(name, "") for name in names]
        print("  ".join(f"{c:>15.3f}" if isinstance(c, float) else f"{c:>15}" for c in cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rounds = 2 if quick else 15
    built = kernels.kernels()
    found: dict[str, Any] = {"numbers": NUMBERS, "kernels": built.reason}
    found["compiled"] = speeds(rounds) if built.available else []
    kernels.switch_off("measuring PyTorch's own")
    found["pytorch"] = speeds(max(rounds // 3, 1))
    kernels.switch_on()
    found["int4_blocks"] = block_errors(3 if quick else 60)
    for title in ("compiled", "pytorch", "int4_blocks"):
        print(f"\n{title}")
        show(found[title])
    if not quick:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        (results / "results.json").write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
