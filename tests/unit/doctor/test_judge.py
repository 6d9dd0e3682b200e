"""What a launch would not send is known when findings are made."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.doctor.builders import home

from yoked.doctor import judge
from yoked.doctor.judge import Examiner
from yoked.fleet.model import Fleet
from yoked.records.examination import Need


@pytest.mark.parametrize(
    ("travels", "left"),
    [
        ({"train.py", "out/deep"}, ["logs"]),
        ({"out", "logs/.gitkeep"}, []),
        (set(), ["out", "logs"]),
    ],
)
def test_a_folder_into_which_the_program_writes_and_that_stays_here_is_a_finding(
    travels: Collection[str], left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fills = {"out": "train.py:7", "logs": "train.py:8"}
    seen = replace(home(), controller={**home().controller, "asks": {"fills": fills}})

    def look(*_: Any, **__: Any) -> Any:
        # As long as a look takes, which is longer than a list of names.
        time.sleep(0.2)
        return seen

    monkeypatch.setattr(judge, "look", look)
    examiner = Examiner(
        Need(),
        lambda: nullcontext(SimpleNamespace(show=print)),
        travelling=lambda _: travels,
    )

    found = examiner(Fleet("home", (), Path("yoked.toml"))).findings

    assert [each.saw.split()[4] for each in found] == [f"{name}/" for name in left]
