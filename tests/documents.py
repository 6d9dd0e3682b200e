"""What the pages for users say: their fenced blocks, and the command lines in them.

A block is of a kind, its fence's first word. `sh` is typed: on the machine, or with a second word
at the terminal of that name (`sh alpha`). `text` is what is seen there after the last command,
line by line and in this order; in it `...` is anything, and a number with a decimal point is any
other. A block that is not to be typed has the reason in a comment above it, and what is shown
after it is an example:

    <!-- not run: it needs a Slurm cluster -->
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclopts import CoercionError, CycloptsError, MissingArgumentError

from yoked.cli.argv import split_command, split_program
from yoked.cli.main import build_app
from yoked.errors import UsageError

REPOSITORY = Path(__file__).parents[1]
# Their text comes from the code: other tests compare it.
GENERATED = tuple(f"docs/reference/{name}.md" for name in ("checks", "commands", "errors", "json"))
FOR_OTHERS = ("ARCHITECTURE.md", "CHANGELOG.md")
PAGES = sorted(
    name
    for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"))
    if (name := str(path.relative_to(REPOSITORY))) not in (*FOR_OTHERS, *GENERATED)
)
# Some pages are typed part by part, in any order: tests/lab/test_walk.py.
IN_PARTS = ("docs/tutorial/lab.md",)
# What somebody has done who reads a guide: there are two machines, and a yoked.toml.
_LAB = ("mkdir -p home/texts", "seq 1000 > home/texts/1.txt", "yoked lab up $TOPOLOGY")
_HOME = (
    *_LAB,
    "cd home",
    "yoked init desktop laptop",
    # In the place of `yoked install`.
    r"""sed -i "s#^name = .\(desktop\|laptop\).\$#&\npython = '$PYTHON'#" yoked.toml""",
    "yoked trust yoked.toml",
)
_TRAIN = (
    "yoked train --detach --run evening --depth 2 --max-seq-len 256 --vocab-size 4096 "
    "--total-batch-size 2048 --num-iterations 40 --eval-every -1"
)
# Pages that are typed from top to bottom in a lab, and what is typed before.
IN_A_LAB = {
    "AGENTS.md": _LAB,
    "docs/guides/doctor.md": _HOME,
    "docs/guides/fleet.md": _LAB,
    "docs/guides/own-program.md": _HOME,
    "docs/guides/plan.md": _HOME,
    "docs/guides/probe.md": _HOME,
    "docs/guides/runs.md": (*_HOME, _TRAIN),
    "docs/guides/unequal-machines.md": (*_HOME, "yoked probe --quick"),
    "docs/guides/usable-desktop.md": _HOME,
    "docs/guides/when-something-breaks.md": (*_HOME, _TRAIN),
    "docs/guides/wifi.md": _HOME,
    "docs/tutorial/two-hosts.md": (),
}
# The same on this machine alone, in seconds.
ON_THIS_MACHINE: dict[str, tuple[str, ...]] = {
    "docs/concepts/cost-model.md": (),
    "docs/guides/clusters.md": (),
    "docs/guides/fine-tuning.md": (),
}

MACHINE = "machine"
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^>]+) -->\n)?"
    r"(?P<indent> *)```(?P<kind>[\w-]*)(?: (?P<terminal>\w+))?\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_ENDS = re.compile(r"[;&|<>()]+")


@dataclass(frozen=True)
class Block:
    """What is typed (`sh`) or seen (`text`) at one terminal, or a file of another kind."""

    kind: str
    terminal: str
    lines: tuple[str, ...]
    why_not_run: str
    number: int
    """The line of the page at which it begins."""


@dataclass(frozen=True)
class Section:
    """A part of a page with its heading; what stands above the first one has none."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def played(self) -> Iterator[Block]:
        """What is to be typed, and seen after it."""
        is_shown = False
        for block in self.blocks:
            if block.kind == "sh":
                is_shown = not block.why_not_run
            if is_shown and block.kind in ("sh", "text"):
                yield block


def sections(page: str) -> list[Section]:
    """The parts of a page that have blocks."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    found: dict[str, list[Block]] = {}
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        # A comment in a block looks like a heading.
        titles = re.findall(r"^## (.*)$", _FENCE.sub("", before), flags=re.MULTILINE)
        indent = len(match["indent"])
        block = Block(
            match["kind"],
            match["terminal"] or MACHINE,
            tuple(line[indent:] for line in match["text"].splitlines()),
            match["why"] or "",
            before.count("\n") + 1,
        )
        found.setdefault(titles[-1] if titles else "", []).append(block)
    return [Section(title, tuple(blocks)) for title, blocks in found.items()]


def file_of(page: str, kind: str) -> str:
    """The first block of a kind, for a test that makes a file of it."""
    blocks = (block for section in sections(page) for block in section.blocks)
    return "\n".join(next(block for block in blocks if block.kind == kind).lines) + "\n"


def command_lines(lines: Sequence[str]) -> Iterator[list[str]]:
    """The words of every command in lines for a shell, without what redirects and joins them."""
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            # A quotation over several lines, or a line of a program.
            words = line.split()
        command: list[str] = []
        for word in [*words, ";"]:
            if not _ENDS.fullmatch(word):
                command.append(word)
                continue
            while command and re.fullmatch(r"\w+=.*", command[0]):
                command.pop(0)
            if command:
                yield command
            command = []


def why_not_ours(words: Sequence[str], *, is_mention: bool = False) -> str | None:
    """What is wrong with a command line of yoked's or make's; None: nothing, or it is another's.

    is_mention: it stands in a sentence, where arguments may be left out.
    """
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        wrong = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"make has no {', '.join(wrong)}" if wrong else None
    if words[0] != "yoked":
        return None
    tokens = split_program(split_command(list(words[1:])))
    try:
        build_app().parse_args(tokens, print_error=False, exit_on_error=False)
    except MissingArgumentError as problem:
        return None if is_mention else str(problem)
    except CoercionError as problem:
        token = problem.token.value if problem.token is not None else ""
        # N stands for a number.
        return None if token.isupper() else str(problem)
    except (CycloptsError, UsageError) as problem:
        return str(problem)
    return None


def mentions(page: str) -> Iterator[list[str]]:
    """The command lines of yoked's that stand in a page's sentences."""
    text = _FENCE.sub("", (REPOSITORY / page).read_text(encoding="utf-8"))
    for said in re.findall(r"`(yoked [^`]+)`", text):
        yield from command_lines([" ".join(said.split())])
