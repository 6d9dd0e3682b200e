"""Bytes between a GPU and host memory: pageable, page-locked, and beside a computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from sides import Options

from yoked.train.decisions.timing import best_time_s

MEGABYTES = (1, 4, 16, 64, 400)
PRODUCT = 4096


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """A result for each size: bytes a second by way."""
    for megabytes in MEGABYTES[:2] if options.tiny else MEGABYTES:
        if options.late:
            return
        there = torch.ones(megabytes * 1_000_000 // 4, device=options.device)
        ways: dict[str, Callable[[], object]] = {"to_host_pageable": there.cpu}
        pageable = torch.empty(there.shape)
        ways["to_device_pageable"] = lambda there=there, host=pageable: there.copy_(host)
        if options.on_gpu:
            locked = torch.empty(there.shape, pin_memory=True)
            ways["to_host_pinned"] = lambda there=there, host=locked: host.copy_(
                there, non_blocking=True
            )
            ways["to_device_pinned"] = lambda there=there, host=locked: there.copy_(
                host, non_blocking=True
            )
        taken = {name: best_time_s(run, options.device) for name, run in ways.items()}
        rates = {name: there.nbytes / took_s for name, took_s in taken.items()}
        beside = _beside(options, there) if options.on_gpu else {}
        yield {"megabytes": megabytes, "bytes_per_s": rates, **beside}


def _beside(options: Options, there: torch.Tensor) -> dict[str, float]:
    """What products take alone, and with a copy to the host on a stream of its own."""
    a = torch.randn(PRODUCT, PRODUCT, device=options.device).bfloat16()
    host = torch.empty(there.shape, pin_memory=True)
    stream = torch.cuda.Stream(options.device)
    # As many as take longer than the copy.
    count = 1 + int(there.nbytes / 10e9 / best_time_s(lambda: a @ a, options.device))

    def products() -> None:
        for _ in range(count):
            a @ a

    def both() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            host.copy_(there, non_blocking=True)
        products()

    alone_s, both_s = best_time_s(products, options.device), best_time_s(both, options.device)
    return {"products_alone_s": alone_s, "products_beside_a_copy_s": both_s}
