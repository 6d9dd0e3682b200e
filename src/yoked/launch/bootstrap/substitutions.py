"""What the bootstrap changes under a program: put in its place, and said once, with the reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

_told: set[str] = set()


def log_substitution(what: str, because: str, *, on_each_host: bool = False) -> None:
    """Write `yoked: WHAT, because WHY` to stderr: on rank 0, the first time only.

    on_each_host: by the first rank of every host, for what is one host's own.
    """
    speaker = os.environ.get("LOCAL_RANK" if on_each_host else "RANK", "0")
    if what in _told or speaker != "0":
        return
    _told.add(what)
    sys.stderr.write(f"yoked: {what}, because {because}\n")
    sys.stderr.flush()


def replace_everywhere(native: Callable[..., Any], make: Callable[[Any], Any]) -> None:
    """Put `make(native)` in its place, in all of torch's modules that hold it by its name."""
    name = native.__name__
    ours = wraps(native)(make(native))
    for module in _torch_modules():
        if vars(module).get(name) is native:
            setattr(module, name, ours)


def _torch_modules() -> Iterable[Any]:
    holders = ("torch.distributed", "torch.nn.parallel")
    return [module for name, module in list(sys.modules.items()) if name.startswith(holders)]
