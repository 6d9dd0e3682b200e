"""Compare prepared rows with their recorded SHA-256, beside a run and in spare time.

Another process reads, because a thread that gives way may be stopped while it holds the
interpreter's lock, and the training thread would wait for it. It runs under SCHED_IDLE, and with
the standard library alone, so that a host whose every core computes does not notice it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from yoked.paths import cache_root
from yoked.spare import give_way
from yoked.tether import tie_to_parent
from yoked.train.data.files import read_json, write_json
from yoked.train.data.hashes import SETTLED_NS

if TYPE_CHECKING:
    from yoked.train.data.dataset import Dataset

# A disk can lose what it once held: what was good is read again after so long.
GOOD_FOR_S = 7 * 86_400.0
_CHUNK_BYTES = 1 << 18
_SOURCE = Path(__file__).parents[3]
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from yoked.train.data.verify import main; main(sys.argv[1:])"
)
# By these, others recognise a rank.
_OF_A_RANK = ("RANK", "LOCAL_RANK")

# Number of the inode, size in bytes, and the times of the last change of content and of the
# inode, in nanoseconds.
Stamp = list[int]


class Verification:
    """The row files of a dataset on their way to being verified, once a host.

    What was found good is remembered in the cache for `GOOD_FOR_S`, as long as the file stays as
    it is. A run that ends before all is read leaves the rest to the next one.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._memory = _memory_of(dataset.folder)
        self._expected = {
            rows.path: stats.sha256
            for rows, stats in (
                (dataset.train, dataset.info.train),
                (dataset.val, dataset.info.val),
            )
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to read what is not remembered as good."""
        known = read_json(self._memory) or {}
        todo = [path for path in self._expected if not self._is_good(path, known.get(path.name))]
        if not todo:
            return
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _START, str(_SOURCE)),
                *(str(os.getpid()), *map(str, todo)),
            ],
            env={key: value for key, value in os.environ.items() if key not in _OF_A_RANK},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def over(self) -> bool:
        """Whether nothing is being read any more, and `check` has seen what came of it."""
        return self._process is None

    def check(self) -> None:
        """Take in what was found; costs a system call while files are being read.

        Raises DataError when a file is not what it was when it was prepared.
        """
        if self._process is None or self._process.poll() is None:
            return
        assert self._process.stdout is not None
        with self._process.stdout as said:
            lines = said.read().splitlines()
        self._process = None
        # What was killed in the middle has told of some files, or of none.
        found = [json.loads(line) for line in lines if line.endswith(b"}")]
        for each in found:
            path = Path(each["path"])
            if each["sha256"] != self._expected[path]:
                why = each["problem"] or "its sha256 is not the one in dataset.json"
                raise self._dataset.damaged(path, f"{why}. This run has trained on it so far")
        self._remember(found)

    def close(self) -> None:
        """Stop reading; harmless when nothing is being read."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _is_good(self, path: Path, known: object) -> bool:
        try:
            match known:
                case [*stamp, str(sha256), int() | float() as at_s]:
                    return (
                        stamp == stamp_of(path)
                        and sha256 == self._expected[path]
                        and 0 <= time.time() - at_s < GOOD_FOR_S
                    )
        except OSError:
            pass
        return False

    def _remember(self, found: list[Mapping[str, object]]) -> None:
        known = read_json(self._memory) or {}
        for each in found:
            stamp = each["stamp"]
            # A second change within the resolution of the file system's clock would not be seen.
            if isinstance(stamp, list) and time.time_ns() - max(stamp[2:]) > SETTLED_NS:
                known[Path(str(each["path"])).name] = [*stamp, each["sha256"], time.time()]
        # It only saves time: a cache that others prepared may well be read-only.
        with contextlib.suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._memory, known)


def stamp_of(path: Path) -> Stamp:
    """What changes when a file does. Raises OSError."""
    found = path.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _memory_of(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return cache_root() / "verified" / f"{name[:16]}.json"


def main(argv: list[str]) -> None:
    """Print one JSON object for each file: path, stamp, sha256 and problem.

    stamp: null where it did not stay as it was. problem: why the file could not be read, or null.
    """
    give_way()
    tie_to_parent(int(argv[0]))
    for path in map(Path, argv[1:]):
        stamp, sha256, problem = None, None, None
        try:
            stamp = stamp_of(path)
            sha256 = _digest(path)
            if stamp_of(path) != stamp:
                stamp = None
        except OSError as error:
            problem = f"it cannot be read: {error.strerror}"
        said = {"path": str(path), "stamp": stamp, "sha256": sha256, "problem": problem}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _digest(path: Path) -> str:
    digest, chunk = hashlib.sha256(), bytearray(_CHUNK_BYTES)
    view = memoryview(chunk)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            digest.update(view[:size])
    return digest.hexdigest()
