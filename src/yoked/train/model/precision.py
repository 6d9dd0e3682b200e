"""The dtype of sums: float32 where a tensor is narrower; float64 stays.

Runs compute in float32 or bfloat16. Tests run the same code in float64, as the exact result that
tells a rounding error from a mistake.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or the dtype itself where it is wider."""
    return torch.promote_types(dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    """The tensor in `wide` of its dtype: not copied where it has that already."""
    return x.to(wide(x.dtype))
