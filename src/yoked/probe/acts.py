"""Small acts, each what libraries of training programs do in their first seconds, tried for real.

    python -c THIS_FILE [MODULE ...] HOW DESCRIPTOR

The rank's own interpreter runs it, with the rank's limits and variables. Each act is told in the
kernel's or Python's own words where it fails. A child tries them one after the other: one that
hangs, or ends the child, is told as well, and another child goes on behind it. Nothing is changed,
and nothing is left behind. It ends when DESCRIPTOR ends.

Each line on standard output is a JSON object: {"has": {"acts": ...}}, with worked, the names of
acts; failed, {name: said, and who is to blame for it as far as that shows}; seccomp, whether a
filter of system calls is in force here. MODULE: of Python's own library, which is imported. HOW:
as the sender has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

# Of one act; and of all of them, where several hang.
_ACT_S, _ALL_S = 2.0, 3.5
# A slow disk is no fault, nor is a Python that takes its time: how long these take is not told, and
# neither is how long an import does.
_MAY_LAST = ("fsync", "program", "sqlite")

# Sources of the modules of yoked that it imports, by name. The sender of this file fills them in.
SOURCES: dict[str, str] = {}


def main(argv: list[str]) -> int:
    """Try all acts, and tell what came of them; returns the exit status."""
    for name, text in SOURCES.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        exec(compile(text, f"<{name}>", "exec"), vars(module))  # noqa: S102 - it came with us
    from yoked.probe.folder_acts import tidy
    from yoked.probe.process_acts import acts

    *modules, _, descriptor = argv
    outcome = Outcome(list(acts(modules)), modules, int(descriptor))
    until_s = time.monotonic() + _ALL_S
    while outcome.left and time.monotonic() < until_s:
        outcome.go_on()
        sys.stdout.write(json.dumps({"has": {"acts": outcome.told()}}) + "\n")
        sys.stdout.flush()
    if outcome.failed and outcome.worked:
        # A child may have been ended in the middle of an act; and a folder may hang.
        pid = os.fork()
        if pid == 0:
            tidy()
            os._exit(0)
        _reaped(pid)
    return 0


class Outcome:
    """What came of acts so far. left: those still to be tried; modules: as `acts` takes
    them; descriptor: its end is ours.
    """

    def __init__(self, left: list[str], modules: list[str], descriptor: int) -> None:
        self.left = left
        self._modules = modules
        self.worked: list[str] = []
        self.failed: dict[str, dict[str, Any]] = {}
        self._descriptor = descriptor

    def told(self) -> dict[str, Any]:
        """The same for the doctor."""
        filtered = _status("Seccomp") not in ("", "0")
        return {"worked": self.worked, "failed": self.failed, "seccomp": filtered}

    def go_on(self) -> None:
        """Have a child try those that are left, until one of them takes it down."""
        from yoked.probe.folder_acts import is_busy

        source, sink = os.pipe()
        try:
            pid = os.fork()
        except OSError as problem:
            self.failed["child"] = {"said": f"OSError: {problem}"}
            self.left = []
            return
        if pid == 0:
            _try_each(self.left, self._modules, sink)
            os._exit(0)
        os.close(sink)
        is_late = self._follow(source)
        os.close(source)
        is_told = is_late and not is_busy()
        if is_late:
            os.kill(pid, signal.SIGKILL)
        ended_by = _reaped(pid)
        if not self.left:
            return
        name = self.left.pop(0)
        may_last = name.startswith("module-") or name.rpartition(".")[2] in _MAY_LAST
        if is_told and not may_last:
            self.failed[name] = {"said": f"no end in {_ACT_S:g} s"}
        elif not is_late and ended_by:
            words = f"{ended_by} ({signal.strsignal(ended_by)})"
            self.failed[name] = {"said": f"it ends with signal {words}"}

    def _follow(self, source: int) -> bool:
        """Note what a child says, until it ends; returns whether it has to be ended."""
        said = b""
        while True:
            ready, _, _ = select.select([source, self._descriptor], [], [], _ACT_S)
            if self._descriptor in ready:
                # The doctor has gone.
                self.left = []
                return True
            if not ready:
                return True
            piece = os.read(source, 65_536)
            if not piece:
                return False
            *lines, said = (said + piece).split(b"\n")
            for line in lines:
                self._note(self.left.pop(0), json.loads(line))

    def _note(self, name: str, told: dict[str, Any] | None) -> None:
        if told is None:
            self.worked.append(name)
        elif told:
            self.failed[name] = told


def _reaped(pid: int) -> int:
    """The signal that ended a child; 0: none did, or nobody knows."""
    # Where SIGCHLD is ignored, the kernel keeps no status of children.
    with contextlib.suppress(ChildProcessError):
        # What hangs in the kernel is not ended by a signal: it is not waited for.
        for _ in range(20):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            time.sleep(0.005)
    return 0


def _try_each(names: list[str], modules: list[str], sink: int) -> None:
    """Try acts, and write a line for each: null, why it failed, or {} where it was not tried."""
    from yoked.probe.folder_acts import (
        FailedError,
        UntriedError,
        folders,
        in_words,
        mount_at,
        tidy,
    )
    from yoked.probe.process_acts import acts

    known = acts(modules)
    for name in names:
        told: dict[str, Any] | None = None
        try:
            known[name]()
        except UntriedError:
            told = {}
        except FailedError as problem:
            told = {"said": str(problem), **problem.more}
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is told
            told = {"said": in_words(problem)}
        if told and (place := folders().get(name.partition(".")[0])):
            told = {**told, "mount": mount_at(place)}
        os.write(sink, json.dumps(told).encode() + b"\n")
    tidy()


def _status(name: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
