"""Codes, sentences and parameters of checks hold together; read from the sources."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.doctor.builders import home

import yoked.doctor.checks
from yoked.doctor.catalog import CHECKS
from yoked.doctor.check import Check, Match, render

FOLDER = Path(yoked.doctor.checks.__file__).parent
# Known of every match; and what `Group.match` adds of links.
PLACES = {"host", "source", "target"}
OF_GROUPS = {"evidence"}
MAKERS = ("Match", "group.match")
NOT_PARAMS = {"hosts", "link", "severity", "how"}
CODES = {check.code: check for check in CHECKS}


def fields(check: Check, hows: set[str] | None) -> set[str]:
    """What the sentences of a check name. hows: of these alone; None: of any."""
    texts = [
        t
        for text in (check.saw, check.why)
        for t in ([text] if isinstance(text, str) else map(text.__getitem__, hows or text))
    ]
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def hows(value: ast.expr | None) -> set[str] | None:
    """Which sentences a match may choose; None: that is worked out elsewhere."""
    if value is None:
        return {""}
    if isinstance(value, ast.IfExp):
        both = hows(value.body), hows(value.orelse)
        return None if None in both else set().union(*filter(None, both))
    return {value.value} if isinstance(value, ast.Constant) else None


def matches() -> Iterator[tuple[str, ast.Call]]:
    """Each place that makes a match, with the code of the check that it is for."""
    for path in FOLDER.glob("*.py"):
        functions = {
            node.name: node
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        for function in functions.values():
            code = function.name.replace("_", "-")
            if code not in CODES or not function.decorator_list:
                continue
            reached = [function]
            for each in reached:
                names = {n.func.id for n in ast.walk(each) if isinstance(n, ast.Call)
                         and isinstance(n.func, ast.Name)}  # fmt: skip
                reached += [functions[name] for name in names & functions.keys()
                            if functions[name] not in reached]  # fmt: skip
            for node in (n for each in reached for n in ast.walk(each)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS:
                    yield code, node


def test_every_match_gives_what_its_sentence_names_and_nothing_else() -> None:
    found = list(matches())
    # Those of ssh are made in one place for all kinds.
    assert len({code for code, _ in found}) > len(CHECKS) - 12
    for code, call in found:
        given = {str(keyword.arg): keyword.value for keyword in call.keywords}
        known = PLACES if ast.unparse(call.func) == "Match" else PLACES | OF_GROUPS
        wanted = fields(CODES[code], hows(given.get("how"))) - known
        assert given.keys() - NOT_PARAMS == wanted, code


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_function_is_named_like_its_code(check: Check) -> None:
    name = check.look.__name__  # type: ignore[attr-defined]
    assert check.code == name.replace("_", "-") or check.code.startswith("ssh-"), name


def test_sentences_show_units_lists_and_numbers() -> None:
    text = "{size:bytes}, {took:duration}, {rate:bit/s}, {names:list}, {n:plural rank}, {m:04o}"
    params = {
        "size": 2e9, "took": 3.0, "rate": 1e9, "names": ("a", "b", "c"), "n": 2, "m": 0o22,
    }  # fmt: skip

    assert render(text, "", params) == "2.00 GB, 3.00 s, 1.00 Gbit/s, a, b and c, 2 ranks, 0022"


def test_a_parameter_with_braces_stays_as_it_is() -> None:
    assert (
        render("{host}: {said}", "", {"host": "a", "said": "{nothing} {0}"}) == "a: {nothing} {0}"
    )


def test_a_match_without_what_its_sentence_names_is_a_bug() -> None:
    check = Check(code="c", question="?", reads=(), severity="error", saw="{missing}", why="",
                  page="", look=lambda _: [Match("attic")])  # fmt: skip

    with pytest.raises(KeyError):
        list(check.run(home()))
