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
OF_CHECKS = "yoked.doctor.checks."
# Known of every match.
PLACES = {"host", "source", "target"}
# What makes a match, and what it adds of its own.
MAKERS = {
    "Match": PLACES,
    "group.match": PLACES | {"evidence"},
    "_kept_out": PLACES | {"evidence", "who", "peers", "rule"},
    "wanting": PLACES | {"name", "place", "where"},
    "_of_folder": PLACES | {"names"},
}
HOW_FIRST = ("wanting", "_of_folder")
NOT_PARAMS = {"hosts", "link", "severity", "how"}
CODES = {check.code: check for check in CHECKS}
Function = tuple[str, str]


def fields(check: Check, how: str) -> set[str]:
    """What one of the sentences of a check names."""
    texts = [text if isinstance(text, str) else text[how] for text in (check.saw, check.why)]
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def sentences(check: Check) -> set[str]:
    """Which sentences a check has."""
    keys = [set(text) for text in (check.saw, check.why) if not isinstance(text, str)]
    return set().union(*keys) or {""}


def hows(value: ast.expr | None) -> set[str] | None:
    """Which sentences a match may choose; None: that is worked out elsewhere."""
    if value is None:
        return {""}
    if isinstance(value, ast.IfExp):
        both = hows(value.body), hows(value.orelse)
        return None if None in both else set().union(*filter(None, both))
    return {value.value} if isinstance(value, ast.Constant) else None


def sources() -> tuple[dict[Function, ast.FunctionDef], dict[Function, Function]]:
    """(the functions of the checks, by file and name; what a name in a file is elsewhere)."""
    functions, imported = {}, {}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                functions[path.stem, node.name] = node
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(OF_CHECKS):
                file = str(node.module).removeprefix(OF_CHECKS)
                imported |= {(path.stem, each.name): (file, each.name) for each in node.names}
    return functions, imported


def matches() -> Iterator[tuple[str, ast.Call]]:
    """Each place that makes a match, with the code of the check that it is for."""
    functions, imported = sources()
    for function, node in functions.items():
        code = function[1].replace("_", "-")
        if code not in CODES or not node.decorator_list:
            continue
        reached = [function]
        for file, name in reached:
            calls = [each for each in ast.walk(functions[file, name]) if isinstance(each, ast.Call)]
            called = [(file, each.func.id) for each in calls if isinstance(each.func, ast.Name)]
            found = dict.fromkeys(imported.get(each, each) for each in called)
            reached += [each for each in found if each in functions and each not in reached]
        for each in reached:
            for call in ast.walk(functions[each]):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in MAKERS:
                    yield code, call


def test_every_match_gives_what_its_sentence_names_and_nothing_else() -> None:
    found = list(matches())
    # Those of ssh are made in one place for all kinds.
    assert len({code for code, _ in found}) > len(CHECKS) - 12
    for code, call in found:
        given = {str(keyword.arg): keyword.value for keyword in call.keywords}
        # A maker hands on what it is given.
        if "None" in given:
            continue
        maker, check = ast.unparse(call.func), CODES[code]
        params = (given.keys() - NOT_PARAMS) | MAKERS[maker]
        chosen = hows(call.args[0] if maker in HOW_FIRST else given.get("how"))
        fitting = [how for how in sentences(check) if fields(check, how) <= params]
        wanted = [fields(check, how) for how in (fitting if chosen is None else chosen)]
        assert wanted, code
        assert set().union(*wanted) | MAKERS[maker] == params, (code, ast.unparse(call))


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
