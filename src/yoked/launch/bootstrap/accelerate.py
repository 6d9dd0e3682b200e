"""Hugging Face accelerate shares gradients over CPUs only if it is told to compute on them.

Under torchrun on ranks without a GPU, `Accelerator()` starts the process group and then lets each
rank train a model of its own, silently. `accelerate launch --cpu` tells it by an environment
variable, and so do we, at the moment when the program imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from yoked.launch.bootstrap.group import Ranks
from yoked.launch.bootstrap.substitutions import log_substitution

_SETTING = "ACCELERATE_USE_CPU"


class Watch(MetaPathFinder):
    """Finds no module: it is asked first, and so learns that accelerate is about to be loaded."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - a finder's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """None, always."""
        if fullname == "accelerate":
            sys.meta_path.remove(self)
            if _SETTING not in os.environ and not self._ranks.all_have_cuda:
                os.environ[_SETTING] = "true"
                log_substitution(
                    f"{_SETTING}=true", "without it accelerate shares nothing over CPUs"
                )
        return None


def prepare(ranks: Ranks) -> None:
    """Wait for the program to import accelerate. Once in a process, with several ranks."""
    if ranks.count > 1:
        sys.meta_path.insert(0, Watch(ranks))
