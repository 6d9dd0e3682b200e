"""Names of runs, each a folder on every host and a word of command lines; of data; of files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
RUN_NAME_RULE = "letters, digits and . _ - only, at most 80, a letter or digit first"

# Of data that a person pushes: in capitals it ends a variable of the environment.
DATA_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_]{0,38}[a-z0-9])?")
DATA_NAME_RULE = "small letters, digits and _ only, at most 40, and not `home`"

# Of what a rank writes beside its record when it is asked where its threads are.
STACKS_SUFFIX = ".stacks"
# And what its last collectives were, as it was ended.
CALLS_SUFFIX = ".calls"
# And what it did and when, once a trace of it was asked for.
TRACE_SUFFIX = ".trace"

# A byte of a name that is no UTF-8, as os.fsdecode has it.
NOT_UTF8 = re.compile("([\udc80-\udcff])")


def path_word(path: Path | str) -> str:
    """A path as one word of a line to paste, which no program takes for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
