"""How far pip has come with an environment, by what lies on the disk: old versions tell nobody."""

from __future__ import annotations

import contextlib
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Walking an environment of 20,000 files takes a tenth of a second.
_LOOK_S = 1.0
DOWNLOADING, UNPACKING = "downloading", "unpacking"


class InstallWatch:
    """Tells now and then how many bytes have come, then how many are unpacked.

    downloads: where pip keeps what it downloads; wheels: a folder of wheels that are here; None:
    pip downloads them. send: takes parts of an answer.
    """

    def __init__(
        self,
        environment: Path,
        downloads: Path,
        wheels: Path | None,
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._environment, self._downloads, self._wheels = environment, downloads, wheels
        self._send = send
        self._over = threading.Event()
        self._total: int | None = None
        self._before = 0
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def unpacking(self) -> None:
        """All wheels are here, and pip unpacks them from now on."""
        self._before = folder_bytes(self._environment / "lib")
        wheels = (self._wheels or self._downloads).rglob("*.whl")
        self._total = sum(map(_unpacked_bytes, wheels))

    def __enter__(self) -> InstallWatch:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            if self._total is not None:
                done = folder_bytes(self._environment / "lib") - self._before
                # What pip compiles comes on top of what was packed.
                self._tell(UNPACKING, max(0, min(done, self._total)), self._total)
            elif self._wheels is None:
                self._tell(DOWNLOADING, folder_bytes(self._downloads), None)

    def _tell(self, stage: str, done: int, total: int | None) -> None:
        self._send({"stage": stage, "done": done, "total": total})


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, which may change meanwhile; links count nothing."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                # Whatever pip has just removed is gone.
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _unpacked_bytes(wheel: Path) -> int:
    try:
        with zipfile.ZipFile(wheel) as packed:
            return sum(each.file_size for each in packed.infolist())
    except (OSError, zipfile.BadZipFile):
        # pip will say what is wrong with it.
        return 0
