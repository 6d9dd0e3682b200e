"""A command on a controller that has not what training needs: it goes on where that is.

yoked without its extra `train` has neither torch nor numpy. Where `yoked install` made an
environment on this machine, its Python runs the same command line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import yoked
from yoked.core.faults import fault
from yoked.core.source import TRAIN, install_line
from yoked.errors import YokedError

# This yoked comes last: all that the environment has is its own.
_GO_ON = (
    "import sys; sys.path.append({place!r}); sys.argv[0] = {called!r};"
    "from yoked.cli.main import main; sys.exit(main())"
)


def run_with_extra(problem: ModuleNotFoundError, tokens: Sequence[str]) -> YokedError | None:
    """Replace this process by the same command in the environment that `yoked install` made here.

    Without one, return the error that has the line to install the extra; None: the module that is
    missing is none of the extra's, so it is a bug.
    """
    if (problem.name or "").partition(".")[0] not in _extra_modules():
        return None
    python = environment_here()
    if python is not None:
        program = _GO_ON.format(place=str(Path(yoked.__file__).parents[1]), called=sys.argv[0])
        sys.stdout.flush()
        sys.stderr.flush()
        # -P: no module of the folder where the person stands (docs/security.md).
        os.execv(python, [str(python), "-P", "-c", program, *tokens])  # noqa: S606 - without a shell
    return fault("extra-missing", package=problem.name, install=install_line())


def _extra_modules() -> set[str]:
    try:
        asked = metadata.requires("yoked") or []
    except metadata.PackageNotFoundError:
        return {"torch", "numpy"}
    names = (re.match(r"[\w.-]+", line) for line in asked if re.search(rf"extra == .{TRAIN}", line))
    # Each is imported by its own name.
    return {found.group().replace("-", "_") for found in names if found}


def environment_here() -> Path | None:
    """The Python of the environment; None: there is none, or it is what runs now."""
    from yoked.agent.environments import whole_environment
    from yoked.launch.requirements import requirements_digest, train_requirements

    python = whole_environment(requirements_digest(train_requirements()))
    return None if python is None or python.parents[1].samefile(sys.prefix) else python
