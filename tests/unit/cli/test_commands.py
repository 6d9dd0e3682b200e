"""The thin commands: what they print for people and for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.cli.commands.data import report_dataset, report_push
from yoked.cli.commands.sample import write
from yoked.cli.main import main
from yoked.cli.output import Output
from yoked.journal import Journal


class Recorder(io.StringIO):
    """Remembers each piece with the moment it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def flush(self) -> None:
        self.flushed.append(self.getvalue())


def test_a_sample_is_written_piece_by_piece() -> None:
    stdout = Recorder()

    write(
        iter([" upon", " a time"]),
        Path("runs/r"),
        5,
        60.0,
        "Once",
        Output(json_mode=False, stdout=stdout),
    )

    assert stdout.flushed == ["Once", "Once upon", "Once upon a time", "Once upon a time\n"]


def test_a_sample_in_json_is_one_object() -> None:
    stdout = io.StringIO()

    output = Output(json_mode=True, stdout=stdout)
    write(iter([" upon", "…"]), Path("runs/r"), 5, 60.0, "Once", output)

    payload = json.loads(stdout.getvalue())
    assert (payload["prompt"], payload["text"]) == ("Once", " upon…")
    assert (payload["step"], payload["saved_s"]) == (5, 60.0)


def test_a_prepared_data_set_says_what_was_kept(snapshot: SnapshotAssertion) -> None:
    stdout = io.StringIO()
    payload = {
        "name": "sotu",
        "source": "sotu",
        "folder": "/cache/sotu-0123",
        "max_seq_len": 512,
        "vocab_size": 26_758,
        "train": {"rows": 4_000, "tokens_kept": 1_980_000, "tokens_dropped": 20_000},
        "val": {"rows": 200},
        "notes": ["asked for 32,768 tokens, the text gave 26,758"],
    }

    report_dataset(payload, Output(json_mode=False, stdout=stdout))

    said = stdout.getvalue()
    assert said == snapshot


def test_data_that_was_sent_is_trained_on_by_the_name_that_hosts_know(
    snapshot: SnapshotAssertion,
) -> None:
    stdout = io.StringIO()
    output = Output(json_mode=False, stdout=stdout)

    report_push(Path("/cache/data/sotu-0123"), 256, {"attic": 0}, output, "")

    assert stdout.getvalue() == snapshot


def test_the_list_shows_what_is_here_and_what_can_be_fetched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["data", "list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["datasets"]

    assert lines[0] == f"{len(entries)} data sets"
    assert [(entry["name"], entry["state"]) for entry in entries] == [
        ("sotu", "embedded"),
        ("climbmix", "available"),
    ]


def test_plot_names_both_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    with Journal(tmp_path / "r" / "metrics.jsonl") as journal:
        journal.append({"attempt": 1, "step": 1, "loss": 9.0, "tokens": [64]})

    status = main(["plot", "r", "--runs-dir", str(tmp_path), "--json"])

    payload = json.loads(capsys.readouterr().out)
    assert status == 0
    assert Path(payload["png"]).is_file()
    assert Path(payload["svg"]).is_file()


def test_report_writes_a_page_and_prints_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, loss in (("day", 9.0), ("night", 8.0)):
        (tmp_path / name).mkdir()
        with Journal(tmp_path / name / "metrics.jsonl") as journal:
            for step in range(30):
                line = {"attempt": 1, "step": step, "loss": loss, "tokens": [64], "dt_s": 0.5}
                journal.append(line)
    flags = ["--runs-dir", str(tmp_path), "--json"]

    status = main(["report", "night", "--against", "day", *flags])

    payload = conforms("report", json.loads(capsys.readouterr().out))
    assert status == 0
    assert payload["page"] == str(tmp_path / "night" / "report.html")
    assert "run night has no end on record" in Path(payload["page"]).read_text()
    assert payload["against"]["loss"]["difference"] == -1.0
    assert payload["tokens_per_second"] == 128.0


def test_a_report_into_a_folder_that_is_not_there_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "night").mkdir()
    with Journal(tmp_path / "night" / "metrics.jsonl") as journal:
        journal.append({"attempt": 1, "step": 0, "loss": 9.0, "tokens": [64]})
    page = tmp_path / "nowhere" / "page.html"

    status = main(["report", "night", "--runs-dir", str(tmp_path), "--out", str(page)])

    said = capsys.readouterr().err
    assert status != 0
    assert "nowhere" in said
    assert "mkdir" in said
