"""Text files of a host and settings of its kernel; undoing takes back the fault's lines alone."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.lab.faults.base import Effect, Fault, FaultContext, InMemory
from yoked.lab.tools import text_of

if TYPE_CHECKING:
    from yoked.lab.lab import Lab


@dataclass(frozen=True)
class TextFile(Effect):
    """A change of a text file of a host, which other faults may have changed, too.

    change: the text as this fault has it, of the text as it is ("" where there is no file).
    Its record: the text without any fault (None: no file), and its place among the file's faults.
    """

    WRITES_FILES = True

    path: str
    change: Callable[[Fault, Lab, str], str]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        now, known = self._read(fault, context), self._known(fault, context)
        if "base" not in context.record:
            base, place = now, 1
            if known:
                faults, last = [each for each, _ in known], known[-1][1]
                base = self._moved(context, now or "", last["base"], faults, [])
                place += last["place"]
            context.remember(base=base, place=place)
        elif now == self._changed(context, context.record["base"], [each for each, _ in known]):
            return
        self._write(fault, context, self.change(fault, context.lab, now or ""))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """What a person mended or added since stays."""
        now = self._read(fault, context)
        if "base" not in context.record or now is None:
            return
        together = [each for each, _ in self._known(fault, context)]
        others = [each for each in together if each is not fault]
        text = self._moved(context, now, context.record["base"], together, others)
        if text is None:
            context.writable(fault.host).remove(self._place)
        elif text != now:
            self._write(fault, context, text)

    @property
    def _place(self) -> str:
        return str(Path(self.path).expanduser())

    def _read(self, fault: Fault, context: FaultContext) -> str | None:
        host = context.writable(fault.host)
        done = host.run(["cat", self._place], check=False, as_root=True)
        return None if done.returncode else done.stdout

    def _write(self, fault: Fault, context: FaultContext, text: str) -> None:
        context.writable(fault.host).write_text(self._place, text)

    def _known(self, fault: Fault, context: FaultContext) -> list[tuple[Fault, dict[str, Any]]]:
        """The faults that have changed this file, with their records, in the order of places."""
        found = [
            (each, record)
            for each, record in [*context.beside(fault.host), (fault, context.record)]
            if "base" in record and any(one.path == self.path for one in each.effects(TextFile))
        ]
        return sorted(found, key=lambda pair: int(pair[1]["place"]))

    def _moved(
        self,
        context: FaultContext,
        now: str,
        base: str | None,
        before: Sequence[Fault],
        after: Sequence[Fault],
    ) -> str | None:
        """The text of today, with some faults instead of others; None: no file."""
        old, new = self._changed(context, base, before), self._changed(context, base, after)
        return new if now == old else restored(now, new or "", old or "")

    def _changed(
        self, context: FaultContext, base: str | None, faults: Sequence[Fault]
    ) -> str | None:
        for fault in faults:
            for effect in fault.effects(TextFile):
                if effect.path == self.path:
                    base = effect.change(fault, context.lab, base or "")
        return base


def restored(now: str, before: str, after: str) -> str:
    """The text without what a fault changed, and with what a person changed since.

    before, after: as the fault found it, and left it.
    """
    if now == after:
        return before
    old, new = before.splitlines(), after.splitlines()
    added = [_alike(line) for line in new if line not in old]
    kept = [line for line in now.splitlines() if _alike(line) not in added]
    here = [_alike(line) for line in kept]
    removed = [line for line in old if line not in new and _alike(line) not in here]
    return text_of([*kept, *removed])


def _alike(line: str) -> tuple[str, list[str]]:
    """Lines that differ by a tab for a blank are one, but not if one is indented."""
    return line[: len(line) - len(line.lstrip())], line.split()


class StartFile(TextFile):
    """A line at the top of ~/.bashrc, before whatever ends it for programs.

    bash reads the file when sshd starts it, terminal or not. line: a template; its values are
    quoted for the shell.
    """

    def __init__(self, line: str) -> None:
        super().__init__(
            "~/.bashrc", lambda fault, _lab, text: f"{fault.fill(line, quote=shlex.quote)}\n{text}"
        )

    def unsupported(self, _lab: Lab) -> str | None:
        """Other shells read other files, or none."""
        name = Path(pwd.getpwuid(os.getuid()).pw_shell).name
        return None if name == "bash" else f"the login shell of this account is {name}, not bash"


@dataclass(frozen=True)
class KernelSetting(InMemory):
    """A file below /proc/sys. text: a template."""

    path: str
    text: str

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host = context.awake(fault.host)
        if "before" not in context.record:
            context.remember(before=host.read_text(self.path))
        host.write_text(self.path, fault.fill(self.text))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        if "before" in context.record:
            context.awake(fault.host).write_text(self.path, context.record["before"])
