"""The agent as one file of bytes, the same for the same sources."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import yoked

# All that the agent imports, and nothing else: tests hold this list to its imports.
PARTS = (
    "__init__.py",
    "errors.py",
    "paths.py",
    "shape.py",
    "core",
    "agent",
)
_MAIN = "import sys\nfrom yoked.agent.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
# The oldest time that a zip can hold: a stamp of today would be another file tomorrow.
_STAMP = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class AgentFile:
    """content: a zipapp that any Python from 3.9 on runs; digest: its SHA-256, in hex."""

    content: bytes
    digest: str


@functools.cache
def agent_file() -> AgentFile:
    """The agent of this very version, built from the installed sources."""
    root = Path(yoked.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for part in PARTS:
            path = root / part
            for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
                _add(archive, f"yoked/{file.relative_to(root).as_posix()}", file.read_bytes())
    content = buffer.getvalue()
    return AgentFile(content, hashlib.sha256(content).hexdigest())


def boot_script() -> bytes:
    """What the host's Python runs first; see yoked.agent.boot."""
    return (Path(yoked.__file__).parent / "agent" / "boot.py").read_bytes()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _STAMP)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)
