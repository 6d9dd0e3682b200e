"""In which dtype each rank computes: the run's, or its own where that is much faster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from yoked.costmodel.step_plan import MIN_SPEEDUP

# Unlike rounding on unlike ranks is no gain by itself, and equal ranks should compute alike.
OWN_DTYPE_SPEEDUP = 1.5
# The dtype of a run, or of a plan, whose ranks do not compute in one.
BY_HOST = "by host"


def compute_dtypes(times_s: Sequence[Mapping[str, float]], common: str) -> list[str]:
    """The dtype of each rank.

    times_s: by rank, seconds a token by dtype, of those that were measured there. common: the
    run's, which all have whose own is not OWN_DTYPE_SPEEDUP times as fast there, and all where the
    ranks together gain less than MIN_SPEEDUP.
    """
    own = []
    for times in times_s:
        fastest = min(times, key=times.__getitem__)
        slower = times.get(common, math.inf) / times[fastest]
        own.append(fastest if slower >= OWN_DTYPE_SPEEDUP else common)
    alike = [common if common in times else only for times, only in zip(times_s, own, strict=True)]
    gains = speed_of_all(times_s, own) >= MIN_SPEEDUP * speed_of_all(times_s, alike)
    return own if gains else alike


def speed_of_all(times_s: Sequence[Mapping[str, float]], dtypes: Sequence[str]) -> float:
    """Tokens a second of all ranks together. dtypes: by rank; not measured there: it adds none."""
    pairs = zip(times_s, dtypes, strict=True)
    return sum(1 / times[dtype] for times, dtype in pairs if dtype in times)


def dtype_name(dtypes: Sequence[str]) -> str:
    """That of all ranks, or BY_HOST."""
    return dtypes[0] if len(set(dtypes)) == 1 else BY_HOST
