"""Content arrives whole under its hash or not at all, and folders are made of it likewise."""

from __future__ import annotations

import hashlib
import os
import resource
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.agent import environments, files, folders
from yoked.agent.calls import HANDLERS
from yoked.agent.jobfolder import JobFolder
from yoked.agent.server import Call, Server
from yoked.errors import HostError, JobError


def ask(name: str, data: bytes = b"", **args: Any) -> Any:
    with Path(os.devnull).open("rb") as source, Path(os.devnull).open("wb") as sink:
        return HANDLERS[name](Call(1, args, data, Server(source, sink, HANDLERS)))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(*contents: bytes) -> list[str]:
    ask(
        "blobs_put",
        zlib.compress(b"".join(contents)),
        files=[[sha256(content), len(content)] for content in contents],
    )
    return [sha256(content) for content in contents]


def put_tree(*entries: list[Any]) -> str:
    digest = folders.entries_digest(entries)
    data = folders.pack_entries(entries)
    ask("folder_put", data, place="trees", label=digest, keep_blobs=True)
    return digest


def left_behind() -> list[Path]:
    """Files that arrived or were in the making."""
    root = files.blobs_root().parent
    return sorted(path for path in root.rglob("*") if path.is_file() or ".making" in path.name)


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A disk that takes no more: the kernel's EFBIG goes the way of ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_not_here_is_named_with_what_has_arrived() -> None:
    (here,) = put(b"here")
    large = b"x" * 1000
    ask("blob_append", large[:300], digest=sha256(large), offset=0, total=len(large))

    missing = ask("blobs_missing", sizes={here: 4, sha256(large): 1000, sha256(b"new"): 3})

    assert missing == {sha256(large): 300, sha256(b"new"): 0}


def test_small_files_arrive_together_and_cannot_be_written_to() -> None:
    digests = put(b"one", b"", b"three")

    stored = [files.blob_path(digest) for digest in digests]
    assert [path.read_bytes() for path in stored] == [b"one", b"", b"three"]
    assert {path.stat().st_mode & 0o777 for path in stored} == {0o444}


class Synced:
    """Replaces os.fsync. told: what before_sync said at the first call for an inode."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before_sync: Callable[[], object]) -> None:
        self.told: dict[int, object] = {}
        self._before_sync = before_sync
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "sync", self._refuse)

    def _fsync(self, descriptor: int) -> None:
        self.told.setdefault(os.fstat(descriptor).st_ino, self._before_sync())

    def _refuse(self) -> None:
        raise AssertionError("the whole machine would wait for its disks")

    def of(self, path: Path) -> object:
        return self.told[path.stat().st_ino]


def test_what_gets_its_name_is_on_the_disk_before(monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"x" * 1000
    small_name, large_name = (files.blob_path(sha256(content)) for content in (b"small", large))
    synced = Synced(monkeypatch, lambda: [small_name.exists(), large_name.exists()])

    put(b"small")
    ask("blob_append", large, digest=sha256(large), offset=0, total=len(large))

    assert synced.of(small_name) == [False, False]
    assert synced.of(large_name) == [True, False]


def test_a_tree_is_on_the_disk_before_it_gets_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (content,) = put(b"content")
    trees = files.blobs_root().parent / "trees"
    synced = Synced(monkeypatch, lambda: list(trees.glob("[!.]*")))

    digest = put_tree(
        ["a.py", folders.FILE, content, 7],
        ["bin/run", folders.PROGRAM, content, 7],
        ["bin/link", folders.LINK, "run", 0],
    )

    tree = trees / digest
    for path in (tree, tree / "a.py", tree / "bin", tree / "bin" / "run"):
        assert synced.of(path) == [], path


def test_an_environment_is_on_the_disk_before_its_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "lib" / "module.py"
    module.parent.mkdir()
    module.write_text("pass\n")
    (tmp_path / "lib64").symlink_to("lib")
    synced = Synced(monkeypatch, (tmp_path / environments.MARKER).exists)
    with Path(os.devnull).open("rb") as source, Path(os.devnull).open("wb") as sink:
        args = {"requirements": ["torch==2.0"], "build": None}
        call = Call(1, args, b"", Server(source, sink, HANDLERS))

        environments._write_marker(tmp_path, call)

    for path in (tmp_path, module, module.parent, tmp_path / environments.MARKER):
        assert synced.of(path) is False, path


def test_a_file_that_could_not_be_made_durable_gets_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)

    with raises_fault("write-failed"):
        put(b"small")

    assert left_behind() == []


def test_a_small_file_with_other_content_is_refused() -> None:
    with raises_fault("transfer-damaged"):
        ask("blobs_put", zlib.compress(b"bent"), files=[[sha256(b"straight"), 4]])

    assert left_behind() == []


def test_a_large_file_goes_on_from_where_it_was() -> None:
    content = bytes(range(256)) * 40
    order = {"digest": sha256(content), "total": len(content)}
    ask("blob_append", content[:5000], offset=0, **order)

    # Somebody else, who asked at the same time, sends the same piece once more.
    ask("blob_append", content[:5000], offset=0, **order)
    here = ask("blob_append", content[5000:], offset=5000, **order)

    assert here == len(content)
    assert files.blob_path(sha256(content)).read_bytes() == content
    assert left_behind() == [files.blob_path(sha256(content))]


def test_a_piece_whose_predecessor_is_missing_is_not_taken() -> None:
    content = b"0123456789"

    here = ask("blob_append", content[5:], digest=sha256(content), offset=5, total=10)

    assert here == 0
    assert left_behind() == []


def test_a_large_file_that_arrives_damaged_is_thrown_away() -> None:
    content = b"0123456789"

    with raises_fault("transfer-damaged"):
        ask("blob_append", b"9876543210", digest=sha256(content), offset=0, total=10)

    assert left_behind() == []


def test_a_file_that_came_meanwhile_needs_no_more_pieces() -> None:
    (digest,) = put(b"0123456789")

    assert ask("blob_append", b"01234", digest=digest, offset=0, total=10) == 10


def test_a_disk_that_is_too_small_is_named_before_anything_is_sent() -> None:
    with raises_fault("disk-full"):
        ask("blobs_missing", sizes={sha256(b"x"): 10**18})


def test_a_disk_that_fills_up_is_left_as_it_was() -> None:
    small, big = b"s" * 100, b"b" * 10_000

    with (
        files_of_at_most(5000),
        raises_fault("disk-full"),
    ):
        put(small, big)

    assert left_behind() == []


def test_a_large_file_on_a_full_disk_leaves_nothing() -> None:
    content = b"x" * 10_000
    order = {"digest": sha256(content), "total": len(content)}
    ask("blob_append", content[:4000], offset=0, **order)

    with files_of_at_most(5000), raises_fault("disk-full"):
        ask("blob_append", content[4000:], offset=4000, **order)

    assert left_behind() == []


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")

    with raises_fault("write-failed"):
        put(b"content")


def test_a_tree_has_its_files_modes_and_links() -> None:
    same, other = put(b"#!/bin/sh\n", b"text")

    digest = put_tree(
        ["bin/run", folders.PROGRAM, same, 10],
        ["bin/run.txt", folders.FILE, same, 10],
        ["notes", folders.LINK, "bin/run.txt", 0],
        ["deep/er/file", folders.FILE, other, 4],
    )

    tree = Path(ask("folder_here", place="trees", label=digest))
    assert os.access(tree / "bin" / "run", os.X_OK)
    assert (tree / "bin" / "run.txt").stat().st_mode & 0o111 == 0
    assert str((tree / "notes").readlink()) == "bin/run.txt"
    assert (tree / "deep" / "er" / "file").read_bytes() == b"text"


def test_a_tree_is_absent_where_a_file_of_it_is() -> None:
    (here,) = put(b"here")
    entries = [
        ["a", folders.FILE, here, 4],
        ["b", folders.FILE, sha256(b"never came"), 10],
    ]

    with raises_fault("cache-emptied"):
        put_tree(*entries)

    assert ask("folder_here", place="trees", label=folders.entries_digest(entries)) is None
    assert left_behind() == [files.blob_path(here)]


def test_a_tree_on_a_full_disk_is_absent() -> None:
    content = b"x" * 10_000
    put(content)

    with files_of_at_most(5000), raises_fault("disk-full"):
        put_tree(["program", folders.PROGRAM, sha256(content), len(content)])

    assert left_behind() == [files.blob_path(sha256(content))]


def test_two_controllers_make_the_same_tree_at_once() -> None:
    (digest,) = put(b"content")
    entries = [[f"file{number}", folders.FILE, digest, 7] for number in range(50)]
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(put_tree(*entries))) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    tree = Path(ask("folder_here", place="trees", label=folders.entries_digest(entries)))
    assert len(made) == 8
    assert len(list(tree.iterdir())) == 50
    assert list(tree.parent.iterdir()) == [tree]


def test_what_a_killed_agent_left_in_the_making_is_swept_up(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "trees"
    old, young = place / ".making-old", place / ".making-young"
    for folder in (old, young):
        (folder / "sub").mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    (digest,) = put(b"content")

    put_tree(["file", folders.FILE, digest, 7])

    assert not old.exists()
    assert young.exists()


def test_a_folder_whose_blobs_are_not_kept_is_all_that_there_is() -> None:
    (digest,) = put(b"rows")
    data = folders.pack_entries([["train.rows", folders.FILE, digest, 4]])

    folder = Path(ask("folder_put", data, place="data", label="sotu-1", keep_blobs=False))

    assert (folder / "train.rows").read_bytes() == b"rows"
    assert left_behind() == [folder / "train.rows"]


@pytest.fixture
def checked_out(tmp_path: Path) -> Path:
    """A copy of a tree with a program, a file and a link."""
    program, text = put(b"#!/bin/sh\n", b"text")
    digest = put_tree(
        ["sub/run", folders.PROGRAM, program, 10],
        ["file", folders.FILE, text, 4],
        ["link", folders.LINK, "file", 0],
    )
    tree = Path(ask("folder_here", place="trees", label=digest))
    (tree / "__pycache__").mkdir()
    work = tmp_path / "job" / "work"
    folders.checkout_tree(digest, work)
    return work


def test_a_job_writes_into_its_copy_alone(checked_out: Path) -> None:
    with (checked_out / "link").open("a") as file:
        file.write(" and more")

    assert (checked_out / "file").read_text() == "text and more"
    assert files.blob_path(sha256(b"text")).read_bytes() == b"text"
    assert os.access(checked_out / "sub" / "run", os.X_OK)
    assert not (checked_out / "__pycache__").exists()


def test_a_folder_that_is_there_is_not_written_over(checked_out: Path) -> None:
    with raises_fault("folder-taken"):
        folders.checkout_tree("0" * 64, checked_out)


def test_a_tree_that_is_gone_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(HostError) as caught:
        folders.checkout_tree("0" * 64, tmp_path / "work")
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "entry",
    [["../out", "file"], ["/etc/out", "file"], ["a/../../out", "link"]],
)
def test_nothing_is_placed_outside_of_its_folder(
    entry: list[str], snapshot: SnapshotAssertion
) -> None:
    (digest,) = put(b"content")

    with pytest.raises(HostError) as caught:
        put_tree([*entry, digest, 7])
    assert str(caught.value) == snapshot

    assert left_behind() == [files.blob_path(digest)]


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("folder_here", {"place": "../..", "label": "0" * 64}),
        ("folder_here", {"place": "trees", "label": "../../../etc"}),
        ("blobs_missing", {"sizes": {"../../../../etc/passwd": 1}}),
        ("environment", {"digest": "../../x", "configured": None}),
    ],
)
def test_what_would_lead_out_of_a_cache_is_refused(
    call: str, args: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(HostError) as caught:
        ask(call, **args)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("name", ["../key", "/etc/key", "a/b", "", ".."])
def test_a_private_file_of_a_job_is_in_its_folder(
    name: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(JobError) as caught:
        JobFolder(tmp_path).write_private(name, "secret")
    assert str(caught.value) == snapshot

    assert list(tmp_path.iterdir()) == []
