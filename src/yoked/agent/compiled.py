"""What torch.compile made on this host, kept from one job to the next.

    <cache>/compiled/<CPU>-py<version>-torch<version>/

torch's own place, a folder in /tmp, is gone after a restart, may be made by somebody else first,
and knows nothing of the CPU: machine code from another one, in a home that hosts share, would end
a rank by SIGILL. Standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.agent.fetch import files_below
from yoked.agent.files import blob_path, require, writing_to
from yoked.agent.folders import LABEL, making_beside, place_entry, sweep, take_away
from yoked.agent.processors import cpu_type
from yoked.agent.server import Call
from yoked.core.fs import lock_folder
from yoked.core.torchbuild import torch_version
from yoked.paths import cache_root, private_folder

# Read by torch._inductor; its entries for triton go below it too.
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# The kernels of a GPT in some shapes take tens of megabytes.
_MOST_BYTES = 2 << 30
# Of processes that compile just now, and of no use to others.
_OWN = re.compile(r"(?:^|/)locks?/|\.(?:lock|tmp)$")


def compiled_root() -> Path:
    """Where the folders are."""
    return cache_root() / "compiled"


def compiled_label(python: str, torch: str) -> str:
    """A folder's name. python, torch: versions of what compiles, such as 3.11.4 and 2.13.0+cpu."""
    minor = ".".join(python.split(".")[:2])
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{cpu_prefix()}py{minor}-torch{torch}")


def cpu_prefix() -> str:
    """What the names of all folders for this type of CPU begin with."""
    return f"{hashlib.sha256(cpu_type().encode()).hexdigest()[:12]}-"


@contextlib.contextmanager
def kept_for_ranks() -> Iterator[None]:
    """Have the ranks that are started meanwhile keep what they compile, and find what is there.

    What a person has set stays. Afterwards what was not used for longest goes, where all of it is
    too much.
    """
    torch = torch_version()
    if VARIABLE in os.environ or torch is None:
        yield
        return
    folder = compiled_root() / compiled_label("{}.{}".format(*sys.version_info), torch)
    held = hold(folder)
    if held is None:
        yield
        return
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        os.close(held)
        with contextlib.suppress(OSError):
            prune(_MOST_BYTES)


def hold(folder: Path) -> int | None:
    """A descriptor while which nobody removes the folder; None: it cannot be made."""
    for _ in range(3):
        try:
            private_folder(folder)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            held = os.open(folder, flags)
        except OSError:
            return None
        # On a disk without locks nobody can remove it either.
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            os.utime(folder)
            # Somebody may just have removed the one that was opened.
            if os.path.samestat(os.fstat(held), folder.stat()):
                return held
        os.close(held)
    return None


def prune(most_bytes: int) -> None:
    """Remove folders that no job uses, the one that was not used for longest first, until the rest
    takes so much at most.
    """
    # What was killed meanwhile has left.
    sweep(compiled_root())
    found = _folders()
    total_bytes = sum(size_bytes for _, _, size_bytes in found)
    for _, folder, size_bytes in sorted(found):
        if total_bytes <= most_bytes:
            return
        if _remove(folder):
            total_bytes -= size_bytes


def answer_compiled_list(call: Call) -> list[dict[str, Any]]:
    """Each folder: label, folder, size_bytes, unused_s (0: a job uses it)."""
    del call
    return [
        {
            "label": folder.name,
            "folder": str(folder),
            "size_bytes": size_bytes,
            "unused_s": 0.0 if _is_used(folder) else max(0.0, time.time() - used_s),
        }
        for used_s, folder, size_bytes in sorted(_folders())
    ]


def answer_compiled_remove(call: Call) -> bool:
    """Remove a folder by its label; false: a job uses it, or it is gone."""
    return _remove(_folder(call.args["label"]))


def answer_compiled_here(call: Call) -> dict[str, int] | None:
    """{path: bytes} of what is in the folder `label`; None: it is for another type of CPU."""
    folder = _folder(call.args["label"])
    return files_in(folder) if folder.name.startswith(cpu_prefix()) else None


def answer_compiled_put(call: Call) -> None:
    """Put files whose content is here into folder `label`.

    data: the packed entries. The blobs go: that frees the space once the folder is removed.
    """
    folder = _folder(call.args["label"])
    require(folder.name.startswith(cpu_prefix()), f"compiled code {folder.name!r} of another CPU")
    entries = json.loads(zlib.decompress(call.data))
    making = making_beside(folder)
    with writing_to(folder, sum(entry[3] for entry in entries)), contextlib.ExitStack() as after:
        if (held := hold(folder)) is not None:
            after.callback(os.close, held)
        private_folder(making)
        after.callback(shutil.rmtree, making, ignore_errors=True)
        for entry in entries:
            place_entry(making, *entry)
            target = folder / entry[0]
            private_folder(target.parent)
            # A rank that reads meanwhile finds a whole file, or none.
            (making / entry[0]).rename(target)
    for _, _, digest, _ in entries:
        blob_path(digest).unlink(missing_ok=True)


def files_in(folder: Path) -> dict[str, int]:
    """{path below it: bytes} of what torch.compile finds again."""
    return {below: size for below, size, _ in files_below(folder) if not _OWN.search(below)}


def _folder(label: str) -> Path:
    require(LABEL.fullmatch(label), f"a folder {label!r}")
    return compiled_root() / label


def _folders() -> list[tuple[float, Path, int]]:
    """When each was used last, seconds since the epoch; itself; its bytes."""
    found = []
    for folder in compiled_root().glob("*/"):
        if LABEL.fullmatch(folder.name):
            with contextlib.suppress(OSError):
                used_s = folder.stat().st_mtime
                sizes = (path.lstat().st_size for path in folder.rglob("*"))
                found.append((used_s, folder, sum(sizes)))
    return found


def _is_used(folder: Path) -> bool:
    try:
        os.close(lock_folder(folder, wait=False))
    except OSError:
        return True
    return False


def _remove(folder: Path) -> bool:
    """Remove a folder that nobody uses; whether it could be."""
    try:
        held = lock_folder(folder, wait=False)
    except OSError:
        return False
    try:
        # Whoever comes now makes a new one.
        take_away(folder)
    except OSError:
        return False
    finally:
        os.close(held)
    return True
