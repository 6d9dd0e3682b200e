"""Who stands before `yoked up`: is told what goes on, is asked, and lends hands."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence

from yoked.cli.live import StatusLine
from yoked.cli.output import Output, as_called
from yoked.console import HostsProgress
from yoked.workflows.steps import Report, Standing, Step

# Often enough for whoever has just plugged a cable in; a look takes a few seconds itself.
_LOOK_AGAIN_S = 5.0


class Terminal:
    """A person at a terminal, or nobody where there is none, or where a program reads JSON.

    yes: agrees to all, without being asked.
    """

    def __init__(self, output: Output, *, yes: bool) -> None:
        self._output, self._yes = output, yes
        self._is_there = output.can_ask
        self.may_agree = yes or self._is_there
        self.progress = HostsProgress(output.console)
        self._told: tuple[str, ...] = ()

    def status(self) -> StatusLine:
        """One line that tells what is being done."""
        return StatusLine(self._output)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._output.say(line)

    def agrees(self, lines: Sequence[str]) -> bool:
        """Whether this may be done. With --yes it is told all the same."""
        for line in lines:
            self.say(line if not line else f"  {line}")
        if self._yes:
            return True
        return self._is_there and self._output.asks("  do this?")

    def helps(self, step: Step, standing: Standing, *, look: bool) -> bool:
        """Say what hands are to do, once, and wait a while, or for Enter."""
        if not self._is_there:
            return False
        lines = (standing.said, *standing.lines)
        if not standing.lines:
            lines += tuple(f"  {as_called(each.command)}" for each in standing.commands)
        if lines != self._told:
            self._told = lines
            self.say(f"{step.name}: this needs your hands, and goes on when it is done:")
            for line in lines:
                self.say(f"  {line}")
            how = "Enter looks at once" if look else "Enter tries again"
            self.say(f"waiting; {how}, Ctrl-C leaves")
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK_AGAIN_S if look else None)
        # A terminal that is gone lends no hands any more.
        return not ready or bool(sys.stdin.readline())

    def begins(self, step: Step) -> None:
        """Nothing: its status line tells what is done."""

    def ends(self, report: Report) -> None:
        """A line for each step that is done; the result tells of the others, and of the plan."""
        if report.state == "done" and report.name != "plan":
            self.say(f"{report.name:<8} {report.standing.said}")
            for line in report.standing.lines:
                self.say(f"{'':<8} {line}")

    def close(self) -> None:
        """End what is being drawn."""
        self.progress.close()
