"""Send prepared data to a host: whole or not at all, and only where it is missing.

A data set's folder is named by what it is made of, so its name says whether a host has it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from yoked.agent.compiled import compiled_label, compiled_root, cpu_prefix, files_in
from yoked.agent.folders import FILE, LABEL, kernel_keys
from yoked.agent.processors import cpu_type
from yoked.core.fs import read_json, sha256_of
from yoked.errors import DataError, UsageError
from yoked.launch.blobs import Progress, push_blobs, unreadable
from yoked.launch.environment import host_versions
from yoked.launch.trees import Tree, TreeEntry, put_folder
from yoked.paths import cache_root
from yoked.remote.client import AgentClient

MANIFEST = "dataset.json"
LIBRARY = "elementwise.so"
_PLACE_S = 120.0
# Half a minute at 100 Mbit/s: a GPT's graphs take about as long to compile.
_MOST_COMPILED_BYTES = 300 << 20


def push_data(client: AgentClient, folder: Path, progress: Progress | None = None) -> int:
    """Have a prepared data set on a host, under the same name in its cache; returns bytes sent.

    An attempt that was cut off goes on from where it was. Raises DataError when the folder holds
    no prepared data, and HostError.
    """
    manifest = _read_manifest(folder)
    label = folder.name
    if not LABEL.fullmatch(label):
        raise UsageError(
            f"{folder}: hosts cannot keep data under such a name",
            fix="letters, digits and . _ - only, a letter or digit first; rename the folder",
        )
    if client.call("folder_here", place="data", label=label) is not None:
        return 0
    entries = [
        _entry(path.relative_to(folder).as_posix(), path, _digest(path, manifest))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return put_folder(client, "data", label, Tree(folder, tuple(entries)), progress)[1]


def push_kernels(client: AgentClient) -> int:
    """Have on a host what was compiled here, if its CPU and C library are of the same type;
    returns bytes sent.

    A host uses them if its compiler is the same too: that is part of their name.
    """
    there: dict[str, Any] = client.call("kernels_here")
    if there["cpu"] != cpu_type():
        return 0
    sent = 0
    for key in sorted({*kernel_keys()} - {*there["keys"]}):
        path = cache_root() / "kernels" / key / LIBRARY
        tree = Tree(path.parent, (_entry(LIBRARY, path, sha256_of(path)),))
        sent += put_folder(client, "kernels", key, tree)[1]
    return sent


def push_compiled(client: AgentClient, python: str) -> int:
    """Have on a host what torch.compile made here, if its CPU, Python and torch are of the same
    type; returns bytes sent.

    python: the host's interpreter that will look for it. Only from here to a host, never back or
    to another one: what was compiled is run, and hosts trust nobody but the controller. As files:
    torch.compiler.save_cache_artifacts leaves out a CPU's machine code, which takes longest.
    """
    ours = [folder for folder in compiled_root().glob(f"{cpu_prefix()}*/") if any(folder.iterdir())]
    if not ours:
        return 0
    versions = host_versions(client, python, ("torch",))
    label = compiled_label(versions.python, versions.packages["torch"] or "")
    folder = compiled_root() / label
    if folder not in ours:
        return 0
    there: dict[str, int] | None = client.call("compiled_here", label=label)
    if there is None:
        return 0
    entries = []
    for name in _newest(folder, files_in(folder)):
        if name not in there:
            # A run here may be replacing it.
            with suppress(OSError):
                entries.append(_entry(name, folder / name, sha256_of(folder / name)))
    if not entries:
        return 0
    tree = Tree(folder, tuple(entries))
    sent_bytes = push_blobs(client, tree.files())
    client.call("compiled_put", label=label, data=tree.packed(), timeout_s=_PLACE_S)
    return sent_bytes


def _newest(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """The files that were made last, as many as are sent at most."""
    total, chosen = 0, []
    for name in sorted(sizes, key=lambda name: -(folder / name).stat().st_mtime):
        total += sizes[name]
        if total > _MOST_COMPILED_BYTES:
            break
        chosen.append(name)
    return chosen


def _entry(name: str, path: Path, digest: str) -> TreeEntry:
    return TreeEntry(name, FILE, digest, path.stat().st_size, path)


def _read_manifest(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST
    manifest = read_json(path)
    if manifest is None:
        raise DataError(
            f"{folder} holds no prepared data: {MANIFEST} is missing, or is no JSON object",
            fix=(
                f"yoked data prepare {shlex.quote(str(folder))}",
                "yoked data list    shows what is there",
            ),
        )
    return manifest


def _digest(path: Path, manifest: Mapping[str, Any]) -> str:
    """sha256 of a file. That of rows is on record: the host compares it with what arrives, which
    tells of damage here too, and saves reading 10 GB once more.
    """
    recorded = manifest.get(path.stem) if path.suffix == ".rows" else None
    if isinstance(recorded, dict) and isinstance(recorded.get("sha256"), str):
        return str(recorded["sha256"])
    try:
        return sha256_of(path)
    except OSError as problem:
        raise unreadable(path, problem) from problem
