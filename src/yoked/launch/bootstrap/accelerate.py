"""Hugging Face accelerate shares gradients over CPUs only if it is told to compute on them.

Under torchrun on ranks without a GPU, `Accelerator()` starts the process group and then lets each
rank train a model of its own, silently. `accelerate launch --cpu` tells it by an environment
variable, and so do we, at the moment when the program imports it.
"""

from __future__ import annotations

import os

from yoked.launch.bootstrap.group import Ranks
from yoked.launch.bootstrap.substitutions import before_import, log_substitution

_SETTING = "ACCELERATE_USE_CPU"


def prepare(ranks: Ranks) -> None:
    """Wait for the program to import accelerate. Once in a process, with several ranks."""

    def tell() -> None:
        if _SETTING not in os.environ and not ranks.all_have_cuda:
            os.environ[_SETTING] = "true"
            log_substitution(f"{_SETTING}=true", "without it accelerate shares nothing over CPUs")

    if ranks.count > 1:
        before_import("accelerate", tell)
