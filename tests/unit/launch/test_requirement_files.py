"""Requirements files of a person's: what is taken, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.errors import UsageError
from yoked.launch.requirement_files import constraints, read_requirements

PINNED = ("numpy==2.1.0", "torch==2.13.0", "tinynew>=1")


def write(folder: Path, text: str, name: str = "requirements.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_names_and_versions_are_taken_in_their_order_and_once(tmp_path: Path) -> None:
    write(tmp_path, "trl\npeft>=0.14", "more.txt")
    file = write(
        tmp_path,
        "# what it needs\n\npeft>=0.14  # adapters\ntransformers[sentencepiece]\\\n  ~=4.50\n"
        "-r more.txt\ntorch>=2.4\nwinonly; sys_platform == 'win32'\n"
        "mostly; sys_platform != 'win32'\nlast\\\n",
    )

    found = read_requirements(file, PINNED)

    assert found == (
        "peft>=0.14",
        "transformers[sentencepiece]~=4.50",
        "trl",
        "torch>=2.4",
        "mostly",
        "last",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-e .", "-e: an editable package"),
        ("--index-url https://example.org/simple", "--index-url: each host asks the index"),
        ("--extra-index-url=https://example.org", "--extra-index-url: each host asks"),
        ("-c pins.txt", "-c: yoked gives pip constraints"),
        ("--pre", "--pre: yoked knows no options"),
        ("mine @ https://example.org/mine.whl", "mine comes from an address"),
        ("git+https://example.org/mine", "is no requirement"),
        ("./wheels/mine.whl", "is no requirement"),
        ("peft==0.14 --hash=sha256:00", "--hash: pip would ask it of all"),
        ("peft; touch /tmp/x", "is no requirement"),
        ("$(id)", "is no requirement"),
    ],
)
def test_what_fetches_code_from_elsewhere_is_refused_with_its_line(
    tmp_path: Path, line: str, said: str
) -> None:
    file = write(tmp_path, f"peft\n{line}\n")

    with pytest.raises(UsageError) as caught:
        read_requirements(file, PINNED)

    assert caught.value.what.startswith(f"{file}:2: ")
    assert said in caught.value.what
    assert caught.value.fix


def test_a_version_that_does_not_fit_what_trains_is_told_before_anything_begins(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "Torch<2.5\n")

    with pytest.raises(UsageError) as caught:
        read_requirements(file, PINNED)

    assert "Torch<2.5, and Torch 2.13.0 is what trains" in caught.value.what


@pytest.mark.parametrize("text", ["", "# nothing\n\n", "-r requirements.txt\n", "-r none.txt\n"])
def test_a_file_of_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        read_requirements(write(tmp_path, text))


def test_what_trains_is_held_where_it_is_pinned() -> None:
    assert constraints(PINNED) == ("numpy==2.1.0", "torch==2.13.0")
