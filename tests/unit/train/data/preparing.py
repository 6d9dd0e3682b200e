"""A program for tests: prepares data, and kills itself where it is told to.

python preparing.py CORPUS CACHE PACKING SHARD_BYTES [STAGE COUNT | limit BYTES]
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from yoked.errors import DataError
from yoked.train.data.prepare import prepare


class Killer:
    """Dies by SIGKILL, as by the out-of-memory killer, at the n-th update of a stage."""

    def __init__(self, stage: str, count: int) -> None:
        self._stage, self._left = stage, count

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        if stage == self._stage:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    corpus, cache, packing, shard_bytes, *how = sys.argv[1:]
    assert packing in ("pieces", "bestfit")
    sink = None
    if how and how[0] == "limit":
        # What a full disk does, for files above a size, and without being root.
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(how[1]), int(how[1])))
    elif how:
        sink = Killer(how[0], int(how[1]))
    try:
        found = prepare(
            corpus,
            max_seq_len=32,
            vocab_size=300,
            packing=packing,
            cache=Path(cache),
            progress=sink,
            shard_bytes=int(shard_bytes),
        )
    except DataError as error:
        print(error)
        return 1
    print(found.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
