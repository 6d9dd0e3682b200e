"""What a view of a run shows at one moment: plain data, the same for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

# How much a line asks for a look; the words of a report's entries.
Level = Literal["plain", "good", "warning", "bad"]
# Of a step, in the order in which it is drawn; `other` is what is left of its time.
PARTS = ("computes", "sends", "waits")
# Of the last steps: where a rank's time goes now.
NOW_STEPS = 20


@dataclass(frozen=True)
class Verdict:
    """What is said first. text: one sentence; why: evidence; next: commands, or what to do."""

    level: Level
    text: str
    why: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankNow:
    """A rank. parts: shares of the time by PARTS, of its last steps; of a program that tells of no
    steps, of its last 20 seconds; a part that is not known is missing. waits_for: the ranks that it
    waited for. doing: what is the matter with it ("stopped"), what it does beside training
    ("saving"), or how it stands; empty: it trains.
    """

    rank: int
    host: str
    parts: Mapping[str, float] = field(default_factory=dict)
    waits_for: tuple[int, ...] = ()
    doing: str = ""
    level: Level = "plain"
    memory_bytes: int | None = None


@dataclass(frozen=True)
class LinkNow:
    """What one host sends another. wire_bits_per_s: what the link carries, where it was measured.

    resent: share of the packets that were sent again.
    """

    sender: str
    receiver: str
    bits_per_s: float
    wire_bits_per_s: float | None = None
    rtt_s: float | None = None
    resent: float = 0.0


@dataclass(frozen=True)
class RecentSteps:
    """The last steps, column by column: the part on the screen, read in full. The oldest first.

    compute_s, comm_s, wait_s: rank after rank, a list of steps each; empty where not told.
    """

    step: tuple[int, ...] = ()
    dt_s: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    loss: tuple[float | None, ...] = ()
    compute_s: tuple[tuple[float, ...], ...] = ()
    comm_s: tuple[tuple[float, ...], ...] = ()
    wait_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far it is. step: steps done; steps: of all; left_s: foreseen. left_s and tokens_per_s are
    None while no step ends. stage: what it does before its first step, as its own live line says.
    """

    step: int = 0
    steps: int | None = None
    left_s: float | None = None
    tokens_per_s: float | None = None
    loss: float | None = None
    val_bpb: float | None = None
    stage: str = ""


@dataclass(frozen=True)
class Cost:
    """What looking on takes of the way to the hosts. bytes_per_s: over the last half minute, by
    what they sent; most_bytes_per_s: it is kept below that. None: nothing is asked of a host.
    """

    bytes_per_s: float
    most_bytes_per_s: float
    opened_bytes: int


@dataclass(frozen=True)
class View:
    """A run at one moment.

    state: running, prepared, finished, failed, stopped, interrupted, lost, or unknown. figures: as
    `yoked report --json` has them (docs/reference/schemas/report.json). sampled: its curve is of a
    sample of its lines, as the journal is long. silent: hosts that do not answer now, and why.
    time_s: when it was looked, by this machine's clock (Unix).
    """

    run: str
    state: str
    active: bool
    time_s: float
    verdict: Verdict
    progress: Progress
    ranks: tuple[RankNow, ...] = ()
    links: tuple[LinkNow, ...] = ()
    recent: RecentSteps = RecentSteps()
    figures: Mapping[str, Any] = field(default_factory=dict)
    sampled: bool = False
    silent: Mapping[str, str] = field(default_factory=dict)
    cost: Cost | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class RunRow:
    """A run in the list of those that can be watched. when_s: it started, or was last alive."""

    run: str
    state: str
    hosts: tuple[str, ...] = ()
    when_s: float | None = None
    step: int | None = None
    loss: float | None = None


class Watched(Protocol):
    """What a view asks. Each call may take seconds, and raises YokedError; it is made from one
    thread at a time, which is not the one that draws.
    """

    def runs(self) -> list[RunRow]:
        """The runs that there are, the newest first: of the hosts, and of the folder of runs."""
        ...

    def choose(self, run: str) -> None:
        """Look at another run from now on."""
        ...

    def look(self) -> View:
        """The run as it is now. Raises UsageError where nothing was chosen, as there is no run."""
        ...

    def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        """The curve of some steps, the last one too, in at most so many points: each line of them
        is read where that is no more than a few megabytes. As `figures["curve"]`.
        """
        ...

    def log(self, rank: int, lines: int) -> list[tuple[str, str]]:
        """The last lines that a rank wrote: stream (out or err), and the line."""
        ...

    def save(self) -> str:
        """Have the run save a checkpoint; one sentence of what became of it."""
        ...

    def stop(self, *, now: bool = False) -> str:
        """Have the run save and stop, now: end it without a checkpoint; what became of it."""
        ...
