"""A person at a terminal of 80 columns: types lines into a shell, reads what comes, answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_PROMPT = re.compile(r"<(\d+)>> $")
_COLUMNS, _ROWS = 80, 40
_STILL_S = 0.3


class Person:
    """Types into a shell in a folder. typed: lines; answers: to questions; text: all that came."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.typed: list[str] = []
        self.answers: list[str] = []
        self.text = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            # Whoever started us in the background has had it ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], dict(env))
        size = struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        self._await_prompt(10.0)

    def types(self, line: str, limit_s: float, react: Callable[[str], bool] | None = None) -> int:
        """Type a line; its exit status once the prompt is there again. Raises TimeoutError.

        react: gets what came since the last reaction; whether it reacted.
        """
        self.typed.append(line)
        self._send(f"{line}\n")
        return self._await_prompt(limit_s, react)

    def answer(self, word: str) -> None:
        """Answer a question."""
        self.answers.append(word)
        self._send(f"{word}\n")

    def interrupts(self) -> None:
        """Press Ctrl-C."""
        self._send("\x03")

    def leave(self) -> None:
        """Close the terminal."""
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGHUP)
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._terminal)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _send(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _await_prompt(self, limit_s: float, react: Callable[[str], bool] | None = None) -> int:
        began_s = time.monotonic()
        start = mark = len(self.text)
        while time.monotonic() - began_s < limit_s:
            if select.select([self._terminal], [], [], _STILL_S)[0]:
                try:
                    piece = os.read(self._terminal, 65_536)
                except OSError as problem:
                    raise TimeoutError("the shell has ended") from problem
                self.text += piece.decode(errors="replace")
                if react is not None and react(self.text[mark:]):
                    mark = len(self.text)
            elif found := _PROMPT.search(self.text[start:]):
                return int(found[1])
        raise TimeoutError(f"no prompt within {limit_s:g} s")
