"""Files of a program that stand before modules of Python's own library."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_MODULE = re.compile(r"(\w+)(\.py|/__init__\.py)")


def shadowing(names: Iterable[str]) -> list[str]:
    """Which of these files have the names of modules that this very process has imported.

    names: below the folder of the program. What is needed here, torch imports as well: beside such
    a file it fails. A name of the library that hardly anybody imports, such as test, does no harm.
    """
    # Not before Python 3.10.
    known: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())
    loaded = known & sys.modules.keys()
    found = {name: _MODULE.fullmatch(name) for name in names}
    return sorted(name for name, match in found.items() if match and match[1] in loaded)
