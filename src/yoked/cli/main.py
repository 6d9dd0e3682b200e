"""The command line: finds the command, runs it, turns its end into an exit status.

Statuses: 0 fine, 1 a finding or an expected failure, 2 wrong usage, 3 a bug, 130 interrupted,
143 a run that was followed and ended without saving.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, Group

from yoked import __version__
from yoked.cli.argv import (
    about_fleet,
    about_lab,
    flag_of,
    own_flags,
    split_command,
    split_program,
)
from yoked.cli.output import Output, discard_stdout, printing
from yoked.cli.startup import allow_files, unloadable
from yoked.errors import UsageError, YokedError
from yoked.streams import open_closed_streams, take_any_text

if TYPE_CHECKING:
    from rich.console import Console

# By what a person does, in the order of use. Each command is a module of yoked.cli.commands: its
# `command`, or the `app` that holds its own commands.
_GROUPS = {
    "Set up": (
        "up:command",
        "init:command",
        "trust:command",
        "install:command",
        "hosts:command",
        "data:app",
        "push:command",
    ),
    "Check": ("doctor:command", "probe:command", "plan:command", "bench:command"),
    "Train": ("train:command", "run:command", "manifest:command"),
    "Look on": (
        "runs:command",
        "watch:command",
        "attach:command",
        "logs:command",
        "diagnose:command",
        "trace:command",
        "save:command",
        "stop:command",
        "fetch:command",
        "report:command",
        "plot:command",
        "sample:command",
        "chat:command",
        "export:command",
        "clean:command",
    ),
    "Learn": ("lab:app",),
}
_COMMANDS = tuple(each for group in _GROUPS.values() for each in group)
_NAMES = tuple(each.partition(":")[0] for each in _COMMANDS)
# Of what cyclopts says of a word that it does not know.
_PROPOSAL = re.compile(
    r'(?:Unknown option:|Unknown command|Invalid value) "?(?P<wrong>[^\s"]+?)"?[. ]'
    r'.*Did you mean "?(?P<right>[^\s"]+?)"?\?'
)
# As difflib.get_close_matches has it.
_ALIKE = 0.6
COMPLETION = "--install-completion"
# The scripts of cyclopts call `yoked __complete WORDS` for what only this machine knows.
_ASKED_BY_SHELL = "__complete"
_PAGES = ("--help", "-h", "--version")
# Typed alone, these show a page too.
_FAMILIES = [[name] for name, each in zip(_NAMES, _COMMANDS, strict=True) if each.endswith(":app")]


def build_app() -> App:
    """The parser. A command's module is imported when that command is named, or all are shown."""
    app = App(
        name="yoked",
        version=__version__,
        help="Train one language model on all the computers you own.",
        help_format="markdown",
        result_action="return_value",
        # `main` says that it was interrupted, in JSON too.
        suppress_keyboard_interrupt=False,
    )
    other = Group("Other", sort_key=99)
    app["--help"].group = app["--version"].group = other
    path = "yoked.cli.commands.completion:command"
    app.command(path, name=COMPLETION, group=other)
    for place, (title, commands) in enumerate(_GROUPS.items()):
        group = Group(title, sort_key=place)
        for number, each in enumerate(commands):
            name = each.partition(":")[0]
            path = f"yoked.cli.commands.{each}"
            app.command(path, name=name, group=group, sort_key=number)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status."""
    open_closed_streams()
    take_any_text()
    allow_files()
    tokens = split_program(split_command(sys.argv[1:] if argv is None else argv))
    output = Output(json_mode="--json" in own_flags(tokens))
    try:
        status = _run(tokens)
        with printing():
            sys.stdout.flush()
    except CycloptsError as problem:
        what = _without_far_proposal(" ".join(str(problem).split()))
        return output.error(UsageError(what, fix=_corrected(tokens, what) or _help_for(tokens)))
    except YokedError as problem:
        if isinstance(problem, UsageError):
            problem.usual_fix = _help_for(tokens)
        problem.fix = tuple(_about_same(line, tokens) for line in problem.fix)
        problem.usual_fix = _about_same(problem.usual_fix, tokens)
        return output.error(problem)
    except ModuleNotFoundError as problem:
        return _without(problem, output, tokens)
    except ImportError as problem:
        expected = unloadable(problem)
        return output.bug(problem) if expected is None else output.error(expected)
    except KeyboardInterrupt:
        return output.interrupted()
    except BrokenPipeError:
        # The reader of our output left (`yoked sample | head`): that is its right.
        discard_stdout()
        return 0
    except OSError as problem:
        from yoked.core.fs import expected_failure

        expected = expected_failure(problem) or unloadable(problem)
        return output.bug(problem) if expected is None else output.error(expected)
    except Exception as problem:  # noqa: BLE001 - the last resort, with everything shown
        return output.bug(problem)
    return status if isinstance(status, int) else 0


def _without(problem: ModuleNotFoundError, output: Output, tokens: Sequence[str]) -> int:
    """A package is missing: that of a controller that does not train, or a bug."""
    from yoked.cli.train_extra import run_with_extra

    expected = run_with_extra(problem, tokens) or unloadable(problem)
    return output.bug(problem) if expected is None else output.error(expected)


def _run(tokens: list[str]) -> object:
    if tokens in ([], ["--json"]):
        from yoked.cli.commands import here

        return here.command(json_output=bool(tokens))
    app = build_app()
    if tokens[0] not in (*_NAMES, COMPLETION, _ASKED_BY_SHELL):
        # The page that lists them shows what each does.
        app.resolved_commands()
    is_page = tokens in _FAMILIES or not set(_PAGES).isdisjoint(own_flags(tokens))
    if not is_page:
        # Without rich, which takes a while to import.
        return app(tokens, exit_on_error=False, print_error=False)
    with printing():
        return app(tokens, console=_page_console(), exit_on_error=False, print_error=False)


def _page_console() -> Console:
    """A console that leaves it to `main` what a reader that left means."""
    from rich.console import Console

    class PageConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PageConsole()


def _without_far_proposal(what: str) -> str:
    """What the parser says: it proposes the nearest word, however far, as --seed for --fleet."""
    found = _PROPOSAL.search(what)
    if found is None:
        return what
    wrong, right = found["wrong"].lstrip("-"), found["right"].lstrip("-")
    is_near = SequenceMatcher(None, wrong, right).ratio() >= _ALIKE
    return what if is_near else re.sub(r" Did you mean [^?]*[?]", "", what)


def _corrected(tokens: Sequence[str], what: str) -> str | None:
    """The command line with the word that the parser proposes. None: it proposes none."""
    found = _PROPOSAL.search(what)
    if found is None:
        return None
    wrong, right = found["wrong"], found["right"]
    # `--flag=value` is one word.
    places = [place for place, token in enumerate(tokens) if token.split("=")[0] == wrong]
    if len(places) != 1:
        return None
    words = list(tokens)
    words[places[0]] = right + words[places[0]].removeprefix(wrong)
    return shlex.join(["yoked", *words])


def _about_same(fix: str, tokens: Sequence[str]) -> str:
    """A line to run with the --fleet or --lab of this command line."""
    own = own_flags(tokens)
    return about_lab(about_fleet(fix, flag_of("--fleet", own)), flag_of("--lab", own))


def _help_for(tokens: Sequence[str]) -> str:
    name = [word for word in tokens[:1] if word in _NAMES]
    own = [word for word in tokens[1:2] if name in _FAMILIES and word.isalpha()]
    return " ".join(["yoked", *name, *own, "--help"])
