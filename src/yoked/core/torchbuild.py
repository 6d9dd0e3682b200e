"""What the torch of this interpreter is built for, without importing it, which takes seconds.

Its text is also sent to interpreters that know nothing of yoked.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

# Of torch/version.py, such as `cuda: Optional[str] = '13.0'`.
_LINE = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:None|'([^'\n]*)')", re.MULTILINE)
_VERSION = re.compile(r"^__version__ = '([^'\n]+)'", re.MULTILINE)


def torch_version() -> str | None:
    """Such as 2.13.0+cpu; None: no torch here tells it."""
    found = _VERSION.search(_version_text())
    return None if found is None else found[1]


def torch_build() -> dict[str, str | None]:
    """build: cpu, cuda or rocm; cuda_build: torch.version.cuda. None: no torch here tells it."""
    said = dict(_LINE.findall(_version_text()))
    if "cuda" not in said:
        return {"build": None, "cuda_build": None}
    build = "rocm" if said.get("hip") else "cuda" if said["cuda"] else "cpu"
    return {"build": build, "cuda_build": said["cuda"] or None}


def _version_text() -> str:
    """torch/version.py; empty: there is none."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return ""
    try:
        return Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
