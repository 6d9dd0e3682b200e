"""Topologies by name, or by the path of a file."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from yoked.errors import UsageError
from yoked.lab.topology import Topology, hint
from yoked.lab.topology_file import read


def load(name_or_path: str) -> Topology:
    """A shipped topology by name, or that of a file (has a slash, ends in .toml, or is there).

    Raises UsageError: unknown name, or what is wrong in the file, with its line.
    """
    names = _files()
    path = Path(name_or_path).expanduser()
    if "/" not in name_or_path and path.suffix != ".toml":
        if name_or_path in names:
            return read(names[name_or_path].read_bytes(), name=name_or_path, source=name_or_path)
        if not path.is_file():
            raise UsageError(
                f"there is no topology {name_or_path!r}",
                fix=hint(name_or_path, names, "shipped") + "; or the path of a TOML file",
            )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the topology {name_or_path} cannot be read: {error.strerror}",
            fix=hint(path.stem, names, "shipped"),
        ) from error
    # The name becomes part of folder and group names.
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "lab"
    return read(content, name=name, source=name_or_path)


def shipped() -> dict[str, str]:
    """Descriptions of the topologies that come with yoked, by name."""
    return {name: load(name).description for name in _files()}


def _files() -> dict[str, Any]:
    folder = resources.files("yoked.lab") / "topologies"
    found = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file for file in sorted(found, key=lambda f: f.name)}
