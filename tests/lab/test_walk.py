"""docs/tutorial/lab.md as it stands: all that it says is typed, and all that it shows is seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documents import sections
from tests.walk import Walk, learner, pattern

from yoked.lab.pytest_plugin import why_not

SECTIONS = {section.title: section for section in sections("docs/tutorial/lab.md")}
# Exercises are independent of each other, but not of these.
OPENING = ("Prepare", "Bring it up, look around", "Two terminals")
REST = [title for title in SECTIONS if title not in OPENING]
# Elsewhere torch gives up late, computes much, or a second lab is brought up.
QUICK = ("Exercise 9:",)
NEEDS_CPU_QUOTAS = "Exercise 5:"


class Exercises:
    """The parts of the page, in any order: each begins in the lab of the opening parts."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._is_lost = True

    def perform(self, title: str) -> None:
        """Type a part, after the opening ones: the first time, and after a part that failed."""
        if self._is_lost:
            self._walk.close()
            for each in OPENING:
                self._walk.perform(SECTIONS[each])
        self._is_lost = True
        self._walk.perform(SECTIONS[title])
        self._is_lost = False


@pytest.fixture(scope="module")
def exercises(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exercises]:
    with learner(tmp_path_factory.mktemp("home")) as walk:
        yield Exercises(walk)


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=[] if title.startswith(QUICK) else [pytest.mark.slow])
        for title in REST
    ],
)
def test_what_the_walk_says_is_what_happens(exercises: Exercises, title: str) -> None:
    if title.startswith(NEEDS_CPU_QUOTAS) and (reason := why_not("cgroups")) is not None:
        pytest.skip(reason)

    exercises.perform(title)


def test_what_is_shown_at_a_terminal_was_typed_there_before() -> None:
    for section in SECTIONS.values():
        typed: set[str] = set()
        for block in section.blocks:
            if block.kind == "sh":
                typed.add(block.terminal)
            assert block.terminal in typed, f"{section.title}: {block}"


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("step 3: all-reduce 0.96 s", "step 3: all-reduce 11.02 s", True),
        ("step 3: all-reduce 0.96 s", "step 4: all-reduce 0.96 s", False),
        ("LISTEN ... 10.0.0.1:...  python", "LISTEN 0  128 10.0.0.1:22 python3", True),
        ("LISTEN ... 10.0.0.1:... python", "LISTEN 0  128 10.0.0.2:22 python3", False),
        ("... (end", "in the (end)", True),
    ],
)
def test_dots_and_decimals_are_what_may_differ(shown: str, printed: str, fits: bool) -> None:
    assert bool(pattern(shown).search(printed)) == fits
