"""Codes of failures, their sentences and their parameters hold together; read from the sources."""

from __future__ import annotations

import ast
import pickle
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import yoked
from yoked.core.faults import FAULTS, fault, told_fault
from yoked.errors import HostError


def fields(code: str) -> set[str]:
    texts = (FAULTS[code].what, *FAULTS[code].fix)
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


def raised() -> Iterator[tuple[str, set[str]]]:
    """Code and names of parameters of each place that makes a fault."""
    for path in Path(yoked.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fault"
            if is_call and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), {str(each.arg) for each in node.keywords}


def test_every_place_gives_what_the_sentences_name_and_nothing_else() -> None:
    assert [(code, names) for code, names in raised() if names != fields(code)] == []


def test_a_path_is_one_word_of_a_line_to_paste_and_no_option() -> None:
    params = {name: "0" for code in FAULTS for name in fields(code)} | {"timeout_s": 1, "free": 1}
    params |= {"most_bytes": 1, "files": 1, "most": 1, "number": 1}
    paths = ("path", "folder", "parent", "python")
    broken = []
    for code in FAULTS:
        odd = dict.fromkeys(paths, "-my $(fleet)'s.toml")
        lines = fault(code, **{**params, **odd}).fix
        for told, line in zip(FAULTS[code].fix, lines, strict=True):
            if any(f"{{{name}}}" in told for name in paths):
                words = shlex.split(line.replace("`", ""))
                broken += [line] * ("./-my $(fleet)'s.toml" not in words)

    assert broken == []


def test_every_code_is_raised_somewhere() -> None:
    assert {code for code, _ in raised()} == set(FAULTS)


def test_the_fleets_file_is_not_called_by_a_name_that_it_need_not_have() -> None:
    texts = [text for each in FAULTS.values() for text in (each.what, *each.fix)]

    assert [text for text in texts if "yoked.toml" in text] == []


def test_codes_are_few_enough_to_branch_on() -> None:
    assert len(FAULTS) <= 60


def test_a_fault_keeps_its_code_between_processes() -> None:
    error = pickle.loads(pickle.dumps(fault("torch-missing", host="alpha")))

    assert (type(error), error.code, error.params) == (
        HostError,
        "torch-missing",
        {"host": "alpha"},
    )


@pytest.mark.parametrize(
    ("code", "params"),
    [("no-such-code", {}), ("torch-missing", {}), ("torch-missing", None), (7, {}),
     ("disk-full", {"path": "/", "needed": "", "free": "many", "folder": "/"})],
)  # fmt: skip
def test_a_fault_that_another_process_tells_wrongly_is_none(code: object, params: object) -> None:
    assert told_fault(code, params) is None


def test_a_told_parameter_is_no_place_in_a_sentence() -> None:
    error = told_fault("torch-missing", {"host": "{0.__class__} {code}"})

    assert error is not None
    assert "{0.__class__}" in error.what


def test_no_two_codes_say_the_same() -> None:
    said = [each.what for each in FAULTS.values()]

    assert sorted(said) == sorted(set(said))
