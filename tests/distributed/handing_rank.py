"""A rank of a real run that hands over lm_head work from the first step: HANDOVERS has source,
helper and tokens of each, such as 1:0:48.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from yoked.timeline.evening import Handover
from yoked.train.__main__ import main
from yoked.train.trainer import Trainer

AGREED = tuple(
    Handover(*map(int, each.split(":"))) for each in os.environ["HANDOVERS"].split() if each
)
begin = Trainer.__init__


def agree(trainer: Trainer, *rest: Any, **named: Any) -> None:
    begin(trainer, *rest, **named)
    trainer.reshare(trainer.ranges, AGREED)


if __name__ == "__main__":
    Trainer.__init__ = agree  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
