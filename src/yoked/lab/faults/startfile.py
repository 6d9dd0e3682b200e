"""Faults of the file that the account's shell reads at each login, also when ssh runs a program."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.faults.textfiles import TextFileFault

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# What ulimit(1) of bash calls the kernel's limits, and units of its numbers. Source: bash(1).
_LIMITS = {
    "nofile": ("-n", "open files"),
    "nproc": ("-u", "processes"),
    "as": ("-v", "KiB of address space"),
    "fsize": ("-f", "KiB in a file"),
    "memlock": ("-l", "KiB of locked memory"),
    "stack": ("-s", "KiB of stack"),
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_MOST_SLEEP_S = 600


@dataclass(frozen=True)
class StartFileFault(TextFileFault):
    """A line at the top of ~/.bashrc, before whatever ends it for programs."""

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """Other shells read other files, or none."""
        name = Path(pwd.getpwuid(os.getuid()).pw_shell).name
        return None if name == "bash" else f"the login shell of this account is {name}, not bash"

    @abstractmethod
    def line(self) -> str:
        """The line."""

    def path(self, _act: Act) -> str:
        """bash reads it when sshd starts it, terminal or not."""
        return str(Path.home() / ".bashrc")

    def change(self, _act: Act, text: str) -> str:
        """A line more."""
        return f"{self.line()}\n{text}"


@dataclass(frozen=True)
class NoisyShell(StartFileFault):
    """A greeting that is printed to programs, too."""

    KIND = "noisy-shell"
    SUMMARY = "the account's start file prints a greeting, which programs over ssh get as well"
    USAGE = "noisy-shell HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"the start file on {self.host} prints a greeting"

    def line(self) -> str:
        """To standard output."""
        return f'echo "Welcome to {self.host}!"'


@dataclass(frozen=True)
class ExitingShell(StartFileFault):
    """A start file that ends, or becomes another program, where there is no terminal."""

    KIND = "exiting-shell"
    SUMMARY = "the account's start file ends the shell: no program runs over ssh"
    USAGE = "exiting-shell HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"the start file on {self.host} ends the shell"

    def line(self) -> str:
        """With a status."""
        return "exit 1"


@dataclass(frozen=True)
class SlowShell(StartFileFault):
    """A start file that waits: for a network folder, a version manager, a name server."""

    KIND = "slow-shell"
    SUMMARY = "the account's start file takes so many seconds"
    USAGE = "slow-shell HOST SECONDS"

    seconds: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and seconds."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        return words.done(
            cls(host, words.whole(words.take("SECONDS"), "SECONDS", 1, _MOST_SLEEP_S))
        )

    @property
    def text(self) -> str:
        """What it does."""
        return f"the start file on {self.host} takes {self.seconds} s"

    def line(self) -> str:
        """It sleeps."""
        return f"sleep {self.seconds}"


@dataclass(frozen=True)
class Exported(StartFileFault):
    """A variable that somebody once exported for another job."""

    KIND = "exported"
    SUMMARY = "the account's start file exports a variable, such as LD_PRELOAD=/gone.so"
    USAGE = "exported HOST NAME=VALUE"

    name: str
    value: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and NAME=VALUE."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        name, equals, value = words.take("NAME=VALUE").partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise words.wrong(f"{name!r} is not NAME=VALUE", "write it as in OMP_NUM_THREADS=1")
        return words.done(cls(host, name, value))

    def same_as(self, other: Fault) -> bool:
        """Of the same variable."""
        mine = (self.host, self.name)
        return isinstance(other, Exported) and mine == (other.host, other.name)

    @property
    def text(self) -> str:
        """What it does."""
        return f"the start file on {self.host} exports {self.name}={self.value}"

    def line(self) -> str:
        """As a person would write it."""
        return f"export {self.name}={shlex.quote(self.value)}"


@dataclass(frozen=True)
class Limit(StartFileFault):
    """A limit that is too low for a training."""

    KIND = "limit"
    SUMMARY = f"the account's programs get a limit: {', '.join(_LIMITS)}"
    USAGE = "limit HOST NAME COUNT"

    name: str
    count: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, a limit's name and a number."""
        words = Words(cls.USAGE, lab, args)
        host, name = words.host(), words.take("NAME")
        if name not in _LIMITS:
            raise words.wrong(f"{name!r} is not a limit: {', '.join(_LIMITS)}")
        return words.done(cls(host, name, words.whole(words.take("COUNT"), "COUNT", 0, 2**40)))

    def same_as(self, other: Fault) -> bool:
        """The same limit."""
        return isinstance(other, Limit) and (self.host, self.name) == (other.host, other.name)

    @property
    def text(self) -> str:
        """What it does."""
        return f"programs of {self.host} have at most {self.count} {_LIMITS[self.name][1]}"

    def line(self) -> str:
        """Soft and hard."""
        return f"ulimit {_LIMITS[self.name][0]} {self.count}"
