"""Transfers that stop, crawl or break although small messages pass."""

from __future__ import annotations

from yoked.doctor.checks.links import broke, connected, reached
from yoked.doctor.checks.path import cause_of
from yoked.doctor.checks.query import chosen_interface, interface_kind
from yoked.records.examination import Dial, Examination

# A first window of full-size packets, of which not one arrived.
NOTHING_BYTES = 14_600
# A cable of the oldest kind carries as much; a step of megabytes takes a minute.
CRAWL_BYTES_PER_S = 1.25e6
# 100 Mbit/s, which every cable and most radio give.
SLOW_BYTES_PER_S = 12.5e6
FAR_BELOW = 0.5


def is_stalled(dial: Dial) -> bool:
    """Whether a long transfer did not come to its end, after something of it had come."""
    if reached(dial) or not connected(dial) or broke(dial):
        return False
    # Before a burst full-size packets passed.
    return dial.purpose in ("burst", "rest") or (dial.bulk_bytes or 0) > NOTHING_BYTES


def crawls(seen: Examination, dial: Dial, below: float = CRAWL_BYTES_PER_S) -> bool:
    """Whether a burst came so slowly that its cable cannot be the reason. below: bytes per second
    of the whole link.
    """
    if dial.purpose != "burst" or not reached(dial) or not dial.goodput_bytes_per_s:
        return False
    kinds = {
        interface_kind(host, chosen_interface(seen, host))
        for host in (seen.host(dial.source), seen.host(dial.target))
    }
    # Those of all hosts come at once.
    at_once = len(seen.up) - 1
    return kinds <= {"physical", "bridge"} and dial.goodput_bytes_per_s * at_once < below


def slow_rates(seen: Examination, pair: tuple[str, str]) -> tuple[float, float, str] | None:
    """(of the way that is used, of the best one, its interface) in bytes a second, of a link that
    is slower than it could be; None: it is not, as far as was measured.
    """
    rates = _goodputs(seen, pair)
    if rates is None:
        return _crawl(seen, pair)
    used, best, _ = rates
    return rates if used < FAR_BELOW * best or used < SLOW_BYTES_PER_S else None


def _goodputs(seen: Examination, pair: tuple[str, str]) -> tuple[float, float, str] | None:
    """The same of every link that was measured."""
    measured = [
        each
        for each in seen.dials
        if (each.source, each.target) == pair
        and reached(each)
        and each.goodput_bytes_per_s
        # It shares the link with all others.
        and each.purpose != "burst"
    ]
    used = [each.goodput_bytes_per_s or 0.0 for each in measured if each.chosen]
    if not used:
        return None
    best = max(measured, key=lambda each: each.goodput_bytes_per_s or 0.0)
    return max(used), best.goodput_bytes_per_s or 0.0, best.interface


def _crawl(seen: Examination, pair: tuple[str, str]) -> tuple[float, float, str] | None:
    """The same of a link that nobody measured, where a burst crawled."""
    for dial in seen.between(*pair, ("burst",)):
        back = (each.goodput_bytes_per_s or 0.0 for each in seen.between(*pair[::-1], ("burst",)))
        below = max(SLOW_BYTES_PER_S, FAR_BELOW * (len(seen.up) - 1) * max(back, default=0.0))
        # A shaper may be meant, where it lets more than a crawl through.
        slowed = crawls(seen, dial, below) and (
            cause_of(seen, dial, "slow").kinds & {"route", "setting"}
        )
        if slowed or crawls(seen, dial):
            rate = dial.goodput_bytes_per_s or 0.0
            return rate, rate, dial.interface
    return None
