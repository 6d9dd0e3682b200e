"""DistributedDataParallel's own hooks for gradients in bfloat16, on Gloo.

torch 2.13 refuses `bf16_compress_hook`, and a hook that `bf16_compress_wrapper` made, by their
names wherever it was not built with NCCL. Gloo sums bfloat16; nothing else stands in their way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from yoked.launch.bootstrap.gloo import serves
from yoked.launch.bootstrap.substitutions import log_substitution

_CHECK = "_check_comm_hook"
_REFUSED = ("bf16_compress_hook", "bf16_compress_wrapper_hook")


def accept_bf16_hooks() -> None:
    """Have DDP take them where its group is Gloo's. Once in a process."""
    native = getattr(DistributedDataParallel, _CHECK, None)
    if native is None:
        return

    @wraps(native)
    def check(model: DistributedDataParallel, hook: Callable[..., Any]) -> Any:
        name = getattr(hook, "__name__", "")
        if name not in _REFUSED or not serves(model.process_group, model.device):
            return native(model, hook)
        log_substitution(f"has DDP take {name}", "Gloo sums bfloat16, and torch asks for NCCL")

        # All else that torch looks at, such as its annotations, is the hook's own.
        @wraps(hook)
        def checked(*args: Any) -> Any:
            return hook(*args)

        checked.__name__ = "compress_hook"
        return native(model, checked)

    setattr(DistributedDataParallel, _CHECK, check)
