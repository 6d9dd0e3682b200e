"""Which rank this process is."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class RankInfo:
    """Where this process stands among the ranks, as torchrun tells it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def from_environment(cls) -> RankInfo:
        """As torchrun's variables have it; without them, the only rank."""
        read = {
            name: int(os.environ.get(name, default))
            for name, default in (
                ("RANK", "0"),
                ("LOCAL_RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("LOCAL_WORLD_SIZE", "1"),
            )
        }
        return cls(read["RANK"], read["LOCAL_RANK"], read["WORLD_SIZE"], read["LOCAL_WORLD_SIZE"])
