"""A program that uses torch.compile: it prints what was found compiled, and what was not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch._dynamo.utils import counters


@torch.compile
def loss_of(rows: torch.Tensor) -> torch.Tensor:
    """Something that is worth a kernel."""
    return torch.nn.functional.gelu(rows).square().mean()


loss_of(torch.ones(4, 16))
cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
found = {
    "hits": counters["inductor"]["fxgraph_cache_hit"]
    + counters["aot_autograd"]["autograd_cache_hit"],
    "misses": counters["inductor"]["fxgraph_cache_miss"],
    "libraries": sorted(f"{path.name} {path.stat().st_mtime_ns}" for path in cache.rglob("*.so")),
    "cache": str(cache),
    "folder": str(Path.cwd()),
}
print(json.dumps(found))
