"""Where people get yoked from, and the lines that install it.

`SOURCE` is the one place that changes on the day of publication: to `yoked`. Errors, `yoked
install` and the docs have it from here; tests/unit/core/test_source.py holds the docs to it.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from yoked import __version__

SOURCE = f"dist/yoked-{__version__}-py3-none-any.whl"
"""What pip, pipx and uv are told to install: a file that `make dist` writes in a checkout."""
TRAIN = "train"
"""The extra that a machine needs to train, and a controller does not."""


def with_extra(source: str) -> str:
    """A source with what training needs, as one word for a shell."""
    return shlex.quote(f"{source}[{TRAIN}]")


def install_line() -> str:
    """The line that brings the yoked that runs here what training needs.

    It names the file or folder from which this yoked was installed, where that is still there, and
    is for the tool that made the environment: pip adds nothing to one of pipx's or uv's that the
    next upgrade would keep.
    """
    source, is_editable = _installed_from()
    wanted = with_extra(source)
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {wanted}"
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install --force {wanted}"
    editable = "--editable " if is_editable else ""
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python} {editable}{wanted}"
    return f"{python} -m pip install {editable}{wanted}"


def _installed_from() -> tuple[str, bool]:
    """The source of this installation by its record (PEP 610), and whether it is editable.

    An installation from an index has no such record.
    """
    # Takes 20 ms to import, and only an error asks.
    from importlib import metadata

    try:
        record = json.loads(metadata.distribution("yoked").read_text("direct_url.json") or "{}")
        url = urlsplit(record["url"])
        path = Path(unquote(url.path))
        editable = bool(record.get("dir_info", {}).get("editable"))
    except (metadata.PackageNotFoundError, KeyError, ValueError, TypeError, AttributeError):
        return SOURCE, False
    if url.scheme == "file" and path.exists():
        return str(path), editable
    return SOURCE, False
