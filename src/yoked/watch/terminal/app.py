"""The terminal's view of a run: drawn on each new view, which another thread fetches."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.timer import Timer

from yoked.errors import YokedError
from yoked.text import one_line
from yoked.watch.terminal.asking import Asker
from yoked.watch.terminal.board import STALE_S, Shown, board, keys, trouble_lines
from yoked.watch.terminal.curves import ZOOMS
from yoked.watch.terminal.ink import Line, is_simple, line
from yoked.watch.terminal.log import LINES
from yoked.watch.terminal.panes import Everything, Help, Log
from yoked.watch.terminal.rows import runs
from yoked.watch.terminal.widgets import Drawn, Lines, Scrolled, Viewer
from yoked.watch.view import RunRow, View, Watched

_T = TypeVar("_T")
# Between two looks: at a run that goes on, at one that is over, at the list of runs.
_LOOK_S, _OVER_S, _RUNS_S = 2.0, 10.0, 10.0
# What became of a wish is seen for so long.
_NOTICE_S = 60.0


class Board(Drawn, Screen[None]):
    """A run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose_rank(-1)"),
        Binding("down,j", "choose_rank(1)"),
        Binding("l,enter", "open_log"),
        Binding("s", "save"),
        Binding("x", "stop"),
        Binding("r,escape", "runs"),
        Binding("z", "zoom"),
        Binding("a", "all"),
    ]
    app: WatchApp

    def __init__(self) -> None:
        super().__init__()
        self.selected = 0
        self.zoom = 0

    def compose(self) -> ComposeResult:
        """Its one part."""
        self._lines = Lines(in_ascii=self.app.in_ascii)
        yield self._lines

    def draw(self) -> None:
        """Show the view as it is now."""
        app, (width, height) = self.app, self._lines.size
        if not width or not height:
            return
        if app.view is None:
            self._lines.show(app.waiting_lines(width))
            return
        self.selected = min(self.selected, max(len(app.view.ranks) - 1, 0))
        shown = Shown(app.now(), self.selected, self.zoom, app.trouble, app.notice)
        self._lines.show(board(app.view, shown, width, height))

    def action_choose_rank(self, down: int) -> None:
        """The one below, or above."""
        ranks = 0 if self.app.view is None else len(self.app.view.ranks)
        self.selected = min(max(self.selected + down, 0), max(ranks - 1, 0))
        self.draw()

    def on_mouse_scroll_down(self) -> None:
        """A wheel."""
        self.action_choose_rank(1)

    def on_mouse_scroll_up(self) -> None:
        """A wheel."""
        self.action_choose_rank(-1)

    def action_open_log(self, place: int | None = None) -> None:
        """What a rank wrote: the chosen one, or the one that was clicked."""
        view = self.app.view
        if view is None or not view.ranks:
            return
        self.selected = min(self.selected if place is None else place, len(view.ranks) - 1)
        rank = view.ranks[self.selected]
        self.app.push_screen(Log(rank.rank, one_line(rank.host)), self.app.came_back)
        self.app.look_now()

    def action_zoom(self) -> None:
        """Curves of all steps, of the last half of them, and so on."""
        self.zoom = (self.zoom + 1) % len(ZOOMS)
        self.draw()

    def action_all(self) -> None:
        """All that is known, in words."""
        self.app.push_screen(Everything(), self.app.came_back)

    def action_runs(self) -> None:
        """The list of runs."""
        self.app.push_screen(Runs())
        self.app.look_now()

    def action_save(self) -> None:
        """Have it save."""
        if (view := self.app.active("save")) is not None:
            asked = f"run {one_line(view.run)} is asked to save: it answers after its step"
            self.app.wish("save", asked, self.app.watched.save)

    def action_stop(self) -> None:
        """Ask how, and stop it."""
        view = self.app.active("stop")
        if view is None:
            return

        def answered(answer: str | None) -> None:
            if answer is not None:
                how = "ended without a checkpoint" if answer == "now" else "asked to save and stop"
                self.app.wish(
                    "stop",
                    f"run {one_line(view.run)} is {how}",
                    lambda: self.app.watched.stop(now=answer == "now"),
                )

        self.app.push_screen(Stop(view.run), answered)


class Runs(Drawn, Screen[None]):
    """The list of runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "move(-10)"),
        Binding("pagedown", "move(10)"),
        Binding("enter", "pick"),
        Binding("escape", "back"),
    ]
    _KEYS = (
        ("q", "quit", "app.leave"),
        ("?", "help", "app.help"),
        ("Enter", "look at it", "screen.pick"),
        ("Esc", "back", "screen.back"),
    )
    app: WatchApp

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[RunRow] | None = None
        self._trouble: YokedError | None = None
        self._selected = 0

    def compose(self) -> ComposeResult:
        """Its parts."""
        in_ascii = self.app.in_ascii
        self._head = Lines(in_ascii=in_ascii)
        self._body = Scrolled(in_ascii=in_ascii)
        self._foot = Lines(in_ascii=in_ascii)
        self._head.add_class("head")
        self._foot.add_class("foot")
        yield self._head
        yield self._body
        yield self._foot

    def take(self, rows: list[RunRow]) -> None:
        """The runs as they are now. The chosen one stays chosen."""
        before = self._rows[self._selected].run if self._rows else None
        self._rows, self._trouble = rows, None
        names = [each.run for each in rows]
        self._selected = names.index(before) if before in names else 0
        self.draw()

    def fail(self, problem: YokedError) -> None:
        """They could not be read now."""
        self._trouble = problem
        self.draw()

    def draw(self) -> None:
        """Show them."""
        width = self.size.width
        head: list[Line] = [line((" runs", "strong"))]
        body: list[Line] = []
        if self._trouble is not None:
            head += trouble_lines(self._trouble, width, age_s=None)
        if self._rows is None:
            body = [] if self._trouble else [line(" asking for them ...")]
        elif not self._rows:
            body = [line(" there is no run yet"), line((" next ", "dim"), "yoked train")]
        else:
            heading, *body = runs(self._rows, width, now_s=self.app.now(), selected=self._selected)
            head.append(heading)
        self._head.styles.height = len(head)
        self._head.show(head)
        self._body.put(body)
        rows = self._body.rows
        if self._rows and not self._body.top <= self._selected < self._body.top + rows:
            self._body.go(self._selected - rows // 2)
        self._foot.show([keys(self._KEYS, width)])

    def on_mouse_scroll_down(self) -> None:
        """A wheel."""
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """A wheel."""
        self.action_move(-1)

    def action_move(self, rows: int) -> None:
        """Choose one below or above."""
        self._selected = min(max(self._selected + rows, 0), max(len(self._rows or ()) - 1, 0))
        self.draw()

    def action_pick(self, place: int | None = None) -> None:
        """Look at the chosen one, or at the one that was clicked."""
        if self._rows:
            place = self._selected if place is None else min(place, len(self._rows) - 1)
            run = self._rows[place].run
            self.dismiss()
            self.app.choose(run)

    def action_back(self) -> None:
        """To the run that was looked at, if there is one."""
        if self.app.chosen:
            self.dismiss()
            self.app.came_back(None)
            self.app.look_now()


class Stop(Drawn, ModalScreen[str | None]):
    """How to stop a run; None: not at all."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('save')"),
        Binding("e", "answer('now')"),
        Binding("c,escape,enter", "answer('')"),
    ]
    app: WatchApp

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = one_line(run)

    def compose(self) -> ComposeResult:
        """The question."""
        self._lines = Lines(in_ascii=self.app.in_ascii)
        yield self._lines

    def draw(self) -> None:
        """Show the question."""
        answers = (
            ("s", "save and stop", "screen.answer('save')"),
            ("e", "end now, without a checkpoint", "screen.answer('now')"),
            ("c", "cancel: it goes on (Esc, Enter)", "screen.answer('')"),
        )
        width = self._lines.size.width
        told: list[Line] = [line((f"Stop run {self._run}?", "strong")), ()]
        told += [keys([each], 99) for each in answers]
        self._lines.show(told[: max(self._lines.size.height, 1)] if width else [])

    def action_answer(self, answer: str) -> None:
        """It is answered."""
        self.dismiss(answer or None)


class WatchApp(Viewer):
    """The screens, and the calls that they need."""

    CSS_PATH = "watch.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave"),
        Binding("ctrl+c,ctrl+q", "leave", priority=True),
        Binding("question_mark", "help"),
    ]

    def __init__(
        self, watched: Watched, *, chosen: bool, now: Callable[[], float] = time.time
    ) -> None:
        """now: the time, by the clock of `View.time_s`."""
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.watched, self.chosen, self.now = watched, chosen, now
        self.in_ascii = is_simple(os.environ)
        self.view: View | None = None
        self.trouble: YokedError | None = None
        self.notice = ""
        # What failed in a way that nobody foresaw: raised where the view was opened.
        self.bug: Exception | None = None
        self._noticed_s = 0.0
        self._has_terminal = False
        # Answers for a run that is not looked at any more are dropped.
        self._of_run = 0
        # What is asked and not answered yet: it is not asked twice at the same time.
        self._asked = set[tuple[int, str]]()
        self._next: Timer | None = None
        self._board = Board()
        self._asker: Asker | None = None

    def get_default_screen(self) -> Screen[None]:
        """The run."""
        return self._board

    def on_ready(self) -> None:
        """Begin to look: the screens are there."""
        self._has_terminal = not self.is_headless and sys.stdin.isatty()
        if self._has_terminal:
            # By themselves they would leave the terminal as it is now.
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._asker = Asker(self.call_later)
        self.set_interval(1.0, self._tick)
        if not self.chosen:
            self.push_screen(Runs())
        self.look_now()

    def on_unmount(self) -> None:
        """Look no more."""
        if self._asker is not None:
            self._asker.end()

    # --- what the screens ask for

    def active(self, wish: str) -> View | None:
        """The view of a run that goes on; None: there is none, and that is said."""
        if self.view is not None and not self.view.active:
            self._say(f"run {one_line(self.view.run)} is over: there is nothing to {wish}")
        return self.view if self.view is not None and self.view.active else None

    def wish(self, what: str, asked: str, call: Callable[[], str]) -> None:
        """Have something done to the run, and say what became of it."""
        self._say(asked)
        self._ask(what, call, self._say, lambda problem: self._say(str(problem)))
        self.look_now()

    def choose(self, run: str) -> None:
        """Look at another run from now on."""
        self._of_run += 1
        self.chosen, self.view, self.trouble, self.notice = True, None, None, ""
        self._ask("choose", lambda: self.watched.choose(run), lambda _: None, self._failed)
        self._board.selected = 0
        self._board.draw()
        self.look_now()

    def came_back(self, _: object) -> None:
        """The run is on the screen again."""
        self._board.draw()

    def waiting_lines(self, width: int) -> list[Line]:
        """In the place of a view, where there is none yet."""
        if self.trouble is None:
            return [line(" looking at the run ...")]
        return trouble_lines(self.trouble, width, age_s=None)

    def action_help(self) -> None:
        """The keys, and what is seen."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help(), self.came_back)

    def action_leave(self) -> None:
        """End the view. The run goes on."""
        self.exit()

    # --- the calls

    def look_now(self) -> None:
        """Look at once, and then every few seconds."""
        if self._next is not None:
            self._next.stop()
            self._next = None
        screen = self._looked_at()
        if isinstance(screen, Runs):
            self._ask("runs", self.watched.runs, self._runs_came, self._runs_failed)
        elif self.chosen:
            self._ask("look", self.watched.look, self._took, self._failed)
        if isinstance(screen, Log):
            rank = screen.rank
            self._ask(
                f"log {rank}",
                lambda: self.watched.log(rank, LINES),
                lambda written: self._log_came(rank, written),
                lambda problem: self._log_failed(rank, problem),
            )

    def _looked_at(self) -> Board | Runs | Log:
        """The uppermost screen that shows more than text of ours."""
        return next(each for each in reversed(self.screen_stack) if isinstance(each, _LOOKED_AT))

    def _ask(
        self,
        what: str,
        call: Callable[[], _T],
        took: Callable[[_T], None],
        failed: Callable[[YokedError], None],
    ) -> None:
        assert self._asker is not None
        key = (self._of_run, what)
        if key in self._asked:
            return
        self._asked.add(key)

        def answered(told: Callable[..., None]) -> Callable[..., None]:
            def tell(answer: object) -> None:
                self._asked.discard(key)
                if key[0] == self._of_run:
                    told(answer)
                if not self._asked and self._next is None:
                    self._next = self.set_timer(self._pause_s(), self.look_now)

            return tell

        self._asker.ask(call, answered(took), answered(failed), answered(self._bug_came))

    def _pause_s(self) -> float:
        if isinstance(self._looked_at(), Runs):
            return _RUNS_S
        return _OVER_S if self.view is not None and not self.view.active else _LOOK_S

    def _took(self, view: View) -> None:
        self.view, self.trouble = view, None
        self._draw()

    def _failed(self, problem: YokedError) -> None:
        self.trouble = problem
        self._draw()

    def _runs_came(self, rows: list[RunRow]) -> None:
        if isinstance(screen := self._looked_at(), Runs):
            screen.take(rows)

    def _runs_failed(self, problem: YokedError) -> None:
        if isinstance(screen := self._looked_at(), Runs):
            screen.fail(problem)

    def _log_came(self, rank: int, written: list[tuple[str, str]]) -> None:
        if isinstance(screen := self._looked_at(), Log) and screen.rank == rank:
            screen.take(written)

    def _log_failed(self, rank: int, problem: YokedError) -> None:
        if isinstance(screen := self._looked_at(), Log) and screen.rank == rank:
            screen.fail(problem.what)

    def _bug_came(self, problem: Exception) -> None:
        self.bug = problem
        self.exit()

    def _say(self, notice: str) -> None:
        self.notice, self._noticed_s = notice, time.monotonic()
        self._draw()

    def _draw(self) -> None:
        """What shows the view; a screen above it is drawn when it is looked at."""
        if isinstance(self.screen, Everything):
            self.screen.draw()
        elif self._board.is_mounted:
            self._board.draw()

    def _tick(self) -> None:
        """Once a second: draw what changes though nothing comes."""
        if self._has_terminal and not sys.stdin.isatty():
            # The terminal is gone, and no signal said so: nobody looks any more.
            self.exit()
        if self.notice and time.monotonic() - self._noticed_s > _NOTICE_S:
            self._say("")
        elif self.view is not None and self.now() - self.view.time_s > STALE_S:
            self._draw()


_LOOKED_AT = (Board, Runs, Log)
