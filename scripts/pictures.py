"""docs/pictures: what a terminal showed of a real run on two hosts of a lab. `make pictures`.

The commands run at a pseudo terminal of 80 columns. pyte plays what they write, and rich draws what
stands there in the end as SVG. As root, or where the kernel gives users namespaces; some minutes.
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

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

REPOSITORY = Path(__file__).parents[1]
PICTURE = REPOSITORY / "docs" / "pictures" / "two-hosts.svg"
WIDTH, LINES = 80, 200
# As pyte and as rich call it.
NAMES = {"brown": "yellow"}
# What is shown, behind a prompt; what makes it possible goes before.
SHOWN = (
    "yoked up desktop laptop --yes",
    "yoked train --depth 4 --num-iterations 8 --eval-every -1",
)
# Links break a picture that is to load nothing: rich's own has a font from a server.
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def text_of(written: bytes) -> Text:
    """What stands on a terminal after a program wrote this, with its colours."""
    screen = pyte.Screen(WIDTH, LINES)
    pyte.ByteStream(screen).feed(written)
    lines = []
    for row in range(LINES):
        line = Text()
        for column in range(WIDTH):
            cell = screen.buffer[row][column]
            colour = None if cell.fg == "default" else NAMES.get(cell.fg, cell.fg)
            line.append(cell.data, Style(color=colour, bold=cell.bold))
        line.rstrip()
        lines.append(line)
    while not lines[-1]:
        lines.pop()
    return Text("\n").join(lines)


def typed(command: str, folder: Path) -> Text:
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
    shown = text_of(f"\x1b[1m$ {command}\x1b[0m\r\n".encode() + written)
    assert status == 0, shown.plain
    return shown


def draw(text: Text, path: Path) -> None:
    """A terminal's text as SVG, which loads nothing."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(text)
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
        draw(Text("\n\n").join(typed(command, folder) for command in SHOWN), PICTURE)
    print(PICTURE.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
