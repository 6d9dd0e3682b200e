"""What was said of a run over time: the lines of diagnosis.jsonl that follow from a newer look.

A line is written when something changes: a cause that holds for hours takes two. Pure: whoever
looks tells the time, and writes. Standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yoked.diagnosis.gate import RankShare, Shares

# Looks come twice a second. What is missing in a few of them and comes back was never gone: a rule
# that is on its edge would be two lines a second, and another cause may hide it for a moment.
_GONE_S = 5.0
# Whoever reads a run's folder reads this file at once, and a copy of it travels: as much as a page
# can show.
MOST_BYTES = 16 << 20
# Shares are most of the lines, some 1 kB a minute of two ranks. They are rarer the longer the file
# is: a run of a month has them to its end, and leaves room for causes.
_SHARES_S, _RARER_BYTES = 20.0, 1 << 20


@dataclass
class _Open:
    """Something that is said of the run. began_s: by its own age when it was told first. gone_s:
    since when it is missing; None: it is not.
    """

    said: Mapping[str, Any]
    began_s: float
    is_sure: bool
    gone_s: float | None = None


class Timeline:
    """What follows from one look after another of one attempt. attempt: the first is 0.

    Lines are JSON objects with time_s (Unix time), attempt and event. now_s: of a clock that is
    never set; time_s: Unix time of the same moment.
    """

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._open: dict[tuple[object, ...], _Open] = {}
        self._shares_due_s: float | None = None
        self._held = False

    def begin(self, launch_id: str, host: str, time_s: float) -> dict[str, Any]:
        """The first line of the attempt. host: which writes this, by its own looks."""
        return self._line("begin", time_s, launch_id=launch_id, host=host)

    def look(
        self,
        causes: Sequence[Mapping[str, Any]],
        warnings: Sequence[Mapping[str, Any]],
        shares: Shares | None,
        *,
        now_s: float,
        time_s: float,
        kept_bytes: int = 0,
    ) -> list[dict[str, Any]]:
        """What a look adds. causes, warnings: as diagnosis.json has them; shares: None: not known
        now. kept_bytes: what the journal has already.
        """
        is_full = kept_bytes >= MOST_BYTES
        lines, seen = [], set()
        told = [*(("cause", each) for each in causes), *(("warning", each) for each in warnings)]
        for event, said in told:
            key = (said["cause"], *said["hosts"], said["rank"])
            seen.add(key)
            known, is_sure = self._open.get(key), said["certainty"] == "sure"
            if known is None and is_full:
                continue
            if known is None or (is_sure and not known.is_sure):
                lines.append(self._line(event, time_s, **said))
            began_s = now_s - said.get("since_s", 0.0) if known is None else known.began_s
            was_sure = known is not None and known.is_sure
            self._open[key] = _Open(said, began_s, is_sure or was_sure)
        for key, known in list(self._open.items()):
            if key in seen or (self._held and known.gone_s is None):
                continue
            known.gone_s = now_s if known.gone_s is None else known.gone_s
            if now_s - known.gone_s >= _GONE_S:
                lines.append(self._over(key, now_s, time_s))
        if shares is not None and not is_full and self._shares_are_due(now_s, kept_bytes):
            lines.append(self._line("shares", time_s, **_plain(shares)))
        return lines

    def hold(self) -> None:
        """The attempt is being ended: what holds now goes with its ranks, and is not over."""
        self._held = True

    def end(
        self,
        *,
        finished: bool,
        now_s: float,
        time_s: float,
        ranks_over_s: float | None = None,
        failure: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """What the end of the attempt adds; of a cause that held until then it is all there is.

        finished: it ended well. ranks_over_s: when the ranks had ended, by the clock of now_s: what
        is gone since then held until the end. failure: what ended it, else.
        """
        until_s = math.inf if ranks_over_s is None else ranks_over_s
        gone = [
            key
            for key, known in self._open.items()
            if known.gone_s is not None and known.gone_s < until_s
        ]
        over = [self._over(key, now_s, time_s) for key in gone]
        return [*over, self._line("end", time_s, finished=finished, failure=failure)]

    def _over(self, key: tuple[object, ...], now_s: float, time_s: float) -> dict[str, Any]:
        """Close what is gone, at the moment when it was."""
        known = self._open.pop(key)
        assert known.gone_s is not None, key
        return self._line(
            "over",
            time_s - (now_s - known.gone_s),
            cause=known.said["cause"],
            hosts=known.said["hosts"],
            rank=known.said["rank"],
            lasted_s=round(known.gone_s - known.began_s, 2),
        )

    def _shares_are_due(self, now_s: float, kept_bytes: int) -> bool:
        if self._shares_due_s is not None and now_s < self._shares_due_s:
            return False
        self._shares_due_s = now_s + _SHARES_S * 2 ** (kept_bytes // _RARER_BYTES)
        return True

    def _line(self, event: str, time_s: float, **content: Any) -> dict[str, Any]:
        return {
            "time_s": round(time_s, 2),
            "attempt": self._attempt,
            "event": event,
            **content,
        }


def _plain(shares: Shares) -> dict[str, Any]:
    """Shares of the time, to a thousandth."""
    return {
        "step_s": _short(shares.step_s),
        "gate": shares.gate,
        "gating": list(shares.gating),
        "ahead": _short(shares.ahead),
        "why": shares.why,
        "ranks": [_rank(each) for each in shares.ranks],
    }


def _rank(share: RankShare) -> dict[str, Any]:
    return {
        "rank": share.rank,
        "computes": _short(share.computes),
        "waits_for_core": _short(share.waits_for_core),
        "waits": _short(share.waits),
        "loads_data": _short(share.loads_data),
        "gpu": share.gpu,
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
