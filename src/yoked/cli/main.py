"""The command line: finds the command, runs it, turns its end into an exit status.

Statuses: 0 fine, 1 a finding or an expected failure, 2 wrong usage, 3 a bug, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group
from rich.console import Console

from yoked import __version__
from yoked.cli.commands import (
    attach,
    clean,
    data,
    fetch,
    hosts,
    init,
    install,
    lab,
    launch,
    logs,
    plot,
    run,
    runs,
    sample,
    stop,
    train,
)
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError


def build_app() -> App:
    """The parser. The modules of commands load torch and the like only when they run."""
    app = App(
        name="yoked",
        version=__version__,
        help="Train one language model on all the computers you own.",
        help_format="markdown",
        result_action="return_value",
        # `main` says that it was interrupted, in JSON too.
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = app["--version"].group = Group("Other", sort_key=99)
    commands = (init, hosts, install, train, run, runs, logs, attach, stop, fetch, clean)
    for module in (*commands, sample, plot):
        app.command(module.command, name=module.__name__.rpartition(".")[2])
    app.command(data.app)
    app.command(launch.command, name="launch")
    app.command(lab.app)
    return app


class _HelpConsole(Console):
    """A console that leaves it to `main` what a reader that left means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status."""
    tokens = launch.part_program(lab.part_command(sys.argv[1:] if argv is None else argv))
    output = Output(json_mode="--json" in lab.own_flags(tokens))
    try:
        status = build_app()(tokens, console=_HelpConsole(), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as problem:
        return output.error(UsageError(_first_line(str(problem)), fix=_help_for(tokens)))
    except YokedError as problem:
        return output.error(problem)
    except KeyboardInterrupt:
        return output.interrupted()
    except BrokenPipeError:
        # The reader of our output left (`yoked sample | head`): that is its right. What is
        # still buffered must not raise once more when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:  # noqa: BLE001 - the last resort, with everything shown
        return output.bug(problem)
    return status if isinstance(status, int) else 0


def _first_line(text: str) -> str:
    return " ".join(text.split())


def _help_for(tokens: Sequence[str]) -> str:
    words = [token for token in tokens[:2] if token.isalpha()]
    command = words[0] if words and words[0] in build_app() else ""
    return " ".join(["yoked", *([command] if command else []), "--help"])
