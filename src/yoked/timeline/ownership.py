"""Who computes how much of Muon: all ranks are to be done with the optimizer at the same time.

AdamW every rank computes whole. Where that takes a slow rank as long as a fast one takes for both,
the slow one owns no matrix; nor does one that is much slower than the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

# What a core multiplies while AdamW updates a number, for which it reads and writes 28 bytes:
# 0.7 ns at 190 GFLOP/s (float32, AVX-512). Of several cores memory is the bound, and it is more.
ADAMW_FLOPS = 128
# What a slower rank would own is a small part of all, and comes late: its new matrices leave beside
# its AdamW, and all others wait for them (0.1 s of 5.8 by a rank a quarter as fast). Of a rank half
# as fast they come in time, and what two ranks own travels both ways at once (at 300 Mbit/s and
# 2,048 tokens 1.36 s a step in place of 1.55); foreseen are equal steps at about 0.4.
MIN_OWNER_SPEED = 0.4


def owner_speeds(speeds: Sequence[float]) -> list[float]:
    """The same with 0 for ranks that are too slow to own anything."""
    return [speed if speed >= MIN_OWNER_SPEED * max(speeds) else 0.0 for speed in speeds]


def owner_fractions(
    speeds: Sequence[float], muon_flops: float, adamw_numbers: float
) -> list[float]:
    """Parts of Muon's work by rank, together 1; whole matrices come close to them.

    speeds: relative, by rank; muon_flops, adamw_numbers: a step's.
    """
    assert max(speeds) > 0, speeds
    speeds = owner_speeds(speeds)
    beside = ADAMW_FLOPS * adamw_numbers
    if muon_flops <= 0:
        return [speed / sum(speeds) for speed in speeds]
    # All that own something are done at done_s: (beside + part * muon_flops) / speed.
    fastest_first = sorted(speeds, reverse=True)
    done_s = 0.0
    for count in range(1, len(speeds) + 1):
        together = sum(fastest_first[:count])
        done_s = (muon_flops + count * beside) / together
        if count == len(speeds) or fastest_first[count] * done_s <= beside:
            break
    return [max(0.0, speed * done_s - beside) / muon_flops for speed in speeds]
