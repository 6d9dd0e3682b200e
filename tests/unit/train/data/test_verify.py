"""Prepared rows are compared with their recorded SHA-256, once, beside a run."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from yoked.errors import DataError
from yoked.train.data import verify
from yoked.train.data.dataset import Dataset, load_dataset
from yoked.train.data.prepare import prepare
from yoked.train.data.verify import Verification

DAY_S = 86_400.0


@pytest.fixture
def prepared(tmp_path: Path, cache: Path) -> Dataset:
    lines = [json.dumps({"text": f"the {number} oxen pull {number}"}) for number in range(200)]
    (tmp_path / "farm.jsonl").write_text("\n".join(lines))
    found = prepare(str(tmp_path / "farm.jsonl"), max_seq_len=16, vocab_size=280, cache=cache)
    settle(found)
    return found


@pytest.fixture(autouse=True)
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read, in their order."""
    names: list[str] = []
    start = subprocess.Popen

    def popen(argv: list[str], **how: object) -> subprocess.Popen[bytes]:
        names.extend(Path(word).name for word in argv if word.endswith(".rows"))
        return start(argv, **how)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(verify.subprocess, "Popen", popen)
    return names


def settle(dataset: Dataset) -> None:
    """Files that were just written are not trusted by their times."""
    while time.time_ns() - dataset.train.path.stat().st_ctime_ns <= verify.SETTLED_NS:
        time.sleep(0.05)


def verified(folder: Path) -> None:
    """Verify to the end."""
    verification = Verification(load_dataset(folder))
    try:
        verification.start()
        to_the_end(verification)
    finally:
        verification.close()


def to_the_end(verification: Verification) -> None:
    while not verification.over:
        verification.check()
        time.sleep(0.01)


def change_the_last_token(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2:] = bytes([1, 0]) if content[-2] != 1 else bytes([2, 0])
    path.write_bytes(content)


@pytest.mark.parametrize("split", ["train", "val"])
def test_changed_ids_are_an_error_that_names_the_file_and_prepares_it_again(
    prepared: Dataset, split: str
) -> None:
    path = prepared.folder / f"{split}.rows"
    change_the_last_token(path)

    with pytest.raises(DataError, match=rf"{split}\.rows is damaged: its sha256") as caught:
        verified(prepared.folder)

    assert any("yoked data prepare" in line for line in caught.value.fix)


def test_what_was_good_is_read_once(prepared: Dataset, read_files: list[str]) -> None:
    verified(prepared.folder)
    first = list(read_files)
    verified(prepared.folder)

    assert first == ["train.rows", "val.rows"]
    assert read_files == first


def test_what_was_good_is_read_anew_after_a_week(
    prepared: Dataset, read_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verified(prepared.folder)
    now_s = time.time()
    read_files.clear()

    monkeypatch.setattr(verify.time, "time", lambda: now_s + 6.9 * DAY_S)
    verified(prepared.folder)
    within = list(read_files)
    monkeypatch.setattr(verify.time, "time", lambda: now_s + 7.1 * DAY_S)
    verified(prepared.folder)

    assert (within, read_files) == ([], ["train.rows", "val.rows"])


def test_a_file_that_was_replaced_by_one_of_the_same_size_and_time_is_read_anew(
    prepared: Dataset,
) -> None:
    verified(prepared.folder)
    path = prepared.folder / "train.rows"
    before = path.stat()
    change_the_last_token(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(DataError, match=r"train\.rows is damaged"):
        verified(prepared.folder)


def test_a_file_whose_recorded_digest_was_changed_is_read_anew(prepared: Dataset) -> None:
    verified(prepared.folder)
    path = prepared.folder / "dataset.json"
    form = json.loads(path.read_text())
    form["train"]["sha256"] = "0" * 64
    path.write_text(json.dumps(form))

    with pytest.raises(DataError, match=r"train\.rows is damaged"):
        verified(prepared.folder)


def test_a_file_that_cannot_be_read_is_named(prepared: Dataset) -> None:
    verification = Verification(prepared)
    prepared.val.path.unlink()

    verification.start()
    with pytest.raises(DataError, match=r"val\.rows is damaged: it cannot be read: No such file"):
        to_the_end(verification)


def test_a_run_that_ends_first_leaves_no_process_and_no_memory(
    prepared: Dataset, read_files: list[str]
) -> None:
    verification = Verification(prepared)
    verification.start()
    process = verification._process
    verification.close()

    assert process is not None
    assert process.returncode is not None
    verified(prepared.folder)
    assert read_files == ["train.rows", "val.rows"] * 2


def test_a_reader_that_was_killed_is_no_verdict(prepared: Dataset) -> None:
    verification = Verification(prepared)
    verification.start()
    assert verification._process is not None
    verification._process.kill()
    verification._process.wait()

    verification.check()

    assert verification.over


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux")
def test_the_reader_gives_way_to_the_run_and_is_taken_for_no_rank(
    prepared: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    # Nobody writes to it: the reader waits.
    prepared.train.path.unlink()
    os.mkfifo(prepared.train.path)
    verification = Verification(prepared)
    verification.start()
    try:
        assert verification._process is not None
        pid = verification._process.pid
        while b"\0-S\0" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.01)
        while os.sched_getscheduler(pid) != os.SCHED_IDLE:
            time.sleep(0.01)
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        verification.close()

    assert b"RANK=" not in environment
