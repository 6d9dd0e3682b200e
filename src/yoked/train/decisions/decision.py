"""A decision with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Decision:
    """One choice and why; `measured` has the figures that it rests on."""

    name: str
    value: str
    reason: str
    measured: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}: {self.value} ({self.reason})"
