"""Changes files of a host and puts them back; runs in the host, with its own Python.

    python -I -c SOURCE REQUEST

Standard library only, for any Python from 3.8 on. REQUEST and what is printed are JSON.

- {"do": "find", "package": NAME}: the folder of a package, its version and its metadata
- {"do": "list", "folder": PATH}: the folder's own path, and [path in it, size] of all its files
- {"do": "change", "keep": FOLDER, "changes": [{"path", and one of "remove", "flip": offset,
  "append": text, "replace": [pattern, by]}]}: the originals are kept before anything is changed
- {"do": "restore", "keep": FOLDER}: each file that still is as it was left gets its original back
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

# Enough to be seen by eye in a dump.
_FLIPPED_BYTES = 16


def main() -> None:
    """Do what is asked."""
    request = json.loads(sys.argv[1])
    acts: dict[str, Any] = {
        "find": _find,
        "list": _list,
        "change": _change,
        "restore": _restore,
    }
    try:
        answer = acts[request.pop("do")](**request)
    except OSError as problem:
        sys.exit(f"{problem.filename}: {problem.strerror}")
    json.dump(answer, sys.stdout)


def _find(package: str) -> dict[str, str] | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    found = {"folder": os.path.realpath(next(iter(spec.submodule_search_locations)))}
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return found
    place = Path(str(distribution.locate_file(""))).resolve()
    for pattern in ("*.dist-info/METADATA", "*.egg-info/PKG-INFO"):
        for path in place.glob(pattern):
            if path.parent.name.lower().partition("-")[0].removesuffix(".egg") == package:
                found["metadata"] = str(path)
    return found


def _list(folder: str) -> dict[str, Any]:
    top = Path(folder).expanduser().resolve()
    files = [
        [str(path.relative_to(top)), path.stat().st_size]
        for path in top.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    return {"folder": str(top), "files": sorted(files)}


def _change(keep: str, changes: list[dict[str, Any]]) -> None:
    folder = Path(keep).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    kept: list[dict[str, Any]] = []
    for number, change in enumerate(changes):
        copy = folder / str(number)
        # A link that is to go is kept as a link.
        shutil.copy2(change["path"], copy, follow_symlinks="remove" not in change)
        kept.append({"path": change["path"], "copy": str(copy), "left_as": None})
    for entry, change in zip(kept, changes):  # noqa: B905 - Python 3.8 has no strict
        path = Path(change["path"])
        content = _changed(path, change)
        entry["left_as"] = _digest(content)
        # Written down before each change, so that half of them can be undone, too.
        (folder / "index.new").write_text(json.dumps(kept), encoding="utf-8")
        (folder / "index.new").replace(folder / "index.json")
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        _forget_compiled(path)


def _changed(path: Path, change: dict[str, Any]) -> bytes | None:
    if "remove" in change:
        return None
    content = path.read_bytes()
    if "flip" in change:
        start: int = change["flip"]
        flipped = bytes(byte ^ 0xFF for byte in content[start : start + _FLIPPED_BYTES])
        return content[:start] + flipped + content[start + len(flipped) :]
    if "append" in change:
        more: str = change["append"]
        return content + more.encode()
    pattern, by = (str(text).encode() for text in change["replace"])
    return re.sub(pattern, lambda _: by, content, count=1, flags=re.MULTILINE)


def _digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _restore(keep: str) -> None:
    folder = Path(keep).expanduser()
    index = folder / "index.json"
    for entry in json.loads(index.read_text(encoding="utf-8")) if index.exists() else []:
        path = Path(entry["path"])
        # Anything else is somebody's own work by now, or was never changed.
        if _digest(path.read_bytes() if path.exists() else None) == entry["left_as"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(entry["copy"], path, follow_symlinks=False)
            _forget_compiled(path)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        # Where other faults keep nothing, either.
        folder.parent.rmdir()


def _forget_compiled(path: Path) -> None:
    """Python takes a compiled file for good when its time in seconds and its size are alike."""
    if path.suffix == ".py":
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


if __name__ == "__main__":
    main()
