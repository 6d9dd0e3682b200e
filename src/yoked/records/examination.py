"""What the doctor saw of a fleet, and what it found.

An examination is data alone: checks are run over it again, elsewhere and later, with one result.
What could not be told is None, or is missing in a mapping; no check takes that for trouble.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from yoked.records.shell import Line

Severity = Literal["error", "warning"]
# Why there is no agent on a host. "shell": ssh came in, but what its shell says or does is in the
# way; "python": it came in, and no Python can run the agent.
SshKind = Literal[
    "unresolved", "timeout", "refused", "unreachable", "host-key", "denied", "shell", "python",
    "other",
]  # fmt: skip
# What a dial was for. "ephemeral": a port that the kernel picked, as Gloo's are; "rendezvous": a
# port that stays the same; "bulk": full-size packets, in the direction of the dial; "burst": many
# of them, so that a limit of bytes shows; "rest": nothing is sent for a while.
Purpose = Literal["ephemeral", "rendezvous", "bulk", "burst", "rest"]


@dataclass(frozen=True)
class BrokenLink:
    """The first link of a login that fails, as a host's own console tells. code: of
    yoked.doctor.console; about: what that names; file, line: where it stands, "" and 0: nowhere.
    """

    code: str
    about: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class SshFailure:
    """Why a host has no agent. text: ssh's own words, or the shell's. user: whom ssh comes in as,
    where that matters. cause: what it is more exactly, as yoked.doctor.sshfailure calls it; "": it
    is not known. about: what that cause names, such as a file. link: what the host's console says
    of it; None: nobody asked, or it said nothing.
    """

    kind: SshKind
    text: str
    fix: tuple[str, ...] = ()
    user: str | None = None
    cause: str = ""
    about: str = ""
    link: BrokenLink | None = None


@dataclass(frozen=True)
class HostSeen:
    """One host.

    wanted: its entry of yoked.toml (ranks, device, interface, address, python). facts, interfaces:
    what the agent's calls of these names answer; interfaces_later: the same at the end of the look,
    empty: nobody asked. health: by part, see `yoked.agent.health`.
    torch: see `yoked.doctor.examine`. connect_s: seconds until the agent answered.
    clock_offset_s: its clock minus the controller's, known to within clock_error_s. odd: places in
    its answers that were not understood, and are missing here.
    """

    name: str
    wanted: Mapping[str, Any]
    failure: SshFailure | None = None
    connect_s: float | None = None
    clock_offset_s: float | None = None
    clock_error_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    interfaces: tuple[Mapping[str, Any], ...] = ()
    interfaces_later: tuple[Mapping[str, Any], ...] = ()
    health: Mapping[str, Any] = field(default_factory=dict)
    torch: Mapping[str, Any] | None = None
    odd: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Whether an agent answered."""
        return self.failure is None


@dataclass(frozen=True)
class Dial:
    """A connection that one host tried to make to another.

    interface, address, port: the target's. source_address: which address the source's kernel
    takes for this way, None where it has no route. error: a symbol such as ETIMEDOUT. took_s: until
    it was connected or given up. bulk_bytes: how many of the bytes of a bulk dial, or of a burst,
    arrived. chosen: whether the run would use this address; others are dialled to tell causes
    apart. arrived: of a dial without an answer, whether its first packet came to the target's TCP,
    and arrived_from: under which address, where that is not source_address; unsent: of one that met
    silence, whether the source's own kernel kept packets back; mss_bytes: how much data fits into a
    packet of its connection; opened: whether TCP came to terms, whatever came then. None: it is not
    known.
    """

    source: str
    target: str
    interface: str
    address: str
    port: int
    purpose: Purpose
    chosen: bool
    ok: bool
    answered_by: str | None = None
    error: str | None = None
    error_text: str | None = None
    source_address: str | None = None
    rtt_s: float | None = None
    echo_s: tuple[float, ...] = ()
    took_s: float | None = None
    path_mtu_bytes: int | None = None
    bulk_bytes: int | None = None
    goodput_bytes_per_s: float | None = None
    arrived: bool | None = None
    arrived_from: str | None = None
    unsent: bool | None = None
    mss_bytes: int | None = None
    opened: bool | None = None


@dataclass(frozen=True)
class World:
    """A real Gloo (or NCCL) world that was started over the chosen interfaces.

    ok None: it was not tried, for this reason. said: the last words of each host's rank.
    """

    ok: bool | None
    took_s: float | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Need:
    """What the run needs, as far as it is known.

    versions: the controller's python, torch and so on, by name. checkpoint_bytes: of one
    checkpoint; memory_bytes: of one rank on the CPU; gpu_memory_bytes: of a GPU, for one rank;
    host_bytes_beside_gpu: of the host's memory, for such a rank, where that is much; device: what
    ranks are told to compute on; keep: how many checkpoints are kept. data, code: name and content
    hash on the controller; None: no question. damaged: files of the data that are not whole here,
    each with why. folders: their paths on a host, by these names, which
    may begin with `~/`. environment: digest of the requirements by which
    `yoked install` names an environment; None: such are not looked for.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    checkpoint_bytes: int | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    host_bytes_beside_gpu: int | None = None
    device: str = "auto"
    keep: int = 2
    data: Mapping[str, str] | None = None
    code: Mapping[str, str] | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None


@dataclass(frozen=True)
class Examination:
    """All that was seen. quick: only what takes less than two seconds was looked at.

    took_s: seconds. controller: what this machine says of itself (versions, ssh, state folder).
    """

    hosts: tuple[HostSeen, ...]
    dials: tuple[Dial, ...] = ()
    world: World | None = None
    need: Need = Need()
    controller: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    took_s: float = 0.0

    def host(self, name: str) -> HostSeen:
        """The host of that name."""
        return next(each for each in self.hosts if each.name == name)

    @property
    def up(self) -> tuple[HostSeen, ...]:
        """The hosts that have an agent."""
        return tuple(each for each in self.hosts if each.up)

    def between(
        self, source: str, target: str, purposes: Iterable[Purpose] = ("ephemeral",)
    ) -> tuple[Dial, ...]:
        """The dials of a link at the address that the run would use."""
        return tuple(
            each
            for each in self.dials
            if (each.source, each.target) == (source, target)
            and each.chosen
            and each.purpose in purposes
        )


@dataclass(frozen=True)
class Fix:
    """A line for a shell of a host, ready to paste; host "": the controller. Its values are quoted.

    root: it needs root there. undo: the line that takes it back; None: nothing to take back.
    by_hand: only a person can do it (a cable); `--fix` leaves it alone. kept: how the names of the
    copies end that both lines speak of; "": none. Undoing then does no harm where nothing was done.
    repair: the function of yoked.doctor.repairs that made it.
    """

    host: str
    command: Line
    root: bool = False
    undo: Line | None = None
    by_hand: bool = False
    kept: str = ""
    repair: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that will go wrong, or slow. saw: the evidence; why: what follows if it stays.

    hosts: those to mend, the first first. link: (source, target) where it is about one. follows:
    findings that this one explains. reaches: others whose trouble may come of it.
    """

    check: str
    severity: Severity
    hosts: tuple[str, ...]
    saw: str
    why: str
    fix: tuple[Fix, ...] = ()
    link: tuple[str, str] | None = None
    follows: tuple[Finding, ...] = ()
    reaches: tuple[str, ...] = ()
