"""The number format of sums: float32, whatever narrower one a tensor has; float64 stays.

Runs compute in float32 or bfloat16. In float64 the same code serves as the yardstick with
which tests tell rounding from mistakes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or the dtype itself where it is wider."""
    return torch.promote_types(dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    """The tensor in `wide` of its dtype; itself where it is that already."""
    return x.to(wide(x.dtype))
