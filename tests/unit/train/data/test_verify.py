"""Prepared rows against what `dataset.json` says of them."""

import errno
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import DataError
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.dataset import Dataset, load_dataset
from yoked.train.data.progress import NullProgress
from yoked.train.data.verify import RENEW_NS, Verification
from yoked.train.setup import load_data

DEADLINE_S = 60
# Time stamps of files made just now are not trusted yet.
SOON_NS = 10 * 10**9


def soon(later_ns: int = 0) -> int:
    return time.time_ns() + SOON_NS + later_ns


def swap_two_ids(path: Path) -> None:
    """As long as before, and each id below the vocabulary's size, so that it trains."""
    content = bytearray(path.read_bytes())
    content[0:2], content[2:4] = content[2:4], content[0:2]
    path.write_bytes(content)


def unread(data: Dataset, cache: Path, later_ns: int = 0) -> list[str]:
    """Names of files that a start would read at that time."""
    pending = Verification(data, cache, now_ns=lambda: soon(later_ns)).pending
    return [rows.path.name for rows in pending]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_rows_are_compared_where_there_is_no_idle_priority(
    prepared: Dataset, cache: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    swap_two_ids(prepared.folder / "train.rows")
    verification = Verification(load_dataset(prepared.folder), cache)

    verification._in_spare_time()

    assert isinstance(verification.problem, DataError)


@pytest.mark.parametrize("split", ["train", "val"])
def test_changed_ids_are_found_in_spare_time_and_stay_known(
    prepared: Dataset, cache: Path, split: str, snapshot: SnapshotAssertion
) -> None:
    path = prepared.folder / f"{split}.rows"
    swap_two_ids(path)
    verification = Verification(load_dataset(prepared.folder), cache)

    verification.start()
    deadline_s = time.monotonic() + DEADLINE_S
    while verification.problem is None:
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)

    for _ in range(2):
        with pytest.raises(DataError) as caught:
            verification.require_sound()
        assert str(path) in caught.value.what
        assert caught.value.what == snapshot
        assert any(line.startswith("yoked data prepare ") for line in caught.value.fix)


def test_the_end_of_a_run_does_what_spare_time_did_not_suffice_for(
    prepared: Dataset, cache: Path, snapshot: SnapshotAssertion
) -> None:
    swap_two_ids(prepared.train.path)
    verification = Verification(load_dataset(prepared.folder), cache)
    verification.require_sound()

    with pytest.raises(DataError) as caught:
        verification.finish()
    assert str(caught.value) == snapshot


def test_a_person_who_does_not_want_to_wait_for_it_need_not(prepared: Dataset, cache: Path) -> None:
    swap_two_ids(prepared.val.path)
    verification = Verification(load_dataset(prepared.folder), cache)

    verification.finish(give_up=lambda: True)

    assert verification.problem is None
    assert unread(prepared, cache) == ["train.rows", "val.rows"]


def test_a_rank_that_leaves_it_to_another_reads_nothing(prepared: Dataset, cache: Path) -> None:
    swap_two_ids(prepared.train.path)
    verification = Verification(load_dataset(prepared.folder), cache, works=False)

    verification.start()
    verification.finish()

    assert verification.pending == []


def test_a_second_start_reads_nothing_until_seven_days_are_over(
    prepared: Dataset, cache: Path
) -> None:
    before = unread(prepared, cache)

    Verification(prepared, cache, now_ns=soon).finish()

    again = load_dataset(prepared.folder)
    assert before == ["train.rows", "val.rows"]
    assert unread(again, cache) == []
    assert unread(again, cache, RENEW_NS - 3_600 * 10**9) == []
    assert unread(again, cache, RENEW_NS) == ["train.rows", "val.rows"]


def test_a_comparison_in_the_future_is_of_a_clock_that_was_wrong(
    prepared: Dataset, cache: Path
) -> None:
    Verification(prepared, cache, now_ns=lambda: soon(RENEW_NS)).finish()

    assert unread(prepared, cache) == ["train.rows", "val.rows"]


def test_a_file_that_was_just_written_is_not_remembered(prepared: Dataset, cache: Path) -> None:
    written_ns = prepared.train.opened.ctime_ns

    Verification(prepared, cache, now_ns=lambda: written_ns + 10**9).finish()

    assert unread(prepared, cache) == ["train.rows", "val.rows"]


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_another_file_of_the_same_size_and_mtime_is_noticed(
    prepared: Dataset, cache: Path, how: str, snapshot: SnapshotAssertion
) -> None:
    Verification(prepared, cache, now_ns=soon).finish()
    path, before = prepared.train.path, prepared.train.path.stat()
    target = path if how == "in place" else path.with_name("other")
    target.write_bytes(path.read_bytes())
    swap_two_ids(target)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    target.replace(path)

    after = path.stat()
    verification = Verification(load_dataset(prepared.folder), cache, now_ns=soon)

    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert [rows.path.name for rows in verification.pending] == ["train.rows"]
    with pytest.raises(DataError) as caught:
        verification.finish()
    assert str(caught.value) == snapshot


def test_a_file_that_took_the_place_of_the_mapped_one_says_nothing_of_it(
    prepared: Dataset, cache: Path, snapshot: SnapshotAssertion
) -> None:
    path = prepared.train.path
    good = path.read_bytes()
    swap_two_ids(path)
    trained_on = load_dataset(prepared.folder)
    path.with_name("good").write_bytes(good)
    path.with_name("good").replace(path)

    with pytest.raises(DataError) as caught:
        Verification(trained_on, cache).finish()
    assert str(caught.value) == snapshot


def test_another_recorded_sha256_is_compared_anew(prepared: Dataset, cache: Path) -> None:
    Verification(prepared, cache, now_ns=soon).finish()
    manifest = prepared.folder / "dataset.json"
    form = json.loads(manifest.read_text())
    form["val"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(form))

    assert unread(load_dataset(prepared.folder), cache) == ["val.rows"]


@pytest.mark.parametrize(
    "remembered", ["no JSON", "[]", '{"train.rows": []}', '{"train.rows": 1, "val.rows": ["x"]}']
)
def test_a_damaged_memory_only_costs_time(prepared: Dataset, cache: Path, remembered: str) -> None:
    Verification(prepared, cache, now_ns=soon).finish()
    for memory in (cache / "hashes").iterdir():
        memory.write_text(remembered)

    assert unread(prepared, cache) == ["train.rows", "val.rows"]


def test_rows_that_cannot_be_read_any_more_are_named(
    prepared: Dataset, cache: Path, snapshot: SnapshotAssertion
) -> None:
    verification = Verification(load_dataset(prepared.folder), cache)
    prepared.train.path.unlink()

    with pytest.raises(DataError) as caught:
        verification.finish()
    assert str(caught.value) == snapshot


class BesideAnother(Communicator):
    """A second rank says what this one says, but for the recorded sha256 of a split."""

    def __init__(self, field: int) -> None:
        super().__init__()
        self._field = field

    def all_gather_json(self, value: Any, read: Callable[[Any], Any]) -> list[Any]:
        if not isinstance(value, list):
            return [read(value)]
        other = ["attic", *value[1:]]
        other[self._field] = "0" * 64
        return [read(value), read(other)]


@pytest.mark.parametrize("field", [1, 2, 3])
def test_a_host_whose_rows_were_recorded_otherwise_is_named_before_the_first_step(
    prepared: Dataset,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    field: int,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(cache))
    config = TrainConfig(data=prepared.folder.name)

    with pytest.raises(DataError) as caught:
        load_data(config, 16, BesideAnother(field), RankInfo(0, 0, 1, 1), NullProgress())
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("token", [280, 65_535])
def test_an_id_beyond_the_vocabulary_is_an_error_of_the_data(
    prepared: Dataset, token: int, snapshot: SnapshotAssertion
) -> None:
    content = bytearray(prepared.train.path.read_bytes())
    struct.pack_into("<H", content, 2 * 17, token)
    prepared.train.path.write_bytes(content)
    rows = load_dataset(prepared.folder).train

    rows.rows([0])
    with pytest.raises(DataError) as caught:
        rows.rows([0, 1])
    assert str(caught.value) == snapshot
