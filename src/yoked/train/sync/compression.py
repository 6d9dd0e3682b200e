"""In which number formats gradients and updates travel: what `--sync` names."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from yoked.train.sync.codecs import CODECS, Codec


@dataclass(frozen=True)
class GradientCompression:
    """dense: of the lm_head's and the matrices' gradients and updates. rows: of the embedding
    tables' gradients, which have no memory of what rounding lost, because every step touches
    other rows. None for either: as it is computed.
    """

    name: str
    dense: Codec | None
    rows: torch.dtype | None

    @property
    def exact(self) -> bool:
        """Whether nothing is lost on the way."""
        return self.dense is None


COMPRESSIONS: dict[str, GradientCompression] = {
    "exact": GradientCompression("exact", None, None),
    "bf16": GradientCompression("bf16", CODECS["bf16"], torch.bfloat16),
    "int8": GradientCompression("int8", CODECS["int8"], torch.bfloat16),
    "int4": GradientCompression("int4", CODECS["int4"], torch.bfloat16),
}
