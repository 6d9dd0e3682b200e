"""`yoked watch`: look on while a run goes on, in the terminal or in a browser."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from yoked.cli.completers import run_names
from yoked.cli.flags import FleetFlag, JsonFlag, RunsDir, same_fleet
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import reach_hosts

if TYPE_CHECKING:
    from yoked.watch.view import View


def command(
    run: Annotated[
        str | None,
        Parameter(
            help="Name or folder of a run. Default: the newest that goes on; where none does, a "
            "list to choose from, and with --once the newest.",
            completer=run_names,
        ),
    ] = None,
    /,
    *,
    fleet: FleetFlag = None,
    runs_dir: RunsDir = Path("runs"),
    web: Annotated[
        bool, Parameter(help="Show it as a page for a browser of this machine.", negative="")
    ] = False,
    port: Annotated[
        int | None,
        Parameter(help="Of the page, on 127.0.0.1. Default: 8765, or the next one that is free."),
    ] = None,
    once: Annotated[
        bool,
        Parameter(
            help="Print it as it is now, as lines, and end; so do --json and a pipe at either end.",
            negative="",
        ),
    ] = False,
    json_output: JsonFlag = False,
) -> int:
    """Show a run while it goes on: where each rank's time goes and whom it waits for, loss and
    speed, links, memory, what was told, and the verdict.

    It also shows a run that is over, and lists runs where none is named and none goes on. Keys stop
    or save it, show a rank's log, or change the run; leaving leaves the run as it is. --web shows
    the same in a browser, which may be another machine's, by ssh -L.
    """
    output = Output(json_mode=json_output)
    if port is not None and not web:
        raise UsageError("--port is the page's", fix=f"yoked watch --web --port {port}")
    if port is not None and not 0 < port < 1 << 16:
        raise UsageError(f"--port {port}: not between 1 and 65535", fix="--port 8765")
    if web and (once or json_output):
        raise UsageError("--web shows a page, and prints no view", fix="yoked watch --web")
    # Python has None in the place of one that is closed. Keys come from a terminal alone: what a
    # pipe brings stops no run.
    prints = (
        once
        or json_output
        or any(each is None or not each.isatty() for each in (sys.stdin, sys.stdout))
    )
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        from yoked.watch.watched import Watching

        with closing(Watching(hosts, runs_dir)) as watched:
            chosen = watched.begin(run)
            if web:
                _require("starlette", "uvicorn")
                from yoked.watch.web import serve

                serve(watched, chosen=chosen, port=port, note=output.note)
            elif prints:
                if not chosen:
                    # As for a name that no run has.
                    watched.choose(None)
                _print(watched.look(), output)
            else:
                _require("textual")
                from yoked.watch.terminal import show

                show(watched, chosen=chosen, flag=same_fleet(fleet))
    return 0


def _print(view: View, output: Output) -> None:
    from yoked.watch.lines import lines

    output.result(
        view.to_dict(),
        verdict=view.verdict.text,
        # Evidence is indented by two.
        evidence=lines(view, output.console.width - 2),
        next_commands=list(view.verdict.next),
    )


def _require(*modules: str) -> None:
    """Raise YokedError for modules that are not installed here."""
    from importlib.util import find_spec

    missing = [each for each in modules if find_spec(each) is None]
    if missing:
        names = " ".join(missing)
        raise YokedError(
            f"this view needs what is not installed here: {names}",
            fix=(
                f"{quote(sys.executable)} -m pip install {names}",
                "yoked watch --once    needs none",
            ),
        )
