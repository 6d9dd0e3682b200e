"""Screens of text that is longer than they are: all of a view, the keys, a rank's log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from yoked.units import plural
from yoked.watch.lines import full
from yoked.watch.terminal import log
from yoked.watch.terminal.board import keys
from yoked.watch.terminal.ink import Line, line, padded, wrapped
from yoked.watch.terminal.widgets import Drawn, Lines, Scrolled, Viewer

_HELP_KEYS = (
    ("up down", "choose a rank, or a run of the list"),
    ("l, Enter", "what the chosen rank wrote: / searches it, n and N go on from there"),
    ("s", "have the run save a checkpoint; it goes on"),
    ("x", "stop the run: it asks whether to save before"),
    ("r, Esc", "the list of runs, to look at another one"),
    ("z", "curves of the last half of the steps, of the last tenth, of each of the last, of all"),
    ("a", "all that is known of the run, in words"),
    ("q, Ctrl-C", "leave; the run goes on"),
)
_HELP = """\
The bar of a rank is a step's time: it computes, it sends (it stands still while bytes travel), it \
waits for slower ranks, and the rest. The words beside it say for whom it waits. Of a program that \
tells of no steps, the bar is its last 20 seconds.
OK: as it should be. ! is worth a look. !! does not work.
The loss is in nats a token. o is the validation in bits per byte, with its axis on the right, \
drawn so that it lies on the curve as long as the two go together. A gap is a step of which \
nothing is known.
A link's use is what it carries now, against what was measured to be possible.
The last line says what looking on takes of the way to the hosts."""


class Pane(Drawn, Screen[None]):
    """A title, lines that scroll, and the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_by(-1)"),
        Binding("down,j", "scroll_by(1)"),
        Binding("pageup,b", "page(-1)"),
        Binding("pagedown,space", "page(1)"),
        Binding("home,g", "begin"),
        Binding("end,G", "end"),
        Binding("escape", "back"),
    ]
    KEYS: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("q", "quit", "app.leave"),
        ("Esc", "back", "screen.back"),
        ("PgUp", "up", "screen.page(-1)"),
        ("PgDn", "down", "screen.page(1)"),
    )
    FOLLOWS: ClassVar[bool] = False
    AUTO_FOCUS = ""
    app: Viewer

    def compose(self) -> ComposeResult:
        """Its parts."""
        in_ascii = self.app.in_ascii
        self.head = Lines(in_ascii=in_ascii)
        self.body = Scrolled(in_ascii=in_ascii, follows=self.FOLLOWS)
        self.foot = Lines(in_ascii=in_ascii)
        self.head.add_class("head")
        self.foot.add_class("foot")
        yield self.head
        yield self.body
        yield self.foot

    def draw(self) -> None:
        """Show what is to be shown now."""
        self.body.put(self.rows(self.size.width))
        self.draw_edges()

    def draw_edges(self) -> None:
        """The title with the place in the text, and the keys."""
        body = self.body
        seen = f"{min(body.top + body.rows, body.length):,} of {plural(body.length, 'row')}"
        self.head.show([line((f" {self.name_of()}", "strong"), ("  " + seen, "dim"))])
        self.foot.show([keys(self.KEYS, self.size.width)])

    def name_of(self) -> str:
        """What the title says."""
        raise NotImplementedError

    def rows(self, width: int) -> Sequence[Line]:
        """The text."""
        raise NotImplementedError

    def on_mouse_scroll_down(self) -> None:
        """A wheel."""
        self.action_scroll_by(3)

    def on_mouse_scroll_up(self) -> None:
        """A wheel."""
        self.action_scroll_by(-3)

    def action_scroll_by(self, rows: int) -> None:
        """Up or down."""
        self._go(self.body.top + rows)

    def action_page(self, pages: int) -> None:
        """Up or down by what is seen."""
        self._go(self.body.top + pages * max(self.body.rows - 1, 1))

    def action_begin(self) -> None:
        """To the first row."""
        self._go(0)

    def action_end(self) -> None:
        """To the last row."""
        self._go(self.body.length)

    def action_back(self) -> None:
        """To the screen from which it was opened."""
        self.dismiss()

    def _go(self, top: int) -> None:
        self.body.go(top)
        self.draw_edges()


class Help(Pane):
    """The keys, and what is seen."""

    def name_of(self) -> str:
        """The title."""
        return "help"

    def rows(self, width: int) -> Sequence[Line]:
        """The text."""
        rows = [line(" Looking on leaves the run as it is; only s and x act on it."), ()]
        for key, does in _HELP_KEYS:
            for place, text in enumerate(wrapped(does, width - 13)):
                rows.append(line((" " + padded("" if place else key, 11), "key"), text))
        for paragraph in _HELP.splitlines():
            rows += [(), *(line(" " + text) for text in wrapped(paragraph, min(width - 2, 78)))]
        return rows


class Everything(Pane):
    """All that a view says, in words."""

    def name_of(self) -> str:
        """The title."""
        return "all that is known"

    def rows(self, width: int) -> Sequence[Line]:
        """The text."""
        view = self.app.view
        return [line(" nothing is known yet")] if view is None else list(full(view, width))


class Log(Pane):
    """What a rank wrote, with a search."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search"),
        Binding("n", "find(1)"),
        Binding("N", "find(-1)"),
    ]
    KEYS: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("q", "quit", "app.leave"),
        ("Esc", "back", "screen.back"),
        ("/", "search", "screen.search"),
        ("n", "next", "screen.find(1)"),
        ("N", "before", "screen.find(-1)"),
        ("g", "first", "screen.begin"),
        ("G", "last", "screen.end"),
        ("PgUp", "up", "screen.page(-1)"),
    )
    FOLLOWS: ClassVar[bool] = True

    def __init__(self, rank: int, host: str) -> None:
        super().__init__()
        self.rank, self._host = rank, host
        self._written: log.Written | None = None
        self._term = self._problem = ""
        # The line that the search is at, by its place.
        self._at: int | None = None
        self._text = log.LogText((), 80)

    def compose(self) -> ComposeResult:
        """Its parts, and the line of the search."""
        yield from super().compose()
        self.input = Input(placeholder="search for", compact=True)
        self.input.cursor_blink = False
        self.input.display = False
        yield self.input

    def name_of(self) -> str:
        """The title."""
        name = f"log of rank {self.rank} on {self._host}"
        found = self._text.found
        if self._term and self._at in found:
            name += f"  {self._term!r}: {found.index(self._at) + 1} of {len(found)}"
        elif self._term:
            name += f"  {self._term!r}: {plural(len(found), 'line')}"
        return f"{name}  ! {self._problem}" if self._problem else name

    def take(self, written: log.Written) -> None:
        """What the rank wrote, as it is now."""
        if written == self._written and not self._problem:
            return
        before, begins, body = self._written, self._text.begins, self.body
        self._written, self._problem = written, ""
        top = body.top
        if before:
            # What is read stays where it is, though lines before it went.
            line_at = bisect_right(begins, top) - 1
            within = top - begins[line_at]
            if self._at is not None:
                self._at = log.moved(before, written, self._at)
            rows = self.rows(self.size.width)
            top = self._text.begins[log.moved(before, written, line_at)] + within
        else:
            rows = self.rows(self.size.width)
        body.put(rows, top=top)
        self.draw_edges()

    def fail(self, problem: str) -> None:
        """It could not be read now."""
        self._problem = problem
        self.draw_edges()

    def rows(self, width: int) -> Sequence[Line]:
        """The text."""
        if not self._written:
            asked = self._written is None
            return [line(" reading ..." if asked else f" rank {self.rank} has written nothing yet")]
        self._text = log.LogText(self._written, width, self._term, self._at)
        return self._text.rows

    def action_search(self) -> None:
        """Ask for what."""
        self.input.display = True
        self.input.value = self._term
        self.input.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search for it, upwards from the end."""
        event.stop()
        self._term, self._at = event.value.strip(), None
        self._end_input()
        self.draw()
        self.action_find(-1)

    def action_find(self, direction: int) -> None:
        """To the next line with the term, or the one before; around the end."""
        found = self._text.found
        if not found:
            return
        at = self._at
        later = [place for place in found if at is None or (place - at) * direction > 0]
        self._at = (later or found)[0 if direction > 0 else -1]
        self.draw()
        row, body = self._text.begins[self._at], self.body
        if not body.top <= row < body.top + body.rows:
            self._go(row - body.rows // 2)

    def action_back(self) -> None:
        """Leave the search, or the log."""
        if self.input.display:
            self._end_input()
        else:
            super().action_back()

    def _end_input(self) -> None:
        self.input.display = False
        self.set_focus(None)
