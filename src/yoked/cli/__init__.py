"""The command line."""

import os
import sys


def _pass_over_modules_here() -> None:
    """Take the current folder off the path where a file in it would be taken for one of Python's.

    It is there with `python -c`, and by an empty place in PYTHONPATH: this very program would
    import the queue.py of the program beside which it is typed.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - Path would import what is to be looked at first
        names = os.listdir() if {"", here} & set(sys.path) else []  # noqa: PTH208
    except OSError:
        return
    hiding = {name.removesuffix(".py") for name in names
              if name.endswith(".py") or os.path.exists(f"{name}/__init__.py")}  # fmt: skip # noqa: PTH110
    if hiding & sys.stdlib_module_names:
        sys.path[:] = [each for each in sys.path if each not in ("", here)]


_pass_over_modules_here()
