"""`yoked watch` in the terminal: a run is drawn until the person leaves."""

from __future__ import annotations

import contextlib
import shutil
import sys
from shlex import quote
from typing import TYPE_CHECKING

from yoked.text import one_line

if TYPE_CHECKING:
    from yoked.watch.view import View, Watched


def show(watched: Watched, *, chosen: bool, flag: str = "") -> None:
    """Draw a run on this terminal until the person leaves; then say that it goes on.

    chosen: False: begin with the list of runs. flag: what a command line about its hosts ends with.
    """
    from yoked.watch.terminal.app import WatchApp

    app = WatchApp(watched, chosen=chosen)
    # Of a terminal that does not know its size, Textual would find two, and draw for ever.
    app.run(size=shutil.get_terminal_size())
    if app.bug is not None:
        raise app.bug
    if app.view is not None:
        # A terminal that is gone hears nothing.
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{farewell(app.view, flag)}\n")
            sys.stdout.flush()


def farewell(view: View, flag: str = "") -> str:
    """What is said of a run when the view of it ends."""
    name = one_line(view.run)
    if not view.active:
        return f"run {name} is over: {one_line(view.state)}"
    named = f"{quote(name)}{flag}"
    return f"run {name} goes on: `yoked attach {named}` shows it, `yoked stop {named}` ends it"
