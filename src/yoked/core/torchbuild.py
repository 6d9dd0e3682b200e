"""What the torch of this interpreter is built for, without importing it, which takes seconds.

Its text is also sent to interpreters that know nothing of yoked.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

# Of torch/version.py, such as `cuda: Optional[str] = '13.0'`.
_LINE = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:None|'([^'\n]*)')", re.MULTILINE)


def torch_build() -> dict[str, str | None]:
    """build: cpu, cuda or rocm; cuda_build: torch.version.cuda. None: no torch here tells it."""
    found = importlib.util.find_spec("torch")
    said = {}
    if found is not None and found.origin is not None:
        try:
            text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = ""
        said = dict(_LINE.findall(text))
    if "cuda" not in said:
        return {"build": None, "cuda_build": None}
    build = "rocm" if said.get("hip") else "cuda" if said["cuda"] else "cpu"
    return {"build": build, "cuda_build": said["cuda"] or None}
