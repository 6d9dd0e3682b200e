"""Every command line of the pages for users is one that there is, and is typed by some test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.documents import (
    IN_A_LAB,
    IN_PARTS,
    ON_THIS_MACHINE,
    PAGES,
    REPOSITORY,
    command_lines,
    file_of,
    mentions,
    sections,
    why_not_ours,
)
from tests.walk import learner

from yoked.diagnosis.alone import CODE
from yoked.diagnosis.cause import Code
from yoked.diagnosis.endings import EndCode
from yoked.fleet import file

KINDS = ("sh", "text", "toml", "json", "python", "yaml")


# Told neither by a rule of a run nor by the end of a rank: agent/jobfolder.py, the coordinator,
# and agent/verdict.py for what has no cause of its own.
OF_HOSTS = {"launcher-died", "host-gone", "rank-failed"}


def test_the_causes_that_are_documented_are_those_that_are_told() -> None:
    page = (REPOSITORY / "docs/reference/causes.md").read_text()
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))

    assert documented == {*get_args(Code), *get_args(EndCode), CODE, *OF_HOSTS}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one_that_there_is(page: str) -> None:
    said = [(words, True) for words in mentions(page)]
    for section in sections(page):
        for block in section.blocks:
            if block.kind == "sh":
                said += [(words, bool(block.why_not_run)) for words in command_lines(block.lines)]

    problems = {
        " ".join(words): problem
        for words, is_mention in said
        if (problem := why_not_ours(words, is_mention=is_mention)) is not None
    }
    assert problems == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_known_kind_and_typed_by_a_test_or_says_why_not(page: str) -> None:
    is_typed = page in (*IN_PARTS, *IN_A_LAB, *ON_THIS_MACHINE)
    for section in sections(page):
        for block in section.blocks:
            where = f"{page}:{block.number}"
            assert block.kind in KINDS, f"{where}: a fence of kind {block.kind!r}"
            assert block.kind != "sh" or is_typed or block.why_not_run, (
                f"{where}: name the page in tests/documents.py, or say why this is not run"
            )


def test_the_reference_of_yoked_toml_has_every_key() -> None:
    text = (REPOSITORY / "docs/reference/yoked-toml.md").read_text(encoding="utf-8")

    keys = {key for table in (file._FLEET, file._NOTIFY, file._FILES, file._HOST) for key in table}
    assert keys == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def test_the_program_of_the_fine_tuning_guide_is_that_of_its_benchmark() -> None:
    program = REPOSITORY / "benchmarks/fine_tuning/program/finetune.py"

    assert file_of("docs/guides/fine-tuning.md", "python") == program.read_text(encoding="utf-8")


def test_the_table_of_programs_is_that_of_its_results() -> None:
    folder = REPOSITORY / "benchmarks/unmodified"

    command = [sys.executable, folder / "programs.py", "--summary"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    assert said in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ON_THIS_MACHINE)
def test_what_a_page_says_is_what_happens(page: str, tmp_path: Path) -> None:
    with learner(tmp_path) as walk:
        walk.type("cd ~", *ON_THIS_MACHINE[page])
        for section in sections(page):
            walk.perform(section)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("yoked runs --no-such-flag", "no-such-flag"),
        ("cd x && FLEET=a yoked trian --depth 4 | tail", "trian"),
        ("make tset", "tset"),
        ("yoked train --depth four", "four"),
        ("yoked train --depth 4 --ranks 2; echo $?", None),
        ("yoked lab exec alpha -- ls --all > out", None),
        ("yoked run -- -m scripts.base_train --depth=4", None),
    ],
)
def test_a_command_that_there_is_not_is_found(line: str, found: str | None) -> None:
    problems = [why_not_ours(words) for words in command_lines([line])]

    said = "".join(problem for problem in problems if problem)
    assert found in said if found else said == ""
