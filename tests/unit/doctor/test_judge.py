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
from yoked.doctor.judge import Examiner, Sent
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

    found = said_of(Sent(travels), monkeypatch, asks={"fills": fills})

    assert [each.split()[4] for each in found] == [f"{name}/" for name in left]


def test_what_a_launch_refuses_is_said_in_its_words_where_a_program_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent(None, refused=("/w has 2.2 GB in 5 files", "name in /w/.gitignore what to leave"))

    assert said_of(sent, monkeypatch) == []
    (found,) = said_of(sent, monkeypatch, programs=["/w/train.py"])
    assert found.endswith("/w has 2.2 GB in 5 files; name in /w/.gitignore what to leave")


@pytest.mark.parametrize(
    ("links", "dead"),
    [
        ({"out": "runs/7"}, ["out -> runs/7"]),
        ({"out": "real", "a/b": "../real"}, []),
        ({"loop": "loop", "out": "loop"}, ["loop -> loop", "out -> loop"]),
        # Whether hosts have it, they tell.
        ({"out": "/mnt/usb/out"}, []),
        # Neither opened by the program nor beside it.
        ({"deep/a": "gone"}, []),
    ],
)
def test_a_link_is_dead_whose_other_end_stays_here(
    links: dict[str, str], dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"real/rows.txt", "train.py", *links}

    found = said_of(Sent(names, links=links), monkeypatch, links=[*links][: -1 if "deep/a" in links
                    else None])  # fmt: skip

    assert [each.partition(" in the")[0] for each in found] == ([" and ".join(dead)] * bool(dead))


def test_a_large_file_that_grows_while_hosts_are_looked_at_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("longer")
    sizes = {"log": (tmp_path / "log", 3), "whole": (tmp_path / "log", 6)}

    found = said_of(Sent({"log"}, sizes=sizes), monkeypatch, programs=["/w/train.py"])

    assert [each.partition(" ")[0] for each in found] == ["log"]


def said_of(sent: Sent, monkeypatch: pytest.MonkeyPatch, **controller: Any) -> list[str]:
    """What is found where a launch would send that, of a controller that tells these."""
    seen = replace(home(), controller={**home().controller, **controller})

    def look(*_: Any, **__: Any) -> Any:
        # As long as a look takes, which is longer than a list of names.
        time.sleep(0.2)
        return seen

    monkeypatch.setattr(judge, "look", look)
    examiner = Examiner(
        Need(), lambda: nullcontext(SimpleNamespace(show=print)), travelling=lambda _: sent
    )
    return [each.saw for each in examiner(Fleet("home", (), Path("yoked.toml"))).findings]
