"""docs/pictures: what a terminal showed of a real run on two hosts of a lab. `make pictures`.

The commands run at a pseudo terminal of 80 columns. What they write is played on a screen of our
own, which knows the few sequences that yoked writes, and rich draws that as SVG. As root, or where
the kernel gives users namespaces; some minutes.
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import struct
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.ansi import AnsiDecoder
from rich.console import Console

from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

REPOSITORY = Path(__file__).parents[1]
PICTURE = REPOSITORY / "docs" / "pictures" / "two-hosts.svg"
WIDTH = 80
# What is shown, behind a prompt; what makes it possible goes before.
SHOWN = (
    "yoked up desktop laptop --yes",
    "yoked train --depth 4 --num-iterations 8",
)
# Links break a picture that is to load nothing: rich's own has a font from a server.
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_TOKENS = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|([\r\n\b])|([^\x1b\r\n\b])")


class Screen:
    """Lines of cells; a cell is a character and the colour sequence before it."""

    def __init__(self) -> None:
        self._lines: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style = ""

    def feed(self, text: str) -> None:
        """Play what a program wrote."""
        for match in _TOKENS.finditer(text):
            numbers, command, control, character = match.groups()
            if character is not None:
                self._put(character)
            elif control is not None:
                self._control(control)
            elif command is not None:
                self._sequence(numbers, command)

    def _put(self, character: str) -> None:
        line = self._lines[self._row]
        line += [(" ", "")] * (self._column + 1 - len(line))
        line[self._column] = (character, self._style)
        self._column += 1

    def _control(self, control: str) -> None:
        if control == "\b":
            self._column = max(0, self._column - 1)
            return
        self._column = 0
        if control == "\n":
            self._row += 1
            if self._row == len(self._lines):
                self._lines.append([])

    def _sequence(self, numbers: str, command: str) -> None:
        number = int(numbers) if numbers.isdigit() else 1
        if command == "m":
            self._style = "" if numbers in ("", "0") else f"{self._style}\x1b[{numbers}m"
        elif command == "A":
            self._row = max(0, self._row - number)
        elif command == "K":
            start = 0 if numbers == "2" else self._column
            del self._lines[self._row][start:]
        elif command == "G":
            self._column = number - 1

    def text(self) -> str:
        """All lines, with their colours."""
        return "\n".join(
            "".join(
                f"{style}{character}\x1b[0m" if style else character for character, style in line
            )
            for line in self._lines
        ).rstrip()


def typed(command: str, folder: Path) -> str:
    """What a command shows at a terminal, with the prompt before it."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        yoked = (
            "import sys; sys.argv[0] = 'yoked'; from yoked.cli.main import main; sys.exit(main())"
        )
        os.execv(sys.executable, [sys.executable, "-c", yoked, *shlex.split(command)[1:]])
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    written = b""
    # Its end is an error: no program holds the terminal any more.
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 65536):
            written += piece
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    screen = Screen()
    screen.feed(f"\x1b[1m$ {command}\x1b[0m\r\n{written.decode(errors='replace')}")
    assert status == 0, screen.text()
    return screen.text()


def draw(text: str, path: Path) -> None:
    """A terminal's text as SVG, which loads nothing."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for line in AnsiDecoder().decode(text):
        console.print(line, soft_wrap=False, crop=True)
    svg = console.export_svg(title="two hosts of yoked lab, 1 Gbit/s", unique_id="yoked")
    path.write_text(_FONTS.sub("", svg).replace("Fira Code", "ui-monospace") + "\n")


def main() -> None:
    """Bring two hosts up, make them ready, and draw."""
    topology = load(str(REPOSITORY / "tests" / "lab" / "home.toml"))
    with (
        tempfile.TemporaryDirectory(prefix="yk-") as name,
        Lab.up(topology, name=f"pictures-{os.getpid()}", tethered=True) as lab,
    ):
        folder = Path(name)
        os.environ.update(
            YOKED_STATE=f"{name}/state",
            XDG_RUNTIME_DIR=name,
            COLUMNS=str(WIDTH),
            TERM="xterm-256color",
        )
        typed(f"yoked init desktop laptop --ssh-config {lab.ssh_config}", folder)
        fleet = folder / "yoked.toml"
        # In the place of `yoked install`: hosts of a lab see the Python of this machine.
        text = re.sub(
            r'(?m)^(name = "(?:desktop|laptop)")$',
            rf'\1\npython = "{sys.executable}"',
            fleet.read_text(),
        )
        fleet.write_text(text)
        typed("yoked trust yoked.toml", folder)
        draw("\n\n".join(typed(command, folder) for command in SHOWN), PICTURE)
    print(PICTURE.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
