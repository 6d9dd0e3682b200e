"""In which number formats gradients and updates travel: what `--sync` names."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from yoked.train.sync.codecs import CODECS, Codec


@dataclass(frozen=True)
class Payload:
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


PAYLOADS: dict[str, Payload] = {
    "exact": Payload("exact", None, None),
    "bf16": Payload("bf16", CODECS["bf16"], torch.bfloat16),
    "int8": Payload("int8", CODECS["int8"], torch.bfloat16),
    "int4": Payload("int4", CODECS["int4"], torch.bfloat16),
}
