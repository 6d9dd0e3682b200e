"""How much of hosts is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from yoked.doctor.rank_probes import How


@dataclass(frozen=True)
class ProbeProfile:
    """How hosts are probed. how: the trial to begin with, "versions" in the quick form; sudo:
    whether `sudo -n` may be used there; modules: those of which hosts tell what a program would
    import; standard: of Python's own, which are imported there; asks: what else it asks of its
    host, as yoked.agent.asked takes it; sources: files of the program here, by name, of which
    copies are left there for the time of a look.
    """

    how: How
    sudo: bool = False
    modules: tuple[str, ...] = ()
    standard: tuple[str, ...] = ()
    asks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def looks_twice(self) -> bool:
        """Whether there is time between two looks, in which something could change."""
        return self.how != "versions"
