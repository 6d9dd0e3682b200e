"""Terminals to which the commands of a page are typed, and what is to be seen there.

tests/documents.py says how a page has it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.documents import MACHINE, REPOSITORY, Section

DEADLINE_S = 300.0
_SHELL = "yoked lab shell"
PROGRAMS = {
    "yoked": "-c 'import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))'",
    "python": "",
    "torchrun": "-m torch.distributed.run",
}

_PIECES = re.compile(
    r"(?P<any>\s*\.\.\.\s*)|(?P<space>\s+)|(?P<word>\d+(\.\d+){2,})|(?P<number>\d+\.\d+)|(?P<rest>.)"
)
_MEANS = {"any": ".*", "space": r"\s+", "number": r"\d+\.\d+"}


def pattern(line: str) -> re.Pattern[str]:
    """What a line of a `text` fence matches, anywhere in a line of output."""
    return re.compile(
        "".join(
            _MEANS.get(found.lastgroup or "", re.escape(found[0]))
            for found in _PIECES.finditer(line.strip())
        )
    )


class Terminal:
    """A shell to which one types; what it prints is gathered."""

    def __init__(self, name: str, environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self._shell = subprocess.Popen(
            ["/bin/bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
        self._output: list[str] = []
        self._typed = 0
        self._start = 0
        """The first line after what was typed last."""
        self._place = 0
        """The first line that was not looked at."""
        self._seen = True
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._output.append(line.rstrip("\n"))

    def close(self) -> None:
        """End the shell, with whatever still runs in it."""
        # The whole group: what runs in the shell writes to the same pipe.
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._reader.join()
        for pipe in (self._shell.stdin, self._shell.stdout):
            assert pipe is not None
            pipe.close()

    def type(self, lines: tuple[str, ...], *, is_looked_at: bool = False) -> None:
        """Wait for the last command's end, then type the next.

        is_looked_at: what it prints will be, so that it may end as it likes.
        """
        self.await_end()
        self._start = self._place = len(self._output)
        self._seen = is_looked_at
        if lines[0].startswith(_SHELL):
            # The shell on the host reads on from here.
            self._write(lines[0] + "\n")
            lines = lines[1:]
        self._typed += 1
        text = "\n".join(lines)
        # Each command counts, not only the last one.
        self._write("failed=0; trap 'failed=$?' ERR\n")
        self._write(f"{{\n{text}\n}} < /dev/null\necho {self._mark}$failed\n")

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    @property
    def _mark(self) -> str:
        return f"_end_of_{self._typed}_"

    def await_end(self) -> None:
        """Until the commands have ended; all must be well where nobody looked at their output."""
        if not self._typed:
            return
        line = self._await(self._start, re.compile(self._mark), "its end")
        status = self._output[line].rpartition("_")[2]
        assert self._seen or status == "0", f"status {status} on {self.name}:\n{self.shown()}"

    def see(self, lines: tuple[str, ...]) -> None:
        """Until these lines were printed, one after the other."""
        for line in lines:
            self._place = self._await(self._place, pattern(line), line) + 1

    def _await(self, first: int, wanted: re.Pattern[str], text: str) -> int:
        """The number of the line that matches."""
        end_s = time.monotonic() + DEADLINE_S
        over = False
        while not over:
            # Looked at first: what was printed until then is searched once more.
            over = self._shell.poll() is not None or time.monotonic() > end_s
            over = over or any(self._mark in line for line in self._output[self._start :])
            for number in range(first, len(self._output)):
                if wanted.search(self._output[number]):
                    return number
            time.sleep(0.02)
        raise AssertionError(f"{self.name} did not show: {text}\n{self.shown()}")

    def shown(self) -> str:
        """The end of what it printed."""
        return "\n".join(self._output[-40:])


class Walk:
    """A learner with a home of its own, who works through pages part by part."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.environment = {**environment, "HOME": str(home), "SHELL": "/bin/bash"}
        self._terminals: dict[str, Terminal] = {}

    def close(self) -> None:
        """Take the lab down, and close all terminals."""
        program = self.home / "bin" / "yoked"
        subprocess.run([program, "lab", "down", "--all"], env=self.environment, check=True)
        for terminal in self._terminals.values():
            terminal.close()
        self._terminals.clear()

    def type(self, *lines: str) -> None:
        """Type lines on the machine, which must end well."""
        terminal = self._terminal(MACHINE)
        terminal.type(lines)
        terminal.await_end()

    def perform(self, section: Section) -> None:
        """Type all that a part says, and see all that it shows."""
        played = list(section.played)
        for place, block in enumerate(played):
            terminal = self._terminal(block.terminal)
            if block.kind == "text":
                terminal.see(block.lines)
                continue
            later = (each.kind for each in played[place + 1 :] if each.terminal == block.terminal)
            terminal.type(block.lines, is_looked_at=next(later, "") == "text")
            if block.terminal == MACHINE:
                terminal.await_end()
        for terminal in self._terminals.values():
            terminal.await_end()

    def _terminal(self, name: str) -> Terminal:
        if name not in self._terminals:
            self._terminals[name] = Terminal(name, self.environment, self.home)
        return self._terminals[name]


@contextmanager
def learner(home: Path) -> Iterator[Walk]:
    """Somebody with a home of his own, in whose PATH lie the programs of this Python."""
    (home / "bin").mkdir()
    for name, words in PROGRAMS.items():
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not _is_ours(name)}
    # Connections of ssh are shared by the host's name, which other learners' hosts have too. A
    # socket's path is short.
    runtime = tempfile.mkdtemp(prefix="yk-")
    walk = Walk(
        home,
        {
            **kept,
            "XDG_RUNTIME_DIR": runtime,
            "COLUMNS": "100",
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            # A lab that is brought up ends with this process, however that ends.
            "YOKED_LAB_OWNER": str(os.getpid()),
            "PYTHON": sys.executable,
            "TOPOLOGY": str(REPOSITORY / "tests" / "lab" / "home.toml"),
            "PYTHONPATH": f"{REPOSITORY / 'src'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
        },
    )
    try:
        yield walk
    finally:
        walk.close()
        shutil.rmtree(runtime)


def _is_ours(name: str) -> bool:
    return name.startswith(("YOKED_", "XDG_", "GLOO_", "ONEDNN_")) or name == "OMP_NUM_THREADS"
