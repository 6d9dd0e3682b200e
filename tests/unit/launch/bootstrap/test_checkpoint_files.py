"""Which files of a checkpoint go to which host; that they arrive: tests/distributed."""

from __future__ import annotations

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
