"""Every command without arguments, with --help, and with its three commonest mistakes.

usage: python benchmarks/mistakes/bench.py [--only COMMAND]...

Each line is typed in a folder with one finished run and a lab of two hosts; what the fix says is
then typed as well. Prints a table and writes results/results.json; exit status 1 where a line ends
with a traceback or a wrong status, where nothing says what to do, or where doing it does not help.
As root.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import nanochat_side as side  # noqa: E402
from cases import MISTAKES, SLOW, TRAIN, Mistake  # noqa: E402

YOKED = Path(sys.executable).with_name("yoked")
LIMIT_S = 300.0
# A command that is interrupted was at work by then.
AT_WORK_S = 15.0
LAB = "mistakes"


class Desk:
    """A folder in which a person types lines."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fleet = folder, ""
        self.environment = {
            **os.environ,
            "PATH": f"{YOKED.parent}{os.pathsep}{os.environ['PATH']}",
            "YOKED_STATE": str(folder / "state"),
            "COLUMNS": "80",
        }

    def prepare(self) -> None:
        """A run, a text, a program, files with mistakes, and a lab."""
        write = (self.folder / "text").mkdir() or self._write
        write("text/a.txt", "\n\n".join(f"The {word} spoke." for word in ["judge", "cat"] * 3000))
        write("hello.py", "print('hello')\n")
        write("torn.toml", "[fleet\n")
        write("misspelt.toml", '[fleet]\nname = "home"\n\n[[host]]\nname = "."\nrank = 2\n')
        write("unprobed.toml", '[fleet]\nname = "unprobed"\n\n[[host]]\nname = "."\n')
        self.must(f"yoked train --run night {TRAIN.removesuffix(' --dry-run')}")
        told = json.loads(self.must(f"yoked lab up two-hosts-1gbe --name {LAB} --json"))
        self.fleet = told["fleet"].replace("FOLDER", str(self.folder))

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def type(self, line: str, interrupt_after_s: float | None = None) -> tuple[int, str, float]:
        """Exit status, all that is said, and seconds."""
        words = shlex.split(line.format(fleet=self.fleet, lab=LAB))
        began_s = time.monotonic()
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = process.communicate(timeout=interrupt_after_s or LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT if interrupt_after_s else signal.SIGKILL)
            said = process.communicate()[0]
        # Where this checkout lies is nobody's business.
        told = said.replace(str(self.folder), "FOLDER").replace(str(YOKED.parent), "BIN")
        return process.returncode, told, time.monotonic() - began_s

    def must(self, line: str) -> str:
        status, said, _ = self.type(line)
        if status:
            raise SystemExit(f"{line}: status {status}\n{said}")
        return said


def row(line: str, status: int, said: str, took_s: float, flaws: list[str]) -> dict[str, Any]:
    """A line of the table."""
    if "Traceback" in said:
        flaws.append("traceback")
    return {
        "line": line,
        "status": status,
        "said": said,
        "took_s": round(took_s, 2),
        "flaws": flaws,
    }


def plain(desk: Desk, name: str) -> Iterator[dict[str, Any]]:
    """The command alone, and its help."""
    alone = f"yoked {name}"
    status, said, took_s = desk.type(alone, AT_WORK_S if name in SLOW else None)
    expected = (0, 1, 2, 130) if name in SLOW else (0, 1, 2)
    flaws = [] if status in expected else [f"status {status}"]
    if status in (1, 2) and "fix:" not in said:
        flaws.append("no fix")
    yield row(alone, status, said, took_s, flaws)
    page = f"yoked {name} --help"
    status, said, took_s = desk.type(page)
    yield row(page, status, said, took_s, [] if status == 0 and "Usage:" in said else ["no page"])


def _fixes(said: Sequence[str]) -> Iterator[str]:
    """Lines that say what to do: of an error, or below a finding's `on HOST:`."""
    below = False
    for line in said:
        if line.lstrip().startswith("fix:") or below:
            yield line
        below = (below and line.startswith("      ")) or bool(re.match(r" +on [^:]+:$", line))


def mistaken(desk: Desk, mistake: Mistake) -> Iterator[dict[str, Any]]:
    """A mistake, and each line that its fix leads to."""
    line = f"yoked {mistake.line}"
    status, said, took_s = desk.type(line)
    fixes = "\n".join(_fixes(said.splitlines()))
    flaws = [] if status in (1, 2) else [f"status {status}"]
    fix = mistake.fix.format(fleet=desk.fleet, lab=LAB).replace(str(desk.folder), "FOLDER")
    if fix not in fixes or not fixes:
        flaws.append(f"no fix with {mistake.fix!r}")
    yield row(line, status, said, took_s, flaws)
    for after in mistake.then:
        status, said, took_s = desk.type(after)
        yield row(f"  {after}", status, said, took_s, [] if status == 0 else ["the fix fails"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=MISTAKES, default=[])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        desk.prepare()
        try:
            for name in options.only or MISTAKES:
                for each in (
                    *plain(desk, name),
                    *(found for mistake in MISTAKES[name] for found in mistaken(desk, mistake)),
                ):
                    rows.append(each)
                    flaws = f"  <- {', '.join(each['flaws'])}" if each["flaws"] else ""
                    print(
                        f"{each['status']:3} {each['took_s']:6.1f} s  {each['line']}{flaws}",
                        flush=True,
                    )
                    if flaws:
                        print(
                            "\n".join(
                                f"            | {line}" for line in each["said"].splitlines()[-12:]
                            )
                        )
        finally:
            desk.type(f"yoked lab down {LAB}")
    wrong = sum(1 for each in rows if each["flaws"])
    print(f"{len(rows)} lines, {wrong} with flaws")
    if not options.only:
        told = {"machine": side.machine_facts(), "rows": rows}
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "results.json").write_text(json.dumps(told, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
