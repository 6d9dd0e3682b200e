"""Which checkpoint of a folder is the best: one rule for its writer and for who fetches it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint, as its manifest has it. sequence: counts the saves in a folder.

    val_bpb: validation of these very weights; None: they were not evaluated.
    """

    step: int
    sequence: int
    val_bpb: float | None


def best_step(saved: Iterable[SavedStep]) -> int | None:
    """The step with the lowest val_bpb, of several the first; None where none was evaluated.

    Of the run as it went on: what an attempt saved beyond the step from which a later one went on
    is no part of it.
    """
    lineage: list[SavedStep] = []
    for each in sorted(saved, key=lambda each: each.sequence, reverse=True):
        if not lineage or each.step < lineage[-1].step:
            lineage.append(each)
    evaluated = [(each.val_bpb, each.step) for each in lineage if each.val_bpb is not None]
    return min(evaluated)[1] if evaluated else None
