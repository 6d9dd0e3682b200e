"""A rank of a real run whose lm_head goes from rank to rank: PLACES has step and rank of each move,
such as 2:1, without a rank where every one has it.
"""

from __future__ import annotations

import os
import sys

from yoked.train.__main__ import main
from yoked.train.trainer import StepStats, Trainer

MOVES = [each.split(":") for each in os.environ["PLACES"].split()]
PLACES = {int(step): int(rank) if rank else None for step, rank in MOVES}
take = Trainer.step


def move_and_take(trainer: Trainer, step: int) -> StepStats:
    if step in PLACES:
        trainer.place_head(PLACES[step])
    return take(trainer, step)


if __name__ == "__main__":
    Trainer.step = move_and_take  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
