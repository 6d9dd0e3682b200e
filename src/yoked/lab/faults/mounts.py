"""Mounts in a host's file tree, made by the machine: programs of a host may not mount."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.errors import LabError
from yoked.lab import syscalls

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# Runs as a process of its own, for a namespace is entered for good.
_PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from yoked.lab import syscalls
pid, user_namespace, acts = json.loads(sys.argv[2])
syscalls.enter_namespaces(
    syscalls.open_namespaces(pid, ["mnt"], user_namespace=user_namespace)
)
for act, *words in acts:
    if act == "mkdir":
        os.makedirs(words[0], exist_ok=True)
        continue
    if act == "write":
        open(words[0], "w").write(words[1])
        continue
    try:
        getattr(syscalls, act)(*words)
    except OSError as problem:
        if act != "unmount":
            sys.exit(problem.strerror)
"""


def mount_all(lab: Lab, pid: int, acts: list[list[Any]]) -> None:
    """Do what is listed in the mount namespace of process `pid` of the lab, in order.

    acts: ["mount", source, target, kind, flags, data], ["unmount", target, flags] (harmless where
    nothing is mounted), ["mkdir", path], ["write", path, text]. Raises LabError with the kernel's
    reason.
    """
    source = str(Path(syscalls.__file__).parents[2])
    request = json.dumps([pid, not lab.is_root, acts])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, source, request],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(done.stderr.strip().rpartition("\n")[2])
