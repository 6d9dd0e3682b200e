"""A fleet as yoked.toml has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from yoked.core.names import path_word

Device = Literal["auto", "cpu", "cuda", "mps"]
# This machine, as people write it.
HERE = "."
# The largest niceness: nice(1).
LEAST_PRIORITY = 19


@dataclass(frozen=True)
class Host:
    """One host. name: anything that ssh understands, or `.` for this machine.

    ranks: None is one on the CPU, or one for each GPU. interface and address: where its peers
    reach it, proved with traffic by `yoked init`. python: the interpreter that trains there;
    None: the one of `yoked install`, else python3. nice: niceness of the ranks, 0 to 19. console:
    the command that starts a shell of its root by another way than ssh; empty: there is none.
    """

    name: str
    ranks: int | None = None
    device: Device = "auto"
    interface: str | None = None
    address: str | None = None
    python: str | None = None
    nice: int = 0
    console: tuple[str, ...] = ()

    @property
    def bare_name(self) -> str | None:
        """The name by which others would look it up; None: it is an address, or this machine."""
        name = self.name.rpartition("@")[2]
        return None if name == HERE or not name.strip("0123456789.:") or ":" in name else name


@dataclass(frozen=True)
class Notify:
    """Who is told that a run ended, or why it stands, by the host of rank 0; one of both.

    url: gets a POST, as ntfy takes it. It may be a secret. command: gets the text on its stdin.
    """

    url: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fleet:
    """hosts: in the order of their ranks. path: the file, or a dot for this machine. ssh_config:
    instead of ~/.ssh/config.

    agreed: a copy of that, as a person agreed to it (`fleet.trust`). include: patterns of files
    that travel with a program although git's rules ignore them.
    """

    name: str
    hosts: tuple[Host, ...]
    path: Path
    ssh_config: Path | None = None
    agreed: Path | None = field(default=None, compare=False)
    notify: Notify | None = None
    include: tuple[str, ...] = ()

    @property
    def ssh_file(self) -> Path | None:
        """The file that ssh reads: ssh_config itself may be exchanged after it was looked at."""
        return self.agreed or self.ssh_config

    @property
    def flag(self) -> str:
        """What a command line about this fleet ends with; "" where no file says of it."""
        if self.path == Path(HERE):
            return f" --fleet {HERE}"
        return f" --fleet {path_word(self.path)}" if self.path.is_file() else ""
