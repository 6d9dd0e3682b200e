"""The one place where commands speak: to people on both streams, to programs in JSON.

With --json, stdout carries exactly one JSON object, an error too; everything else goes to
stderr. Without, stdout carries the verdict, the evidence and the next command.

Names, messages and findings may be anybody's text: control characters of theirs are shown as
escapes. What is followed of a program's output keeps colours and progress bars.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from yoked.core.faults import fault
from yoked.core.torchnoise import without_noise
from yoked.errors import YokedError, error_kinds
from yoked.text import Followed, plain

if TYPE_CHECKING:
    from rich.console import Console

    from yoked.liveline import LiveText

BUG_STATUS = 3
INTERRUPTED_STATUS = 130
_REPORT = "report it, with the lines on stderr"
_AGAIN = "yoked runs    shows what goes on all the same; or run the command again"


def as_called(command: str) -> str:
    """A command to paste: with the path by which `yoked` was called, where its name would not do.

    It does not where no `yoked`, or that of another environment, is on the PATH. Sentences, and
    commands of other programs, stay as they are.
    """
    name, space, rest = command.partition(" ")
    called = Path(sys.argv[0])
    if name != "yoked" or called.name != "yoked" or os.sep not in sys.argv[0]:
        return command
    found = shutil.which("yoked")
    if found and called.exists() and Path(found).samefile(called):
        return command
    return f"{shlex.quote(sys.argv[0])}{space}{rest}"


def discard_stdout() -> None:
    """What is still buffered must not raise once more when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Write to stdout in the block. Raises the fault of output that finds no room."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        discard_stdout()
        raise fault("output-lost", reason=problem.strerror) from problem


class Output:
    """Where a command's words go. json_mode: exactly one object on stdout, nothing else.

    raw: output that is followed is shown as it is, with all that acts on the terminal. It is a
    view of a run too, without its live line, which `LiveView` draws.
    """

    live: Callable[[LiveText], None] | None = None

    def __init__(self, *, json_mode: bool, raw: bool = False, stdout: TextIO | None = None) -> None:
        self.json_mode = json_mode
        self._raw = raw
        # By source, with the stream on which it is shown.
        self._followed: dict[Hashable, tuple[Followed, TextIO]] = {}
        self._stdout = stdout or sys.stdout

    @functools.cached_property
    def console(self) -> Console:
        """Stderr, with progress on a terminal. Made when needed: rich takes a while to import."""
        from yoked.console import stderr_console

        return stderr_console()

    def note(self, line: str) -> None:
        """Something worth knowing that changes nothing."""
        self.say(f"note: {line}")

    def say(self, text: str, *, end: str = "\n") -> None:
        """Words beside the result, to stderr. The text may be foreign."""
        self.end_colours()
        self.console.print(plain(text), markup=False, emoji=False, end=end)

    @property
    def can_ask(self) -> bool:
        """Whether there is a person at this terminal, and no program that reads."""
        return not self.json_mode and sys.stdin.isatty() and self.console.is_terminal

    def agrees(self, question: str, lines: Iterable[str] = ()) -> bool:
        """Whether a person says yes to what these lines say; without a terminal nobody can."""
        if not self.can_ask:
            return False
        for line in lines:
            self.say(f"  {line}")
        return self.asks(question)

    def asks(self, question: str) -> bool:
        """Whether the person at this terminal says yes. The text may be foreign."""
        self.say(f"{question} [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def result(
        self,
        payload: Mapping[str, Any],
        *,
        verdict: str,
        evidence: Sequence[str] = (),
        next_commands: Sequence[str] = (),
    ) -> None:
        """The end of a command that did what it was asked."""
        if self.json_mode:
            self._json(payload)
            return
        lines = [verdict, *(f"  {line}" for line in evidence)]
        lines += [f"next: {as_called(command)}" for command in next_commands]
        self.end_colours()
        self.text(plain("\n".join(lines) + "\n"))

    def text(self, text: str) -> None:
        """Text as it is, at once: a document of our own."""
        with printing():
            self._stdout.write(text)
            self._stdout.flush()

    def followed(self, source: Hashable, text: str, shown_on: TextIO | None = None) -> str:
        """A piece of what somebody's program writes, as it may be shown.

        source: tells streams apart; a sequence may begin in one piece of it and end in the next.
        shown_on: None: stdout.
        """
        if self._raw:
            return text
        known, _ = self._followed.setdefault(source, (Followed(), shown_on or self._stdout))
        return known.feed(text)

    def rank_output(self, stream: str, text: str) -> None:
        """What a rank wrote: to the stream to which it wrote it, unless that is for JSON.

        Without torch's warnings that mean nothing, which `yoked logs` has.
        """
        if stream == "err" and not self._raw:
            text = without_noise(text)
        shown_on = self._stdout if stream == "out" and not self.json_mode else sys.stderr
        self._show(self.followed(stream, text, shown_on), shown_on)

    def end_colours(self) -> None:
        """Followed output may have left one on; words of our own come now."""
        for followed, shown_on in self._followed.values():
            if reset := followed.close():
                self._show(reset, shown_on)

    def _show(self, text: str, shown_on: TextIO) -> None:
        if shown_on is self._stdout:
            self.text(text)
        else:
            shown_on.write(text)
            shown_on.flush()

    def error(self, problem: YokedError) -> int:
        """An expected failure; returns the exit status."""
        fix = problem.fix or (problem.usual_fix,)
        is_told = False
        if self.json_mode and problem.code != "output-lost":
            kind = next(each for each in type(problem).__mro__ if each in error_kinds()).__name__
            more = problem.verdict or {}
            is_told = self._json_error(kind, problem.code, problem.what, fix, problem.params, more)
        if not is_told:
            self.say(str(YokedError(problem.what, fix=[as_called(line) for line in fix])))
        return problem.exit_status

    def bug(self, problem: Exception) -> int:
        """A failure that nobody foresaw: everything that helps to find it."""
        trace = "".join(traceback.format_exception(problem))
        self.say(trace, end="")
        self.say(f"This is a bug in yoked: {_REPORT}.")
        if self.json_mode:
            # Of a run that a bug ended.
            verdict = getattr(problem, "verdict", None) or {}
            self._json_error("bug", "bug", repr(problem), (_REPORT,), more=verdict)
        return BUG_STATUS

    def interrupted(self) -> int:
        """The person pressed Ctrl-C."""
        if self.json_mode:
            self._json_error("interrupted", "interrupted", "interrupted", (_AGAIN,))
        else:
            self.say("interrupted")
        return INTERRUPTED_STATUS

    def _json_error(
        self,
        kind: str,
        code: str,
        what: str,
        fix: Sequence[str],
        params: Mapping[str, object] = MappingProxyType({}),
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> bool:
        """Print it; whether there was room for it. more: what stands beside it."""
        error = {
            "kind": kind,
            "code": code,
            "params": dict(params),
            "what": what,
            "fix": list(fix),
        }
        try:
            self._json({**more, "error": error})
        except YokedError:
            return False
        return True

    def _json(self, payload: Mapping[str, Any]) -> None:
        # JSON's ASCII has one control character left.
        self.text(json.dumps(payload, default=str).replace("\x7f", "\\u007f") + "\n")
