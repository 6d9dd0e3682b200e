"""What `yoked sample`, `chat`, `export` and `plot` take: of a fleet's run the newest."""

from __future__ import annotations

import io
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.unit.agent.job_acts import launch, no_job_left

from yoked.cli import copies, sampling
from yoked.cli.commands import fetch
from yoked.cli.output import Output
from yoked.errors import CheckpointError
from yoked.fleet.model import HERE
from yoked.remote.transport import connect_here
from yoked.runs import copied_from, find_run
from yoked.train import sample
from yoked.train.checkpoint_files import CheckpointFolder, meta_name, model_name
from yoked.train.tokenizer import Tokenizer

MODELS = "checkpoints/base_checkpoints/d4"


def save(run: Path, step: int) -> None:
    """A checkpoint of two small files, an hour old."""
    folder = CheckpointFolder(run / MODELS)
    folder.lock()
    names = (meta_name(step), model_name(step))
    folder.save(step, {name: lambda file: file.write(b"%d" % step) for name in names})
    folder.unlock()
    hour_ago_s = time.time() - 3600
    os.utime(run / MODELS / model_name(step), (hour_ago_s, hour_ago_s))


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of run `night` on the host of a fleet, which is this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    Path("yoked.toml").write_text('[fleet]\nname = "home"\n[[host]]\nname = "."\n')
    run = tmp_path / "state/runs/night"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    Tokenizer.train(["the cat sat on the mat"] * 3, 270).save(run / "checkpoints/tokenizer")
    save(run, 1)
    return run


@dataclass
class Said:
    """What a command said beside its result."""

    output: Output
    stream: io.StringIO

    @property
    def text(self) -> str:
        return " ".join(self.stream.getvalue().split())


@pytest.fixture
def said() -> Said:
    output, stream = Output(json_mode=False, stdout=io.StringIO()), io.StringIO()
    output.__dict__["console"] = Console(file=stream, width=1000)
    return Said(output, stream)


def steps_here() -> list[int]:
    folder = CheckpointFolder(Path("runs/night") / MODELS)
    return sorted(manifest.step for manifest in folder.complete())


def test_of_a_fleets_run_the_newest_is_fetched_first(there: Path, said: Said) -> None:
    fetch.command("night")
    save(there, 2)

    folder = copies.with_newest_checkpoint("night", Path("runs"), "latest", said.output)

    assert folder == Path("runs/night")
    assert steps_here() == [1, 2]
    assert "fetched the latest checkpoint from ." in said.text


def test_a_checkpoint_that_is_here_is_not_fetched_again(there: Path, said: Said) -> None:
    fetch.command("night")

    copies.with_newest_checkpoint(None, Path("runs"), "latest", said.output)

    assert said.text == ""


def test_a_run_that_hosts_began_later_is_named_where_none_was(there: Path, said: Said) -> None:
    fetch.command("night")
    with no_job_left(), connect_here(HERE) as agent:
        launch(agent, there.parents[1], "pass", run="night", trains="night")
        copies.with_newest_checkpoint(None, Path("runs"), "latest", said.output)
        alone = said.text
        launch(agent, there.parents[1], "pass", run="later", trains="later")
        (there.parent / "later").mkdir()
        (there.parent / "later" / "run.json").write_text("{}")
        launch(agent, there.parents[1], "pass", run="failed", trains="failed")
        copies.with_newest_checkpoint("night", Path("runs"), "latest", said.output)
        named = said.text
        copies.with_newest_checkpoint(None, Path("runs"), "latest", said.output)

    assert alone == named == ""
    assert said.text == "note: run later is newer, and not here: yoked fetch later"


def test_a_folder_that_is_named_is_taken_as_it_is(there: Path, said: Said) -> None:
    fetch.command("night")
    save(there, 2)

    copies.with_newest_checkpoint("runs/night", Path("runs"), "latest", said.output)

    assert steps_here() == [1]


def test_where_the_hosts_cannot_be_asked_it_is_said_that_this_may_be_older(
    there: Path, said: Said
) -> None:
    fetch.command("night")
    there.rename(there.with_name("gone"))

    copies.with_newest_checkpoint("night", Path("runs"), "latest", said.output)

    assert "run night may have a newer checkpoint than this one" in said.text


def test_where_nothing_is_here_and_none_comes_the_fix_is_to_fetch_it(
    there: Path, said: Said
) -> None:
    fetch.command("night")
    for file in Path("runs/night", MODELS).iterdir():
        file.unlink()
    there.rename(there.with_name("gone"))

    with pytest.raises(CheckpointError) as caught:
        copies.with_newest_checkpoint("night", Path("runs"), "latest", said.output)

    assert any(line.startswith("yoked fetch night  ") for line in caught.value.fix)


def test_the_model_is_named_by_its_run_its_step_and_when_it_was_saved(
    there: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch.command("night")
    saved_s = Path("runs/night", MODELS, model_name(1)).stat().st_mtime

    trained = SimpleNamespace(step=1, saved_s=saved_s, better=None)

    monkeypatch.setattr(sample, "load_trained", lambda *_: trained)
    sampling.load_model("night", Path("runs"), "latest", said.output)

    # As on the host, and not when it was fetched.
    assert "note: night, step 1, saved 20" in said.text
    assert "(1 h 00 min ago)" in said.text


def test_of_a_fleets_run_the_newest_lines_are_plotted(there: Path, said: Said) -> None:
    (there / "metrics.jsonl").write_text('{"step": 0}\n')
    fetch.command("night")
    (there / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')

    folder = copies.with_newest_lines("night", Path("runs"), said.output)
    there.rename(there.with_name("gone"))
    copies.with_newest_lines("night", Path("runs"), said.output)

    assert (folder / "metrics.jsonl").read_text().count("step") == 2
    assert said.text.count("run night may be further than this") == 1


def test_what_comes_of_a_run_does_not_make_it_the_latest(there: Path) -> None:
    os.utime(there / "run.json", (1000, 1000))
    own = Path("runs/own")
    own.mkdir(parents=True)
    (own / "run.json").write_text("{}")

    fetch.command("night")

    assert find_run(None, Path("runs")) == own


def test_a_mark_that_is_none_is_no_copys(there: Path) -> None:
    fetch.command("night")
    night = Path("runs/night")
    marked = copied_from(night)

    (night / ".yoked-copy.json").write_text('["/etc"]')

    assert marked == Path("yoked.toml").absolute()
    assert copied_from(night) is None
