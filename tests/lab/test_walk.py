"""docs/tutorial/lab.md as it stands: all that it says is typed, and all that it shows is seen.

Fences: `sh` is typed on the machine, `sh alpha` in the terminal for that host; `text` and
`text alpha` are lines that appear there, in this order, after the last command. In them `...` is
anything, and a number with a decimal point is any other.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from yoked.lab.pytest_plugin import why_not

DOCUMENT = Path(__file__).parents[2] / "docs" / "tutorial" / "lab.md"
SOURCE = Path(__file__).parents[2] / "src"
# Exercises are independent of each other, but not of these.
OPENING = ("Prepare", "Bring it up, look around", "Two terminals")
MACHINE = "machine"
DEADLINE_S = 120.0
_FENCE = re.compile(r"^```(sh|text)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = "yoked lab shell"


@dataclass(frozen=True)
class Block:
    """What is typed (`sh`) or seen (`text`) at one terminal."""

    kind: str
    terminal: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A part of the document with its heading."""

    title: str
    blocks: tuple[Block, ...]


def sections(path: Path) -> list[Section]:
    """The parts of a document that have something to type."""
    parts = re.split(r"^## (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [
        Section(title, tuple(_block(match) for match in _FENCE.finditer(text)))
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return [section for section in found if section.blocks]


def _block(match: re.Match[str]) -> Block:
    kind, terminal, text = match.groups()
    return Block(kind, terminal or MACHINE, tuple(text.splitlines()))


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

    def type(self, lines: tuple[str, ...]) -> None:
        """Wait for the last command's end, then type the next."""
        self.await_end()
        self._start = self._place = len(self._output)
        self._seen = False
        if lines[0].startswith(_SHELL):
            # The shell on the host reads on from here.
            self._write(lines[0] + "\n")
            lines = lines[1:]
        self._typed += 1
        text = "\n".join(lines)
        self._write(f"{{\n{text}\n}} < /dev/null\necho {self._mark}$?\n")

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    @property
    def _mark(self) -> str:
        return f"_end_of_{self._typed}_"

    def await_end(self) -> None:
        """Until the last command has ended; it must be well where nobody looked at its output."""
        if not self._typed:
            return
        line = self._await(self._start, re.compile(self._mark), "its end")
        status = self._output[line].rpartition("_")[2]
        assert self._seen or status == "0", f"status {status} on {self.name}:\n{self.shown()}"

    def see(self, lines: tuple[str, ...]) -> None:
        """Until these lines were printed, one after the other."""
        self._seen = True
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
    """A learner who works through the document, part by part."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.environment = {**environment, "HOME": str(home), "SHELL": "/bin/bash"}
        self._sections = {section.title: section for section in sections(DOCUMENT)}
        self._terminals: dict[str, Terminal] = {}
        self._is_lost = True

    def close(self) -> None:
        """Take the lab down, and close all terminals."""
        program = self.home / "bin" / "yoked"
        subprocess.run([program, "lab", "down", "--all"], env=self.environment, check=True)
        for terminal in self._terminals.values():
            terminal.close()
        self._terminals.clear()

    def begin(self) -> None:
        """Do the opening parts, the first time and after a part that failed."""
        if self._is_lost:
            self.close()
            for title in OPENING:
                self.perform(title)

    def perform(self, title: str) -> None:
        """Type all that a part says, and see all that it shows."""
        self._is_lost = True
        for block in self._sections[title].blocks:
            if block.terminal not in self._terminals:
                self._terminals[block.terminal] = Terminal(
                    block.terminal, self.environment, self.home
                )
            terminal = self._terminals[block.terminal]
            if block.kind == "text":
                terminal.see(block.lines)
                continue
            terminal.type(block.lines)
            if block.terminal == MACHINE:
                terminal.await_end()
        for terminal in self._terminals.values():
            terminal.await_end()
        self._is_lost = False


PROGRAMS = {
    "yoked": "-c 'import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))'",
    "python": "",
    "torchrun": "-m torch.distributed.run",
}
SECTIONS = sections(DOCUMENT)
REST = [section.title for section in SECTIONS if section.title not in OPENING]
# Elsewhere torch gives up late, computes much, or a second lab is brought up.
QUICK = ("Exercise 9:",)
NEEDS_CPU_QUOTAS = "Exercise 5:"


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """A learner with a home of its own, in whose PATH lie the programs of this Python."""
    if (reason := why_not("sshd", "nft", "tbf")) is not None:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("home")
    (home / "bin").mkdir()
    for name, words in PROGRAMS.items():
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not _is_ours(name)}
    environment = {
        **kept,
        "COLUMNS": "100",
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        # The lab that the walk brings up ends with this process, however that ends.
        "YOKED_LAB_OWNER": str(os.getpid()),
        "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
    }
    learner = Walk(home, environment)
    try:
        yield learner
    finally:
        learner.close()


def _is_ours(name: str) -> bool:
    return name.startswith(("YOKED_", "XDG_", "GLOO_", "ONEDNN_")) or name == "OMP_NUM_THREADS"


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=[] if title.startswith(QUICK) else [pytest.mark.slow])
        for title in REST
    ],
)
def test_what_the_walk_says_is_what_happens(walk: Walk, title: str) -> None:
    if title.startswith(NEEDS_CPU_QUOTAS) and (reason := why_not("cgroups")) is not None:
        pytest.skip(reason)
    walk.begin()

    walk.perform(title)


def test_what_is_shown_at_a_terminal_was_typed_there_before() -> None:
    for section in SECTIONS:
        typed: set[str] = set()
        for block in section.blocks:
            if block.kind == "sh":
                typed.add(block.terminal)
            assert block.terminal in typed, f"{section.title}: {block}"


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("step 3: all-reduce 0.96 s", "step 3: all-reduce 11.02 s", True),
        ("step 3: all-reduce 0.96 s", "step 4: all-reduce 0.96 s", False),
        ("LISTEN ... 10.0.0.1:...  python", "LISTEN 0  128 10.0.0.1:22 python3", True),
        ("LISTEN ... 10.0.0.1:... python", "LISTEN 0  128 10.0.0.2:22 python3", False),
        ("... (end", "in the (end)", True),
    ],
)
def test_dots_and_decimals_are_what_may_differ(shown: str, printed: str, fits: bool) -> None:
    assert bool(pattern(shown).search(printed)) == fits
