"""Which files of a checkpoint go to which host; that they arrive: tests/distributed."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.launch.bootstrap import checkpoint_files
from yoked.launch.bootstrap.checkpoint_files import Listing, Transfer, transfers

A, B = ("0", "/work/ckpt"), ("1", "/work/ckpt")


def test_each_host_gets_once_what_it_lacks_from_the_first_rank_that_has_it() -> None:
    of_a = {".metadata": (5, 90), "__0_0.distcp": (4, 100), "__1_0.distcp": (4, 101)}
    of_b = {"__2_0.distcp": (7, 102)}

    found = transfers([Listing(A, of_a), Listing(A, of_a), Listing(B, of_b), Listing(B, of_b)])

    assert found == [
        Transfer(".metadata", 0, 2, 5, 90),
        Transfer("__0_0.distcp", 0, 2, 4, 100),
        Transfer("__1_0.distcp", 0, 2, 4, 101),
        Transfer("__2_0.distcp", 2, 0, 7, 102),
    ]


def test_a_copy_of_an_earlier_save_is_replaced_also_at_equal_size() -> None:
    found = transfers(
        [Listing(A, {"__0_0.distcp": (9, 100)}), Listing(B, {"__0_0.distcp": (4, 100)})]
    )

    assert found == [Transfer("__0_0.distcp", 0, 1, 9, 100)]


def test_on_a_shared_disk_nothing_is_sent() -> None:
    files = {".metadata": (5, 90), "__0_0.distcp": (4, 100)}

    assert transfers([Listing(A, files), Listing(B, files)]) == []


def test_no_rank_names_a_file_elsewhere() -> None:
    names = ("../x.distcp", "/etc/x.metadata", "a/b.distcp", "train.py", "")

    assert transfers([Listing(A, dict.fromkeys(names, (1, 1))), Listing(B, {})]) == []


def test_a_rank_that_cannot_keep_a_file_takes_all_of_it_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Transfer(".metadata", 0, 1, 5, 90)
    taken: list[int] = []
    monkeypatch.setattr(
        checkpoint_files.dist, "recv", lambda piece, **_: taken.append(piece.numel())
    )
    # What is small is written as the file is closed.
    (tmp_path / "..metadata.part").symlink_to("/dev/full")
    (tmp_path / "file").touch()

    full = checkpoint_files._receive(sent, tmp_path / ".metadata", None)
    no_folder = checkpoint_files._receive(sent, tmp_path / "file" / ".metadata", None)

    assert taken == [90, 90]
    assert full is not None
    assert "No space left on device" in full
    assert no_folder is not None
    assert "File exists" in no_folder
    assert {path.name for path in tmp_path.iterdir()} == {"file"}
