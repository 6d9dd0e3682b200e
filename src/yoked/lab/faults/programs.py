"""Faults of what runs or is installed on a host: others' programs, compilers, a torn torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from yoked.errors import LabError
from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.faults.files import FileFault, ask
from yoked.lab.faults.processes import end_marked, leave

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

# A library that `import torch` needs first of all, and a small one.
_TORCH_LIBRARY = "lib/libc10.so"
_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++", "c99")

_SILENTLY = """
import os
print("ready", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
"""
_BUSY = f"""
import os, sys
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
{_SILENTLY}
while True:
    pass
"""
_LISTEN = f"""
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
{_SILENTLY}
while True:
    listener.accept()[0].close()
"""


@dataclass(frozen=True)
class StrayProgram(Fault):
    """Somebody's program, which has nothing to do with training. It ends with the host's power."""

    AFTER_BOOT = "gone"

    def start(self, act: Act, program: str, number: int) -> None:
        """Start it, once. Raises LabError with its own words."""
        why = leave(
            act.awake(self.host),
            ["-I", "-S", "-u", "-c", program, str(number)],
            env={"YOKED_LAB_FAULT": act.id},
        )
        if why is not None:
            raise LabError(f"{self.text}: {why}", fix=f"yoked lab exec {self.host} -- ss -ltnp")

    def undo(self, act: Act) -> None:
        """End it, if it is there; it is known by its environment."""
        if act.lab.host(self.host).alive:
            end_marked(act.awake(self.host), act.id)


@dataclass(frozen=True)
class BusyCpu(StrayProgram):
    """A game, a browser tab, a build."""

    KIND = "busy-cpu"
    SUMMARY = "somebody's program keeps so many cores busy (default: 1)"
    USAGE = "busy-cpu HOST [CORES]"

    cores: int = 1

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, and perhaps a number."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        return words.done(cls(host, words.optional_whole("CORES", 1, 256, cls.cores)))

    @property
    def text(self) -> str:
        """What it does."""
        return f"a program on {self.host} keeps {self.cores} core{'s' * (self.cores > 1)} busy"

    def apply(self, act: Act) -> None:
        """It counts to infinity."""
        self.start(act, _BUSY, self.cores)


@dataclass(frozen=True)
class TakenPort(StrayProgram):
    """Another service at the port where ranks would meet."""

    KIND = "taken-port"
    SUMMARY = "somebody's program, no rank, listens at a port"
    USAGE = "taken-port HOST PORT"

    port: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a port."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.whole(words.take("PORT"), "PORT", 1, 65535)))

    def same_as(self, other: Fault) -> bool:
        """At the same port."""
        return isinstance(other, TakenPort) and (self.host, self.port) == (other.host, other.port)

    @property
    def text(self) -> str:
        """What it does."""
        return f"a program on {self.host} listens at port {self.port}"

    def apply(self, act: Act) -> None:
        """It closes what it accepts."""
        self.start(act, _LISTEN, self.port)


@dataclass(frozen=True)
class BrokenTorch(FileFault):
    """An installation that was interrupted, or cleaned up by hand."""

    KIND = "broken-torch"
    SUMMARY = "a library of torch is gone: it is installed, but cannot be imported"
    USAGE = "broken-torch HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"torch on {self.host} lacks {_TORCH_LIBRARY}"

    def changes(self, _act: Act, host: LabHost) -> list[dict[str, Any]]:
        """One file less."""
        found = ask(host, "find", package="torch")
        path = None if found is None else f"{found['folder']}/{_TORCH_LIBRARY}"
        if path is None or not host.exists(path):
            raise LabError(
                f"the python3 of {self.host} has no torch with {_TORCH_LIBRARY}",
                fix="bring the lab up from a shell in which `python3 -c 'import torch'` works",
            )
        return [{"path": path, "remove": True}]


@dataclass(frozen=True)
class NoCompiler(FileFault):
    """A system on which nobody builds programs."""

    KIND = "no-compiler"
    SUMMARY = "there is no C or C++ compiler under any usual name"
    USAGE = "no-compiler HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} has no compiler"

    def changes(self, _act: Act, host: LabHost) -> list[dict[str, Any]]:
        """The names that people and programs look for, links and all."""
        look = f"for name in {' '.join(_COMPILERS)}; do command -v $name; done"
        said = host.run(["sh", "-c", look], check=False).stdout
        paths = [line for line in said.split() if line.startswith("/")]
        if not paths:
            raise LabError(f"{self.host} has no compiler anyway")
        return [{"path": path, "remove": True} for path in paths]
