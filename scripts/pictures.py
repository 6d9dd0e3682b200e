"""docs/pictures: what terminal and browser showed of real runs on two hosts of a lab. `make
pictures`.

The commands run at a pseudo terminal. pyte plays what they write, and rich draws what stands there
in the end as SVG. Chromium shows the pages. As root, or where the kernel gives users namespaces;
some minutes.
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import tempfile
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from yoked.fleet.file import read_fleet
from yoked.fleet.trust import remember
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.browser import Browser, chromium, open_browser  # noqa: E402 - tests are no package that is installed

PICTURES = REPOSITORY / "docs" / "pictures"
WIDTH, LINES = 80, 200
# Of the view of a run.
WATCH_WIDTH, WATCH_LINES = 100, 32
PAGE_WIDTH, PAGE_HEIGHT = 1200, 1000
# As pyte and as rich call it.
NAMES = {"brown": "yellow"}
# What is shown, behind a prompt; what makes it possible goes before.
SHOWN = (
    "yoked up desktop laptop --yes",
    "yoked train --depth 4 --num-iterations 8 --eval-every -1",
)
# A run that is looked at, and how long before.
NIGHT = (
    "yoked train --run night --detach --depth 2 --max-seq-len 256 --vocab-size 2048 "
    "--total-batch-size 4096 --num-iterations 2000 --eval-every 40"
)
GOES_ON_S, LOOKS_S = 120.0, 8.0
# Links break a picture that is to load nothing: rich's own has a font from a server.
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def text_of(written: bytes, width: int = WIDTH, height: int = LINES) -> Text:
    """What stands on a terminal after a program wrote this, with its colours."""
    screen = pyte.Screen(width, height)
    pyte.ByteStream(screen).feed(written)
    lines = []
    for row in range(height):
        line = Text()
        for column in range(width):
            cell = screen.buffer[row][column]
            style = Style(
                color=colour_of(cell.fg),
                bgcolor=colour_of(cell.bg),
                bold=cell.bold,
                reverse=cell.reverse,
            )
            line.append(cell.data, style)
        line.rstrip()
        lines.append(line)
    while not lines[-1]:
        lines.pop()
    return Text("\n").join(lines)


def colour_of(told: str) -> str | None:
    """As rich calls it. told: a name, or six hexadecimal digits."""
    if told == "default":
        return None
    return f"#{told}" if re.fullmatch("[0-9a-f]{6}", told) else NAMES.get(told, told)


def begun(command: str, folder: Path, width: int, height: int) -> tuple[int, int]:
    """A command at a terminal of its own: the process, and the terminal's other end."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ["COLUMNS"] = str(width)
        yoked = (
            "import sys; sys.argv[0] = 'yoked'; from yoked.cli.main import main; sys.exit(main())"
        )
        os.execv(sys.executable, [sys.executable, "-c", yoked, *shlex.split(command)[1:]])
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    return process, terminal


def typed(command: str, folder: Path) -> Text:
    """What a command shows at a terminal, with the prompt before it."""
    process, terminal = begun(command, folder, WIDTH, 40)
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


def looked_at(command: str, folder: Path, keys: bytes) -> Text:
    """The screen that a command shows after some seconds. keys: leave it."""
    process, terminal = begun(command, folder, WATCH_WIDTH, WATCH_LINES)
    written, until_s = b"", time.monotonic() + LOOKS_S
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            written += os.read(terminal, 65536)
    shown = text_of(written, WATCH_WIDTH, WATCH_LINES)
    os.write(terminal, keys)
    # Whatever it writes at its end must find a reader.
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass
    os.close(terminal)
    os.waitpid(process, 0)
    return shown


def draw(text: Text, name: str, width: int = WIDTH) -> None:
    """A terminal's text as SVG, which loads nothing."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(text)
    svg = console.export_svg(title="two hosts of yoked lab, 1 Gbit/s", unique_id="yoked")
    path = PICTURES / name
    path.write_text(_FONTS.sub("", svg).replace("Fira Code", "ui-monospace") + "\n")
    print(path.relative_to(REPOSITORY))


def photograph(folder: Path) -> None:
    """The page of the run while it goes on, and that of its report once it was stopped."""
    program = chromium()
    if program is None:
        sys.exit("the pages are drawn by Chromium: sudo apt install chromium")
    with open_browser(program, folder / "profile") as browser:
        process, terminal = begun("yoked watch night --web", folder, 200, 40)
        try:
            written = b""
            while (found := re.search(rb"http://\S+/", written)) is None:
                written += os.read(terminal, 65536)
            show(browser, found[0].decode(), "watch-web.png")
        finally:
            os.kill(process, signal.SIGKILL)
            os.close(terminal)
            os.waitpid(process, 0)
        for command in ("stop", "fetch", "report"):
            typed(f"yoked {command} night", folder)
        show(browser, (folder / "runs/night/report.html").as_uri(), "report.png")


def show(browser: Browser, url: str, name: str) -> None:
    """A page, as it is seen after some seconds."""
    page = browser.page(PAGE_WIDTH, PAGE_HEIGHT)
    page.visit(url)
    page.settle()
    time.sleep(LOOKS_S)
    page.picture(PICTURES / name, is_whole=False)
    page.close()
    print((PICTURES / name).relative_to(REPOSITORY), flush=True)


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
            TERM="xterm-256color",
        )
        # What a person would agree to: the lab's own file has consoles, and its hosts' Python.
        remember(read_fleet(lab.fleet_file))
        typed(f"yoked init desktop laptop --ssh-config {lab.ssh_config}", folder)
        fleet = folder / "yoked.toml"
        remember(read_fleet(fleet))
        draw(Text("\n\n").join(typed(command, folder) for command in SHOWN), "two-hosts.svg")
        typed(NIGHT, folder)
        time.sleep(GOES_ON_S)
        draw(looked_at("yoked watch night", folder, b"q"), "watch.svg", WATCH_WIDTH)
        photograph(folder)


if __name__ == "__main__":
    main()
