"""Files of a program that stand before modules of Python's own library, or of torch's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

# And what torch imports beside it, at once.
_OF_TORCH = frozenset({"torch", "torchgen", "functorch", "numpy", "typing_extensions"})
_MODULE = re.compile(r"(\w+)(\.py|/__init__\.py|(?:\.abi3|\.cpython-[\w-]+linux-\w+)?\.so)")


def shadowing(names: Iterable[str]) -> list[str]:
    """Which of these files have the names of modules that torch imports.

    names: below the folder of the program. Of Python's library those count that this very process
    has imported: torch needs them as well, and beside such a file it fails. A name of the library
    that hardly anybody imports, such as test, does no harm.
    """
    # Not before Python 3.10.
    known: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())
    loaded = (known & sys.modules.keys()) | _OF_TORCH
    found = {name: _MODULE.fullmatch(name) for name in names}
    return sorted(name for name, match in found.items() if match and match[1] in loaded)
