"""Where `yoked report` and `yoked trace` write, and what they leave as it is."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.run_folders import write_run

from yoked.cli.main import main
from yoked.core.fs import write_bytes

Said = dict[str, Any]


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Said]]:
    """Runs `yoked report` about runs/night of an empty folder; its status and JSON."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "night", steps=4)

    def run(*words: str) -> tuple[int, Said]:
        status = main(["report", "night", *words, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def made(kind: str, at: Path) -> None:
    if kind == "a folder":
        at.mkdir()
    elif kind == "a named pipe":
        os.mkfifo(at)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(at.name)
    else:
        at.symlink_to("/dev/full")


@pytest.mark.parametrize("kind", ["a folder", "a named pipe", "a socket", "a device"])
def test_what_is_no_regular_file_is_left_as_it_is(report: Any, tmp_path: Path, kind: str) -> None:
    made(kind, tmp_path / "odd")
    before = (tmp_path / "odd").lstat()

    status, said = report("--out", "odd")

    assert (status, said["error"]["code"]) == (2, "usage")
    assert said["error"]["what"] == f"--out odd: this is {kind}, and a file is to be written"
    instead = "odd/report.html" if kind == "a folder" else "report.html"
    assert said["error"]["fix"] == [f"--out {instead}"]
    assert (tmp_path / "odd").lstat().st_ino == before.st_ino


def test_a_link_is_followed(report: Any, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "old.html").write_text("old")
    for link, target in (("there", "old.html"), ("new", "pages/new.html"), ("lost", "no/x.html")):
        (tmp_path / link).symlink_to(target)

    there, new, lost = (report("--out", link) for link in ("there", "new", "lost"))

    assert (there[0], new[0], lost[0]) == (0, 0, 2)
    assert there[1]["page"] == "there"
    for link in ("there", "new"):
        assert (tmp_path / link).is_symlink()
        assert "yoked report" in (tmp_path / link).read_text()
    assert lost[1]["error"]["fix"] == [f"mkdir -p {tmp_path}/no"]


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "checkpoints/model.pt"])
def test_files_of_a_run_are_left_as_they_are(
    report: Any, tmp_path: Path, name: str, link: bool
) -> None:
    file = tmp_path / "runs" / "night" / name
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        file.write_text("weights")
    before = file.read_bytes()
    if link:
        (tmp_path / "link.html").symlink_to(file)

    status, said = report("--out", "link.html" if link else f"runs/night/{name}")

    assert status == 2
    assert f"a file of run night, in {tmp_path}/runs/night, and stays" in said["error"]["what"]
    assert said["error"]["fix"][0].startswith("--out report.html ")
    assert file.read_bytes() == before


def test_an_earlier_report_a_new_name_and_a_file_elsewhere_are_written(
    report: Any, tmp_path: Path
) -> None:
    (tmp_path / "page").write_text("mine")

    statuses = [
        report(*words)[0]
        for words in (
            (),
            (),
            ("--out", "runs/night/report.html"),
            ("--out", "runs/night/page.html"),
            ("--out", "page"),
        )
    ]

    unborn, said = report("--out", "runs/night/result.json2")
    assert statuses == [0, 0, 0, 0, 0]
    assert "yoked report" in (tmp_path / "page").read_text()
    assert (unborn, "of run night" in said["error"]["what"]) == (2, True)
    assert not [each for each in tmp_path.rglob(".*") if each.name.endswith(".tmp")]


def test_a_place_where_no_file_can_be_made_is_told_without_a_traceback(report: Any) -> None:
    status, said = report("--out", "/proc/x.html")
    empty = report("--out", "")

    assert (status, said["error"]["code"]) == (2, "usage")
    assert said["error"]["what"].startswith("--out /proc/x.html cannot be written: ")
    assert said["error"]["fix"][0].startswith("--out report.html ")
    assert (empty[0], empty[1]["error"]["fix"]) == (2, ["--out report.html"])


def test_a_run_in_a_folder_that_takes_no_file_names_the_page_and_another_place(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "runs" / "night" / "report.html"
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT and Path(path).parent == page.parent.relative_to(tmp_path):
            # Also where root runs this.
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)

    status, said = report()

    assert (status, said["error"]["code"]) == (1, "write-failed")
    what = "runs/night/report.html cannot be written: Permission denied"
    assert said["error"]["what"] == what
    assert said["error"]["fix"] == [
        "--out report.html    writes it into this folder",
        "ls -ld runs/night    there shows whose it is",
    ]


def test_a_link_that_came_with_a_runs_folder_is_not_followed(report: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "runs" / "night" / "report.html").symlink_to(tmp_path / "mine")

    status, said = report()

    assert (status, (tmp_path / "mine").read_text()) == (2, "mine")
    assert said["error"]["what"].startswith("runs/night/report.html is a link: ")


@pytest.mark.parametrize("out", ["odd", "", "/proc/x.gz", "runs/night/metrics.jsonl"])
def test_a_trace_is_refused_such_a_file_before_a_host_is_asked(
    report: Any,
    tmp_path: Path,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del report
    (tmp_path / "odd").mkdir()
    monkeypatch.setattr("yoked.cli.commands.trace.open_fleet", lambda _: pytest.fail("asked"))

    status = main(["trace", "night", "--out", out, "--json"])

    said = json.loads(capsys.readouterr().out)["error"]
    assert (status, said["code"]) == (2, "usage")
    assert "trace.json.gz" in said["fix"][0]


def test_a_failed_write_names_the_file_and_not_its_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    gone = tmp_path / "gone" / "page.html"

    with pytest.raises(FileNotFoundError) as no_folder:
        write_bytes(gone, b"")
    with pytest.raises(IsADirectoryError) as replaced:
        write_bytes(tmp_path / "folder", b"")

    assert no_folder.value.filename == str(gone)
    assert str(replaced.value).endswith(f"Is a directory: '{tmp_path / 'folder'}'")
