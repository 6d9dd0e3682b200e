"""What draws lines on a Textual screen, and shows more of them than there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from yoked.watch.terminal.ink import STYLES, Line, finished
from yoked.watch.view import View

_STYLES = {name: Style.parse(told) for name, told in STYLES.items()}


def strip(drawn: Line) -> Strip:
    """A line as Textual draws it. No text of it is read as markup."""
    return Strip(
        [
            Segment(
                span.text,
                _STYLES[span.style] + Style.from_meta({"@click": span.action})
                if span.action
                else _STYLES[span.style],
            )
            for span in drawn
        ]
    )


class Viewer(App[None]):
    """What all screens know of their app."""

    in_ascii: bool
    view: View | None


class Drawn:
    """Of a screen: it is drawn anew when the terminal has another size. First among its bases."""

    app: Viewer
    call_after_refresh: Callable[..., bool]

    def on_resize(self, event: events.Resize) -> None:
        """Pass over a size that the terminal has no more.

        A screen tells itself each new size once more. With two under way at the same time, the
        two would follow each other for ever (Textual 8.2).
        """
        if event.size == self.app.size:
            self.call_after_refresh(self.draw)
        else:
            event.prevent_default()

    def draw(self) -> None:
        """Show what is to be shown now."""
        raise NotImplementedError


class Lines(Widget, can_focus=False):
    """Lines from the top. Only those that changed are drawn anew."""

    ALLOW_SELECT = False

    def __init__(self, *, in_ascii: bool) -> None:
        super().__init__()
        self._in_ascii = in_ascii
        self._lines: list[Line] = []

    def show(self, lines: Sequence[Line]) -> None:
        """Show these in the place of those that are there."""
        before = self._lines
        self._lines = finished(lines, self.size.width, in_ascii=self._in_ascii)
        length = max(len(before), len(self._lines))
        changed = [
            Region(0, row, self.size.width, 1)
            for row in range(length)
            if before[row : row + 1] != self._lines[row : row + 1]
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """A row of the screen."""
        drawn = strip(self._lines[y]) if y < len(self._lines) else Strip([])
        return drawn.adjust_cell_length(self.size.width, self.rich_style)


class Scrolled(Lines):
    """Lines of which a part is seen. top: the first one that is.

    follows: once the last line is seen, the view stays at the end, whatever comes.
    """

    def __init__(self, *, in_ascii: bool, follows: bool = False) -> None:
        super().__init__(in_ascii=in_ascii)
        self._all: list[Line] = []
        self._follows, self._at_end = follows, True
        self.top = 0

    @property
    def rows(self) -> int:
        """Of the screen, for these lines."""
        return max(self.size.height, 1)

    @property
    def length(self) -> int:
        """Of all lines."""
        return len(self._all)

    def put(self, lines: Sequence[Line], *, top: int | None = None) -> None:
        """Show these lines. top: the first that is seen; None: as it is."""
        follows = self._follows and self._at_end
        self._all = list(lines)
        self.go(self.length if follows else self.top if top is None else top)

    def go(self, top: int) -> None:
        """Have the view begin at a line."""
        last = max(self.length - self.rows, 0)
        self.top = min(max(top, 0), last)
        # As it was left: on a smaller screen, the last line is not seen until this is called.
        self._at_end = self.top == last
        self.show(self._all[self.top : self.top + self.rows])
