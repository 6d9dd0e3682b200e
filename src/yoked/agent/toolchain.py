"""What compiles on this host, and the shell that comes up by ssh."""

from __future__ import annotations

import os
import pwd
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def part_compiler(args: Mapping[str, Any]) -> dict[str, Any]:
    """cc and cxx: paths, or None; headers: whether this Python has its C headers."""
    del args
    return {
        "cc": _first(os.environ.get("CC"), "cc", "gcc", "clang"),
        "cxx": _first(os.environ.get("CXX"), "c++", "g++", "clang++"),
        "headers": Path(sysconfig.get_paths()["include"], "Python.h").exists(),
    }


def part_shell(args: Mapping[str, Any]) -> dict[str, Any]:
    """login_shell; sources_noise is the controller's to tell, who hears it."""
    del args
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    return {"login_shell": shell or None, "sources_noise": None}


def _first(*names: str | None) -> str | None:
    """The path of the first program that is there; a name may have arguments."""
    words = [name.split() for name in names if name and name.split()]
    return next((path for each in words if (path := shutil.which(each[0])) is not None), None)
