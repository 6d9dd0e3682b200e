"""`yoked fetch`: what comes of a run from hosts that nobody trusts."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms
from tests.unit.agent.job_acts import SLEEPER, launch, no_job_left, says, until

from yoked.agent.jobfolder import JobFolder
from yoked.cli.bringing import bring_after
from yoked.cli.commands import attach, clean, fetch, stop
from yoked.cli.output import Output
from yoked.errors import CheckpointError, DataError, UsageError
from yoked.fleet.file import open_fleet
from yoked.launch import outputs
from yoked.launch.attach import JobEnd
from yoked.launch.registry import joined
from yoked.remote.transport import connect_here
from yoked.train.checkpoint_files import CheckpointFolder, meta_name, model_name
from yoked.train.tokenizer import JSON_NAME, PICKLE_NAME, Tokenizer

TOKENIZER = "checkpoints/tokenizer"


class Touch:
    """What a stranger's pickle does to those who load it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of run `night` on a host, with a checkpoint and a tokenizer, and no fleet file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))

    @contextmanager
    def reach_hosts(*_: object) -> Iterator[SimpleNamespace]:
        with connect_here() as client:
            fleet = SimpleNamespace(path=tmp_path / "yoked.toml")
            clients = {"attic": client}
            yield SimpleNamespace(clients=clients, unreachable={}, records=list, fleet=fleet)

    monkeypatch.setattr(fetch, "reach_hosts", reach_hosts)
    run = tmp_path / "state/runs/night"
    (run / "logs").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    Tokenizer.train(["the cat sat on the mat"] * 3, 270).save(run / TOKENIZER)
    folder = CheckpointFolder(run / "checkpoints/base_checkpoints/d4")
    folder.lock()
    names = (meta_name(1), model_name(1))
    folder.save(1, {name: lambda file: file.write(b"old") for name in names})
    folder.unlock()
    return run


def test_the_tokenizers_pickle_is_made_here_and_not_the_hosts(there: Path, tmp_path: Path) -> None:
    hit = tmp_path / "hit"
    for name in (PICKLE_NAME, "token_bytes.pt"):
        (there / TOKENIZER / name).write_bytes(pickle.dumps(Touch(hit)))

    status = fetch.command("night")

    assert status == 0
    here = tmp_path / "runs/night" / TOKENIZER
    assert sorted(path.name for path in here.iterdir()) == [
        "token_bytes.pt",
        PICKLE_NAME,
        JSON_NAME,
    ]
    # As nanochat reads it.
    loaded = pickle.loads((here / PICKLE_NAME).read_bytes())
    assert loaded.encode_ordinary("the cat") == Tokenizer.load(here).encode("the cat")
    assert not hit.exists()


def test_what_to_type_next_is_about_the_folder_that_was_named(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.command("night", runs_dir=Path("my runs"), checkpoint="1") == 0

    said = capsys.readouterr().out
    assert "next: yoked sample night --checkpoint 1 --runs-dir 'my runs'\n" in said


def test_what_a_host_hides_in_a_run_stays_there_and_is_said_once(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    for name in (".git/config", "checkpoints/.git/hooks/post-checkout", "loss.svg", "a\n\x1b[2J"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("[core] fsmonitor = touch hit")

    fetch.command("night")

    came = {path.name for path in (tmp_path / "runs").rglob("*")}
    assert not came & {".git", "config", "hooks", "post-checkout", "loss.svg", "a\n\x1b[2J"}
    said = capsys.readouterr().err
    assert said == snapshot
    assert "\x1b" not in said


def test_a_run_without_its_tokenizers_json_comes_without_a_tokenizer(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    (there / TOKENIZER / JSON_NAME).unlink()

    fetch.command("night")

    assert not (tmp_path / "runs/night" / TOKENIZER).exists()
    assert capsys.readouterr().err == snapshot


def test_a_tokenizer_that_is_damaged_is_an_error_and_makes_no_pickle(
    there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (there / TOKENIZER / JSON_NAME).write_text("{}")

    with pytest.raises(DataError) as caught:
        fetch.command("night")
    assert str(caught.value) == snapshot

    assert not (tmp_path / "runs/night" / TOKENIZER / PICKLE_NAME).exists()


def test_a_controller_without_torch_fetches_all_the_same(
    there: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setitem(sys.modules, "yoked.train.nanochat_format", None)

    status = fetch.command("night")

    assert status == 0
    assert [path.name for path in (tmp_path / "runs/night" / TOKENIZER).iterdir()] == [JSON_NAME]
    assert capsys.readouterr().err == snapshot


def save(run: Path, step: int, val_bpb: float | None) -> None:
    folder = CheckpointFolder(run / "checkpoints/base_checkpoints/d4")
    folder.lock()
    names = (meta_name(step), model_name(step))
    folder.save(step, {name: lambda file: file.write(b"more") for name in names}, val_bpb)
    folder.unlock()


@pytest.mark.parametrize(("which", "step"), [("best", 2), ("latest", 3), ("1", 1)])
def test_the_checkpoint_that_is_named_comes_and_no_other(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str, step: int
) -> None:
    save(there, 2, 1.2)
    save(there, 3, 1.3)

    assert fetch.command("night", checkpoint=which) == 0

    came = CheckpointFolder(tmp_path / "runs/night/checkpoints/base_checkpoints/d4").complete()
    assert [manifest.step for manifest in came] == [step]
    flag = "" if which == "latest" else f" --checkpoint {which}"
    assert capsys.readouterr().out.endswith(f"next: yoked sample night{flag}\n")


@pytest.mark.parametrize("which", ["best", "7"])
def test_a_checkpoint_that_is_not_there_is_told_of_its_host(
    there: Path, which: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch.command("night", checkpoint=which)
    assert str(caught.value) == snapshot


WRITES = """
import os, pathlib
work = pathlib.Path(os.environ["YOKED_JOB_FOLDER"]) / "work"
(work / "out").mkdir()
(work / "out" / "model.pt").write_bytes(b"weights")
(work / "out" / ".hidden").write_bytes(b"hidden")
(work / "notes.txt").write_text("notes")
"""


@pytest.fixture
def wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobFolder]:
    """A run `try` of a program that is over, on this machine, and that named its outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with no_job_left():
        with connect_here() as agent:
            job = launch(agent, tmp_path / "state", WRITES, outputs=["out/"])
        until(lambda: job.read("end.json"), "the end")
        yield job


def test_what_a_program_wrote_comes_to_its_hosts_folder(
    wrote: JobFolder, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert fetch.command() == 0
    assert Path("runs/try/outputs/here/out/model.pt").read_bytes() == b"weights"
    assert not list(Path("runs").rglob(".hidden"))
    said = capsys.readouterr()
    assert said.out + said.err == snapshot

    assert fetch.command("try", outputs=("*.txt",), json_output=True) == 0
    payload = conforms("fetch", json.loads(capsys.readouterr().out))
    assert payload["hosts"][0]["files"] == ["notes.txt"]
    assert payload["bytes"] == 5
    assert Path("runs/try/outputs/here/notes.txt").read_text() == "notes"

    assert fetch.command(outputs=("*.onnx",)) == 1
    assert "no file of try matches *.onnx" in capsys.readouterr().out


def test_much_comes_only_after_a_yes_or_with_a_flag(
    wrote: JobFolder, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(outputs, "LIMIT_BYTES", 6)

    with pytest.raises(UsageError) as caught:
        fetch.command()
    assert str(caught.value) == snapshot
    assert not Path("runs").exists()

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Output, "console", Console(file=io.StringIO(), force_terminal=True))
    for answer, status in (("n", False), ("y", True)):
        monkeypatch.setattr(Output, "asks", lambda _, question, a=answer: a == "y")
        if status:
            assert fetch.command() == 0
        else:
            with pytest.raises(UsageError):
                fetch.command()
        assert Path("runs").exists() == status


def test_a_flag_allows_much(wrote: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LIMIT_FILES", 0)

    assert fetch.command(yes=True) == 0
    assert Path("runs/try/outputs/here/out/model.pt").exists()


def test_a_run_that_named_no_outputs_asks_for_them(
    wrote: JobFolder, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with connect_here() as agent:
        job = launch(agent, tmp_path / "state", WRITES, run="mute")
    until(lambda: job.read("end.json"), "the end")

    with pytest.raises(UsageError) as caught:
        fetch.command("mute")
    assert str(caught.value) == snapshot

    assert fetch.command("mute", outputs=("*.pt",)) == 0
    assert Path("runs/mute/outputs/here/out/model.pt").exists()


def test_a_run_that_goes_on_is_brought_as_it_is(
    wrote: JobFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect_here() as agent:
        job = launch(agent, tmp_path / "state", WRITES + SLEEPER, run="live", outputs=["*.pt"])
    until(says(job.logs / "launcher.out", "ready"), "the program")

    # What goes on is the newest.
    assert fetch.command() == 0
    assert Path("runs/live/outputs/here/out/model.pt").exists()
    assert "run live goes on" in capsys.readouterr().err


def test_a_training_has_no_outputs(there: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        fetch.command("night", outputs=("*.pt",))
    assert str(caught.value) == snapshot


def test_who_looks_on_to_the_end_is_told_where_outputs_lie(
    wrote: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    attach.command()
    said = capsys.readouterr().out
    stop.command()

    assert "next: yoked fetch try" in capsys.readouterr().out
    assert f"outputs (out/) lie in {wrote.path}/work on ." in said
    assert "next: yoked fetch try" in said


def test_outputs_of_a_run_that_was_followed_come_by_themselves(
    wrote: JobFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(json_mode=False)
    with connect_here() as client:
        record = joined("try", {".": client.call("job_status", run="try")}, {})
        node = SimpleNamespace(host=SimpleNamespace(name="."), client=client)
        started = SimpleNamespace(nodes=(node,), run="try", launch_id=record.launch_id)

        def bring(end: JobEnd) -> outputs.Outputs | None:
            job: Any = SimpleNamespace(started=started, end=end)
            return bring_after(job, open_fleet(None), output, "")

        assert bring(JobEnd(record, detached=True)) is None
        monkeypatch.setattr(outputs, "LIMIT_BYTES", 6)
        assert bring(JobEnd(record)) is None
        assert not Path("runs").exists()
        monkeypatch.setattr(outputs, "LIMIT_BYTES", 7)
        Path("runs").write_text("a file of the person's own")
        assert bring(JobEnd(record)) is None
        Path("runs").unlink()
        came = bring(JobEnd(record))

    assert came is not None
    assert came.lines() == ["runs/try/outputs/here: 1 file, 7 B"]
    assert "still on the hosts: 1 file (7 B) of run try" in capsys.readouterr().err


PROGRAM = {
    "run": "try",
    "trains": False,
    "program": {"argv": ["train.py", "--fast"], "folder": "mine"},
    "hosts": [
        {
            "rank": 0, "name": "here", "address": "127.0.0.1", "interface": "lo", "device": "cpu",
            "python": "/bin/python", "versions": {"python": "3.11.2", "torch": "2.13.0"},
        }
    ],
}  # fmt: skip
SAID = '{"event":"begin","launch_id":"one"}\n'


def test_what_was_said_of_a_program_comes_by_attach_and_by_fetch(
    wrote: JobFolder, tmp_path: Path
) -> None:
    said, here = Path("runs/try/diagnosis.jsonl"), Path("runs/try")
    (wrote.path / said.name).write_text(SAID)
    (wrote.path / "run.json").write_text(json.dumps(PROGRAM))

    attach.command()
    attached = json.loads((here / "result.json").read_text())
    assert said.read_text() == SAID
    said.unlink()
    fetch.command()
    assert said.read_text() == SAID
    written = json.loads((here / "run.json").read_text())
    assert {key: written[key] for key in PROGRAM} == PROGRAM
    assert (written["launch_id"], written["attempt"]) == (wrote.launch_id, 1)
    # Its launcher left no outcome.
    assert (attached["state"], attached["faults"][0]["cause"]) == ("failed", "launcher-died")
    # That of who followed it is more.
    assert json.loads((here / "result.json").read_text()) == attached

    here.rename(tmp_path / "elsewhere")
    here.mkdir()
    (here / "mine").touch()
    attach.command()
    assert [path.name for path in here.iterdir()] == ["mine"]


def test_of_what_is_no_persons_program_no_folder_is_made(wrote: JobFolder) -> None:
    attach.command()

    assert not Path("runs").exists()


def test_the_record_of_a_program_without_outputs_comes_and_which_files_is_asked(
    wrote: JobFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect_here() as agent:
        job = launch(agent, tmp_path / "state", "", run="mute")
    until(lambda: job.read("end.json"), "the end")
    (job.path / "run.json").write_text(json.dumps(PROGRAM))

    with pytest.raises(UsageError, match="which files"):
        fetch.command("mute")

    assert Path("runs/mute/result.json").is_file()
    assert "runs/mute has what was said of run mute" in capsys.readouterr().err


def test_what_was_said_of_a_training_comes_with_its_folder_by_attach(
    wrote: JobFolder, tmp_path: Path
) -> None:
    there = tmp_path / "state/runs/night"
    there.mkdir(parents=True)
    (there / "run.json").write_text("{}")
    with connect_here() as agent:
        job = launch(agent, tmp_path / "state", "", run="night.2", trains="night")
    until(lambda: job.read("end.json"), "the end")
    (job.path / "diagnosis.jsonl").write_text(SAID)

    attach.command("night")

    names = ("run.json", "diagnosis.jsonl", ".yoked-copy.json")
    assert all((Path("runs/night") / name).is_file() for name in names)


def test_clean_says_which_outputs_it_would_remove(
    wrote: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    clean.command("try")

    assert ", with outputs (out/: 2 files, 13 B)" in capsys.readouterr().out
    assert wrote.path.exists()

    clean.command("try", json_output=True)
    (told,) = json.loads(capsys.readouterr().out)["runs"]["."]
    assert told["outputs_there"] == {"files": 2, "size_bytes": 13}
