"""Text files of a host and settings of its kernel; undoing takes back the fault's lines alone."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from yoked.lab.faults.base import Effect, Fault, FaultContext

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab


@dataclass(frozen=True)
class TextFile(Effect):
    """Changes one text file of a host. Its record: the text before, None without a file; after.

    change: the text as this fault has it, of the text as it is ("" where there is no file).
    """

    WRITES_FILES = True

    path: str
    change: Callable[[Fault, str], str]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host, path = context.writable(fault.host), str(Path(self.path).expanduser())
        before = _read_or_none(host, path)
        if "after" in context.record and context.record["after"] == before:
            return
        after = self.change(fault, before or "")
        context.remember(before=before, after=after)
        host.write_text(path, after)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """What a person mended or added since stays."""
        if "after" not in context.record:
            return
        host, path = context.writable(fault.host), str(Path(self.path).expanduser())
        now, before, after = (
            _read_or_none(host, path),
            context.record["before"],
            context.record["after"],
        )
        if now is None:
            return
        if now == after and before is None:
            host.remove(path)
        elif (text := restored(now, before or "", after)) != now:
            host.write_text(path, text)


def _read_or_none(host: LabHost, path: str) -> str | None:
    done = host.run(["cat", path], check=False, as_root=True)
    return None if done.returncode else done.stdout


def restored(now: str, before: str, after: str) -> str:
    """The text without what a fault changed, and with what a person changed since.

    before, after: as the fault found it, and left it.
    """
    if now == after:
        return before
    old, new = before.splitlines(), after.splitlines()
    added = [line for line in new if line not in old]
    removed = [line for line in old if line not in new]
    lines = [line for line in now.splitlines() if line not in added]
    lines += [line for line in removed if line not in lines]
    return "".join(f"{line}\n" for line in lines)


class StartFile(TextFile):
    """A line at the top of ~/.bashrc, before whatever ends it for programs.

    bash reads the file when sshd starts it, terminal or not. line: a template; its values are
    quoted for the shell.
    """

    def __init__(self, line: str) -> None:
        super().__init__(
            "~/.bashrc", lambda fault, text: f"{fault.fill(line, quote=shlex.quote)}\n{text}"
        )

    def unsupported(self, _lab: Lab) -> str | None:
        """Other shells read other files, or none."""
        name = Path(pwd.getpwuid(os.getuid()).pw_shell).name
        return None if name == "bash" else f"the login shell of this account is {name}, not bash"


@dataclass(frozen=True)
class KernelSetting(Effect):
    """A file below /proc/sys. text: a template."""

    AFTER_BOOT = "again"

    path: str
    text: str

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host = context.awake(fault.host)
        if "before" not in context.record:
            context.remember(before=host.read_text(self.path))
        host.write_text(self.path, fault.fill(self.text))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """As it was; a host that was started anew has the kernel's."""
        host = context.lab.host(fault.host)
        if host.alive and "before" in context.record:
            context.awake(fault.host).write_text(self.path, context.record["before"])
