"""`yoked export`: flags that do not fit each other are refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.train.trained_models import make_run

from yoked.cli.main import main
from yoked.train.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--to", "safetensors", "--ranks", "2"], "fix: leave --ranks out"),
        (["--to", "nanochat", "--ranks", "0"], "fix: give 1 or more"),
    ],
)
def test_ranks_that_cannot_be_meant_are_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "night", *flags]) == 2

    assert said in capsys.readouterr().err


def test_the_end_says_for_how_many_ranks_the_optimizer_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs" / "night", Tokenizer.train(["one two three"], vocab_size=270))

    assert main(["export", "night", "--to", "nanochat", "--ranks", "2"]) == 0

    assert "the files for 2 ranks of nanochat" in capsys.readouterr().out
