"""`yoked manifest`: what a command line is taken to mean."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.argv import BARE_FLAGS, split_program
from yoked.cli.commands.manifest import ManifestFlags, Scheduler, command, make, report
from yoked.cli.main import build_app
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError
from yoked.launch.manifests.spec import Manifest


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def slurm(words: str, **flags: Any) -> str:
    return make(words.split(), ManifestFlags(scheduler="slurm", **flags)).text


def kubernetes(words: str, **flags: Any) -> str:
    return make(words.split(), ManifestFlags(scheduler="kubernetes", image="x", **flags)).text


def test_train_gets_its_flags_and_a_way_to_go_on(snapshot: SnapshotAssertion) -> None:
    text = slurm("train --depth 8 --run mine", nodes=2)

    assert text == snapshot
    assert "first_args=(--depth 8 --run mine)\n" in text
    assert "resume_args=(--resume --run mine --runs-dir runs)\n" in text
    assert "run_folder=runs/mine\n" in text


def test_a_run_without_a_name_gets_one_that_all_nodes_and_starts_share() -> None:
    lines = slurm("train --depth 8").splitlines()

    run = next(line.removeprefix("run=") for line in lines if line.startswith("run="))
    assert f"first_args=(--depth 8 --run {run})" in lines


def test_flags_that_a_resumed_run_was_given_hold_in_each_start() -> None:
    text = slurm("train --resume --run mine --num-iterations 900")

    assert "resume_args=(--resume --run mine --num-iterations 900)\n" in text


def test_pods_keep_their_runs_on_the_storage() -> None:
    text = kubernetes("train --depth 8 --run mine", storage="claim")

    assert "if [ -f /yoked/runs/mine/run.json ]; then" in text
    assert 'claimName: "claim"' in text


def test_a_module_and_a_script_are_started_as_they_are(empty_folder: Path) -> None:
    (empty_folder / "fit.py").touch()

    assert "target=(-m -- a.b)\nfirst_args=(--x 1)\n" in slurm("-m a.b --x 1")
    assert "target=(-- fit.py)\nfirst_args=(--x 1)\n" in slurm("fit.py --x 1")


def test_gpus_say_how_many_ranks_a_node_has() -> None:
    assert "ranks_per_node=8\n" in slurm("train", gpus_per_node=8)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("manifest --for slurm train --depth 8", "manifest --for slurm -- train --depth 8"),
        ("manifest --json --for=slurm -m a --x", "manifest --json --for=slurm -- -m a --x"),
        ("manifest --for slurm -- train --json", "manifest --for slurm -- train --json"),
        ("run train.py --lr 3", "run -- train.py --lr 3"),
        ("run --detach --run night train.py --json", "run --detach --run night -- train.py --json"),
        ("run --no-bootstrap -m tool --run x", "run --no-bootstrap -- -m tool --run x"),
        ("run --ranks=2 -- train.py", "run --ranks=2 -- train.py"),
        ("run --no-doctor --fleet f train.py", "run --no-doctor --fleet f -- train.py"),
        ("runs --json", "runs --json"),
        ("launch --help", "launch --help"),
        ("train --depth 8", "train --depth 8"),
    ],
)
def test_the_program_needs_no_dashes_before_it(typed: str, meant: str) -> None:
    assert split_program(typed.split()) == meant.split()


@pytest.mark.parametrize(
    ("scheduler", "words", "flags", "what"),
    [
        ("slurm", "", {}, "no program is named"),
        ("slurm", "-m", {}, "-m names no module"),
        ("slurm", "--depth 8", {}, "--depth stands where a program should"),
        ("slurm", "nowhere.py", {}, "there is no file nowhere.py"),
        ("slurm", "train --deph 8", {}, "--deph"),
        ("slurm", "train --depth=0", {}, "--depth 0 is too small"),
        ("slurm", "train --ranks 2", {}, "--ranks 2 counts processes on one machine"),
        ("slurm", "train --shares 3:1", {"nodes": 3}, "names 2 ranks, but the run has 3"),
        ("slurm", "train --resume", {}, "--resume goes on with the latest run"),
        ("slurm", "train --resume-from-step 5 --run r", {}, "--resume-from-step"),
        ("slurm", "train", {"image": "x"}, "--image means nothing to slurm"),
        (
            "slurm",
            "train",
            {"gpus_per_node": 2, "ranks_per_node": 1},
            "--ranks-per-node says otherwise",
        ),
        ("slurm", "train", {"time": "2h"}, "--time '2h' cannot be meant"),
        ("kubernetes", "train", {"image": None}, "a pod needs an image"),
        ("kubernetes", "train", {"partition": "p"}, "--partition means nothing to kubernetes"),
        ("kubernetes", "train --runs-dir /x", {}, "--runs-dir /x is a folder of a pod"),
    ],
)
def test_what_cannot_be_meant_is_said(
    scheduler: Scheduler, words: str, flags: dict[str, Any], what: str
) -> None:
    pod = {"image": "x"} if scheduler == "kubernetes" else {}
    with pytest.raises(UsageError) as caught:
        make(words.split(), ManifestFlags(scheduler=scheduler, **{**pod, **flags}))

    assert what in caught.value.what
    assert caught.value.fix


def test_the_name_of_a_run_that_is_there_is_refused(
    empty_folder: Path, snapshot: SnapshotAssertion
) -> None:
    folder = empty_folder / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")

    with pytest.raises(UsageError) as caught:
        slurm("train --run mine")
    assert str(caught.value) == snapshot
    assert "--resume" in slurm("train --run mine --resume")


def test_the_text_alone_is_on_stdout_and_notes_are_not(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    flags = ManifestFlags(scheduler="slurm")

    command("train", "--depth", "8", flags=flags)

    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n")
    assert said.err == snapshot


def test_a_file_is_written_and_the_next_command_named(
    empty_folder: Path, snapshot: SnapshotAssertion
) -> None:
    stdout = io.StringIO()
    flags = ManifestFlags(scheduler="kubernetes", output=Path("run.yaml"))

    report(flags, Manifest("job", "text\n"), Output(json_mode=False, stdout=stdout))

    assert (empty_folder / "run.yaml").read_text() == "text\n"
    assert stdout.getvalue() == snapshot

    report(flags, Manifest("job", "more\n"), Output(json_mode=False, stdout=io.StringIO()))
    assert (empty_folder / "run.yaml").read_text() == "more\n"
    assert (empty_folder / "run.yaml.old").read_text() == "text\n"

    report(flags, Manifest("job", "last\n"), Output(json_mode=False, stdout=io.StringIO()))
    assert (empty_folder / "run.yaml.old").read_text() == "text\n"
    assert (empty_folder / "run.yaml.old2").read_text() == "more\n"


def test_a_file_with_a_blank_in_its_name_is_one_word_of_the_next_command(
    empty_folder: Path,
) -> None:
    stdout = io.StringIO()
    flags = ManifestFlags(scheduler="slurm", output=Path("my run.sh"))

    report(flags, Manifest("sbatch", "text\n"), Output(json_mode=False, stdout=stdout))

    assert "next: sbatch 'my run.sh'\n" in stdout.getvalue()


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_holds_a_secret_is_its_owners_alone(empty_folder: Path, there: bool) -> None:
    file = empty_folder / "run.yaml"
    if there:
        file.touch(0o644)

    report(
        ManifestFlags(scheduler="kubernetes", output=Path("run.yaml")),
        Manifest("job", "text\n", holds_secret=True),
        Output(json_mode=False, stdout=io.StringIO()),
    )

    assert (file.read_text(), file.stat().st_mode & 0o777) == ("text\n", 0o600)


def test_programs_get_text_and_files_in_one_object() -> None:
    stdout = io.StringIO()
    flags = ManifestFlags(scheduler="slurm", output=Path("job.sh"))

    report(flags, Manifest("sbatch", "text\n"), Output(json_mode=True, stdout=stdout))

    assert json.loads(stdout.getvalue()) == {
        "for": "slurm",
        "kind": "sbatch",
        "text": "text\n",
        "files": ["job.sh"],
    }


def test_a_file_that_cannot_be_written_is_named(snapshot: SnapshotAssertion) -> None:
    flags = ManifestFlags(scheduler="slurm", output=Path("nowhere/job.sh"))

    with pytest.raises(YokedError) as caught:
        report(flags, Manifest("sbatch", ""), Output(json_mode=False))
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("name", ["run", "manifest"])
def test_every_flag_that_stands_alone_is_known_before_the_parser(name: str) -> None:
    arguments = build_app()[name].assemble_argument_collection()

    switches = {each for argument in arguments if argument.hint is bool for each in argument.names}

    assert "--json" in switches
    assert switches <= set(BARE_FLAGS)
