"""Faults that are lines in a text file of a host; undoing takes back those lines alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yoked.lab.faults.base import Act, Fault

if TYPE_CHECKING:
    from yoked.lab.host import LabHost


def read_or_none(host: LabHost, path: str) -> str | None:
    """A file's text; None: there is none."""
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


@dataclass(frozen=True)
class TextFileFault(Fault):
    """Changes one text file of a host. Its record: the text before, None without a file; after."""

    WRITES_FILES = True

    @abstractmethod
    def path(self, act: Act) -> str:
        """The file, on the host."""

    @abstractmethod
    def change(self, act: Act, text: str) -> str:
        """The text as this fault has it, of the text as it is ("" where there is no file)."""

    def apply(self, act: Act) -> None:
        """Write it down, then change it."""
        host, path = act.writable(self.host), self.path(act)
        before = read_or_none(host, path)
        if "after" in act.record and act.record["after"] == before:
            return
        after = self.change(act, before or "")
        act.remember(before=before, after=after)
        host.write_text(path, after)

    def undo(self, act: Act) -> None:
        """What a person mended or added since stays."""
        if "after" not in act.record:
            return
        host, path = act.writable(self.host), self.path(act)
        now, before, after = read_or_none(host, path), act.record["before"], act.record["after"]
        if now is None:
            return
        if now == after and before is None:
            host.remove(path)
        elif (text := restored(now, before or "", after)) != now:
            host.write_text(path, text)
