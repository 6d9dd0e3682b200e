"""What is seen of a run while it trains: one line on a terminal, a line now and then in a log."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console

from yoked.console import LiveLine
from yoked.liveline import LivePart, LiveText
from yoked.units import format_count, format_duration

LINE_EVERY_S = 10.0
REDRAW_EVERY_S = 0.5
SMOOTHING = 0.9
# The trend of the loss: over so many steps, once there are some.
TREND_STEPS = 100
TREND_LEAST_STEPS = 10
# Below it the loss neither falls nor rises.
LEVEL_NATS = 0.005
# Less of a step's time is not worth a word.
WAITS = 0.1


class RankPart(NamedTuple):
    """A rank's part of a step. wait_s: for slower ranks; comm_s: for bytes on their way."""

    tokens: int
    wait_s: float
    comm_s: float

    def smoothed(self, before: RankPart, weight: float) -> RankPart:
        """The mean of this step's times and earlier ones'. weight: of the earlier."""
        wait_s = weight * before.wait_s + (1 - weight) * self.wait_s
        return RankPart(self.tokens, wait_s, weight * before.comm_s + (1 - weight) * self.comm_s)


class TrainProgress:
    """On a terminal, one line that is redrawn; in a file, a new line every LINE_EVERY_S."""

    def __init__(
        self,
        console: Console,
        steps: int,
        first_step: int,
        full_speed_token_s: float | None = None,
        hosts: Sequence[str] = ("",),
        names: Sequence[str] = ("",),
    ) -> None:
        """full_speed_token_s: of all ranks, for MFU; None: it is not shown. hosts: of each rank;
        names: that tell ranks apart.
        """
        self._full_speed_token_s = full_speed_token_s
        self._console, self._steps, self._first = console, steps, first_step
        self._hosts, self._names = hosts, names
        self._live = LiveLine(console)
        self._shown_s = self._printed_s = float("-inf")
        self._smooth_loss = self._smooth_dt = 0.0
        self._weight = 0.0
        self._dt_count = 0
        self._stays = True
        self._losses: deque[float] = deque(maxlen=TREND_STEPS + 1)
        self._parts = [RankPart(0, 0.0, 0.0)] * len(hosts)

    def step(
        self,
        step: int,
        loss: float,
        tokens: int,
        dt_s: float,
        by_rank: Sequence[RankPart] = (),
    ) -> None:
        """Report a step. step: counted from 0. tokens: of all ranks."""
        self._smooth_loss = SMOOTHING * self._smooth_loss + (1 - SMOOTHING) * loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        self._losses.append(self._smooth_loss / self._weight)
        # The first step compiles and warms up, so it is no estimate of the others.
        if step > self._first or self._dt_count == 0:
            weight = 0.0 if self._dt_count <= 1 else SMOOTHING
            self._smooth_dt = weight * self._smooth_dt + (1 - weight) * dt_s
            self._dt_count += 1
            if by_rank:
                pairs = zip(self._parts, by_rank, strict=True)
                self._parts = [now.smoothed(before, weight) for before, now in pairs]
        now_s, last = time.monotonic(), step + 1 == self._steps
        draws = self._live.is_seen and (last or now_s - self._shown_s >= REDRAW_EVERY_S)
        prints = not self._console.is_terminal and (last or now_s - self._printed_s >= LINE_EVERY_S)
        if draws:
            self._shown_s, self._stays = now_s, True
            done = (step + 1) / self._steps
            self._live.draw(LiveText(tuple(self._line(step, tokens)), done, self._smooth_dt))
        if prints:
            self._printed_s = now_s
            self._console.print(self._log_line(step, tokens), markup=False)

    def _log_line(self, step: int, tokens: int) -> str:
        left_s = (self._steps - step - 1) * self._smooth_dt
        return (
            f"step {step + 1:,}/{self._steps:,}  loss {self._losses[-1]:.4f}  "
            f"{tokens / self._smooth_dt:,.0f} tokens/s  {self._mfu(tokens)}"
            f"{format_duration(left_s)} left"
        )

    def _line(self, step: int, tokens: int) -> Iterator[LivePart]:
        counter, rate = f"{step + 1:,}/{self._steps:,}", tokens / self._smooth_dt
        yield LivePart(f"step {counter}", 9, counter)
        yield self._loss()
        yield LivePart(f"{rate:,.0f} tokens/s", 7, f"{format_count(round(rate))} tokens/s")
        if mfu := self._mfu(tokens).strip():
            yield LivePart(mfu, 4)
        if len(set(self._hosts)) > 1 and any(part.tokens for part in self._parts):
            yield self._by_host(rate)
        yield from self._waiting()
        left_s = (self._steps - step - 1) * self._smooth_dt
        left = format_duration(left_s) if left_s >= 59.5 else f"{left_s:.0f} s"
        yield LivePart(f"{left} left", 8)

    def _loss(self) -> LivePart:
        loss = f"loss {self._losses[-1]:.4f}"
        steps = len(self._losses) - 1
        if steps < TREND_LEAST_STEPS:
            return LivePart(loss, 8)
        change = self._losses[-1] - self._losses[0]
        arrow = "→" if abs(change) < LEVEL_NATS else "↓" if change < 0 else "↑"
        return LivePart(f"{loss} {arrow}{abs(change):.2f} in {steps}", 8, f"{loss} {arrow}")

    def _by_host(self, rate: float) -> LivePart:
        """Tokens a second by host, or in short their parts of all."""
        tokens = dict.fromkeys(self._hosts, 0)
        for host, part in zip(self._hosts, self._parts, strict=False):
            tokens[host] += part.tokens
        total = sum(tokens.values())
        parts = {host: count / total for host, count in tokens.items()}
        return LivePart(
            ", ".join(f"{host} {format_count(round(part * rate))}" for host, part in parts.items()),
            5,
            " ".join(f"{host} {part:.0%}" for host, part in parts.items()),
        )

    def _waiting(self) -> Iterator[LivePart]:
        """For whom, and for the network: the part of a step's time, of the rank that waits most."""
        if len(self._parts) < 2:
            return
        waits = [part.wait_s / self._smooth_dt for part in self._parts]
        if max(waits) > WAITS:
            slowest = self._names[waits.index(min(waits))]
            part = f"{max(waits):.0%}"
            # Between hosts it says where to look; ranks of one host differ by what else runs there.
            importance = 6 if len(set(self._hosts)) > 1 else 2
            yield LivePart(f"waits {part} for {slowest}", importance, f"waits {part}: {slowest}")
        comm = max(part.comm_s for part in self._parts) / self._smooth_dt
        if comm > WAITS:
            yield LivePart(f"network {comm:.0%}", 3, f"net {comm:.0%}")

    def _mfu(self, tokens: int) -> str:
        if self._full_speed_token_s is None:
            return ""
        return f"MFU {tokens * self._full_speed_token_s / self._smooth_dt:.0%}  "

    def doing(self, what: str) -> None:
        """Say what goes on where no step does."""
        if self._live.is_seen:
            self._stays = False
            self._live.draw(LiveText.of(what))

    def say(self, text: str) -> None:
        """Print a text, on lines of its own."""
        self._live.pause()
        self._console.print(text, markup=False)

    def close(self) -> None:
        """End the progress line; what was going on where no step did leaves none."""
        self._live.close(erase=not self._stays)


# Matches the lines that `TrainProgress` prints into a log, so that a live display of the log can
# leave them out. The last one, step N/N, does not match: it stays.
PROGRESS_LINE = re.compile(r"step ([\d,]+)/(?!\1 )[\d,]+  loss ")
