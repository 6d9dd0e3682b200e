"""A rank of a real run that sleeps for each row it computes: ROW_S has the seconds by rank."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch import Tensor

from yoked.train.__main__ import main
from yoked.train.model.gpt import GPT

RANK = int(os.environ["RANK"])
ROW_S = [float(part) for part in os.environ["ROW_S"].split(":")]
forward = GPT.forward


def sleep_by_row(model: GPT, ids: Tensor, *rest: Any, **named: Any) -> Any:
    if torch.is_grad_enabled():  # not while it evaluates
        time.sleep(ROW_S[RANK] * ids.size(0))
    return forward(model, ids, *rest, **named)


if __name__ == "__main__":
    GPT.forward = sleep_by_row  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
