"""Each rank's fraction of Muon, such that all ranks finish the optimizer at the same time.

Every rank computes all of AdamW. A slow rank owns no matrix if its AdamW alone takes as long as a
fast rank needs for AdamW and Muon. A rank that is much slower than the fastest owns none either.
"""

from __future__ import annotations

from collections.abc import Sequence

# FLOPs that Muon does while AdamW updates one number, which reads and writes 28 bytes: 0.7 ns at
# 145 GFLOP/s (a core with AVX-512, float32). Several cores are limited by memory: there it is more.
ADAMW_FLOPS = 100
# A slower rank owns little, and is a straggler: it sends its new matrices during its AdamW, and all
# others wait for them (0.1 s of 5.8 for a rank a quarter as fast). A rank half as fast sends them
# in time, and two owners use both directions of the link (at 300 Mbit/s and 2,048 tokens 1.36 s a
# step in place of 1.55). The forecasts of both break even at about 0.4.
MIN_OWNER_SPEED = 0.4


def owner_speeds(speeds: Sequence[float]) -> list[float]:
    """Speeds by rank, 0 for ranks that are too slow to own matrices."""
    return [speed if speed >= MIN_OWNER_SPEED * max(speeds) else 0.0 for speed in speeds]


def owner_fractions(
    speeds: Sequence[float], muon_flops: float, adamw_numbers: float
) -> list[float]:
    """Fraction of Muon's work by rank; they sum to 1. Whole matrices only approximate them.

    speeds: relative, by rank. muon_flops, adamw_numbers: of one step.
    """
    assert max(speeds) > 0, speeds
    speeds = owner_speeds(speeds)
    adamw_flops = ADAMW_FLOPS * adamw_numbers
    if muon_flops <= 0:
        return [speed / sum(speeds) for speed in speeds]
    # All owners finish at done_s = (adamw_flops + fraction * muon_flops) / speed.
    fastest_first = sorted(speeds, reverse=True)
    done_s = 0.0
    for count in range(1, len(speeds) + 1):
        together = sum(fastest_first[:count])
        done_s = (muon_flops + count * adamw_flops) / together
        # The next rank is still at AdamW when these are done, so it owns nothing.
        if count == len(speeds) or fastest_first[count] * done_s <= adamw_flops:
            break
    return [max(0.0, speed * done_s - adamw_flops) / muon_flops for speed in speeds]
