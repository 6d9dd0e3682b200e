"""How large the house is, by package of src and folder of tests: `make size`.

lines: of files; small, large: functions of at most 5 lines and of more than 60, without decorator,
signature and docstring; match, sentences: of tests, `match=` and literals that an assert looks at
and that have three words in a row with a text of src, so that a change of wording would touch them.
A line that a shell would run is no sentence. Texts in golden files do not count: they are no code.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

SMALL_LINES, LARGE_LINES = 5, 60
# What a line begins with that ip, tc, nft or a shell is to run.
PROGRAMS = {
    "address", "apt", "disable", "dnf", "ip", "iptables", "link", "mount", "nft", "route", "rule",
    "scancel", "scontrol", "ssh", "sudo", "systemctl", "tc", "ufw", "yoked",
}  # fmt: skip

Words = tuple[str, str, str]


@dataclass
class Size:
    """Counts of a folder; see this module."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    small: int = 0
    large: int = 0
    match: int = 0
    sentences: int = 0

    def add(self, source: str, wording: set[Words]) -> None:
        """Count one file in. wording: three words in a row each, of the texts of src."""
        tree = ast.parse(source)
        lengths = [body_lines(node) for node in ast.walk(tree) if is_function(node)]
        self.files += 1
        self.lines += source.count("\n")
        self.functions += len(lengths)
        self.small += sum(length <= SMALL_LINES for length in lengths)
        self.large += sum(length > LARGE_LINES for length in lengths)
        self.match += sum(
            isinstance(node, ast.keyword) and node.arg == "match" for node in ast.walk(tree)
        )
        self.sentences += len(list(asserted_sentences(tree, wording)))


def is_function(node: ast.AST) -> bool:
    """Whether it is a function or a method."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def body_lines(node: ast.AST) -> int:
    """Lines of a function's body without its docstring."""
    body = node.body  # type: ignore[attr-defined]
    if ast.get_docstring(node) is not None:  # type: ignore[arg-type]
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def in_a_row(text: str) -> set[Words]:
    """Each three words of a text that follow each other."""
    words = re.findall(r"[A-Za-z]+", text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def literals(node: ast.AST) -> Iterator[str]:
    """Texts within a node; the pieces of an f-string are one each, docstrings none."""
    said = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Expr)}
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in said:
            yield each.value


def asserted_sentences(tree: ast.AST, wording: set[Words]) -> Iterator[str]:
    """Texts within asserts that repeat three words in a row of `wording`."""
    for node in ast.walk(tree):
        for text in literals(node.test) if isinstance(node, ast.Assert) else ():
            first, *rest = text.split() or [""]
            if first not in PROGRAMS and len(rest) > 1 and in_a_row(text) & wording:
                yield text


def sizes(root: Path) -> dict[str, Size]:
    """By package or folder, in the order of their names."""
    found: dict[str, Size] = {}
    src = sorted((root / "src" / "yoked").rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in src}
    wording = {
        words
        for text in texts.values()
        for each in literals(ast.parse(text))
        for words in in_a_row(each)
    }
    texts.update(
        (path, path.read_text(encoding="utf-8")) for path in sorted((root / "tests").rglob("*.py"))
    )
    for path, text in texts.items():
        name = "/".join(path.relative_to(root).parts[:-1][:3])
        found.setdefault(name, Size()).add(text, wording)
    return found


def table(found: dict[str, Size]) -> str:
    """For people, with a line of sums for src and one for tests."""
    names = [field.name for field in fields(Size)]
    rows = [("", *names)]
    for top in ("src", "tests"):
        ours = {name: size for name, size in found.items() if name.split("/")[0] == top}
        total = Size(*(sum(getattr(size, name) for size in ours.values()) for name in names))
        for label, size in (*ours.items(), (f"{top}, all", total)):
            rows.append((label, *(f"{getattr(size, name):,}" for name in names)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(names) + 1)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(w.rjust(n) for w, n in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    """Print the sizes of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, nargs="?", default=Path(), help="a checkout")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = sizes(options.root)
    if not found:
        parser.error(f"{options.root} is no checkout of yoked")
    if options.json:
        print(json.dumps({name: asdict(size) for name, size in found.items()}, indent=1))
    else:
        print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
