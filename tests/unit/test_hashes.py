"""Hashes of files that are kept from one command to the next."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from yoked import hashes
from yoked.errors import DataError
from yoked.hashes import SETTLED_NS, KeptHashes, Stamp, kept_hashes

LONG_NS = 3_600 * 10**9


class Data:
    """A folder with one file, its cache, and the names of files that were read."""

    def __init__(self, root: Path, read: list[str]) -> None:
        self.folder, self.cache, self.read = root / "data", root / "cache", read
        self.folder.mkdir()
        self.file = self.folder / "a.bin"
        self.file.write_bytes(b"first")

    def kept(self, later_ns: int = LONG_NS) -> KeptHashes:
        return KeptHashes(self.folder, self.cache, now_ns=lambda: time.time_ns() + later_ns)

    def hash_of(self, later_ns: int = LONG_NS) -> str:
        """As a command of that time finds it."""
        kept = self.kept(later_ns)
        found = kept.of(self.file)
        kept.save()
        return found

    @property
    def saved(self) -> dict[str, list[int | str]]:
        (path,) = (self.cache / "hashes").iterdir()
        found: dict[str, list[int | str]] = json.loads(path.read_bytes())
        return found


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    read: list[str] = []
    sha256_of = hashes.sha256_of

    def counted(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(hashes, "sha256_of", counted)
    return Data(tmp_path, read)


def test_a_file_that_has_not_changed_is_read_once(data: Data) -> None:
    found = [data.hash_of(), data.hash_of()]

    assert found == [sha256(b"first").hexdigest()] * 2
    assert data.read == ["a.bin"]


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_another_content_of_the_same_size_and_date_is_noticed(data: Data, how: str) -> None:
    data.hash_of()
    before = data.file.stat()
    target = data.file if how == "in place" else data.folder / "other"
    target.write_bytes(b"other")
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    target.replace(data.file)

    assert data.hash_of() == sha256(b"other").hexdigest()


@pytest.mark.parametrize("field", ["device", "inode"])
def test_a_file_on_another_disk_or_with_another_inode_is_another_file(
    data: Data, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    # All times alike: a copy of a whole disk, or a file system with a coarse clock, such as FAT.
    stamp = Stamp.of(data.file)
    data.hash_of()
    data.file.write_bytes(b"other")
    other = stamp._replace(**{field: getattr(stamp, field) + 1})
    monkeypatch.setattr(Stamp, "of", lambda file: other)

    assert data.hash_of() == sha256(b"other").hexdigest()


def test_a_file_is_settled_by_the_time_at_which_it_was_begun_to_be_read(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To read 100 GB takes longer than any file needs to settle.
    changed_ns = Stamp.of(data.file).ctime_ns
    times = iter([changed_ns + SETTLED_NS, changed_ns + LONG_NS])
    kept = KeptHashes(data.folder, data.cache, now_ns=lambda: next(times, changed_ns + LONG_NS))

    kept.of(data.file)
    kept.save()
    data.hash_of()

    assert data.read == ["a.bin", "a.bin"]


def test_a_file_that_changes_while_it_is_read_has_no_hash(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grows(path: Path) -> str:
        with path.open("ab") as file:
            file.write(b" and more")
        return "0" * 64

    monkeypatch.setattr(hashes, "sha256_of", grows)

    with (
        pytest.raises(DataError, match=r"a\.bin changed while it was read"),
        kept_hashes(data.folder, data.cache) as kept,
    ):
        kept.of(data.file)
    assert not (data.cache / "hashes").exists()


def test_what_was_read_before_an_interruption_is_kept(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", -LONG_NS)

    def interrupted() -> None:
        with kept_hashes(data.folder, data.cache) as kept:
            kept.of(data.file)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert list(data.saved) == ["a.bin"]


def test_much_is_saved_before_the_end(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "_SAVE_EVERY_BYTES", 5)

    data.kept().of(data.file)

    assert list(data.saved) == ["a.bin"]


def test_what_another_command_saved_meanwhile_stays(data: Data) -> None:
    (data.folder / "b.bin").write_bytes(b"second")
    first, second = data.kept(), data.kept()
    first.of(data.file)
    second.of(data.folder / "b.bin")

    first.save()
    second.save()

    assert sorted(data.saved) == ["a.bin", "b.bin"]


def test_of_a_file_that_is_gone_nothing_is_kept(data: Data) -> None:
    data.hash_of()
    data.file.rename(data.folder / "b.bin")
    data.file = data.folder / "b.bin"

    data.hash_of()

    assert list(data.saved) == ["b.bin"]


def test_one_file_is_its_own_folder(data: Data) -> None:
    for _ in range(2):
        kept = KeptHashes(data.file, data.cache, now_ns=lambda: time.time_ns() + LONG_NS)
        kept.of(data.file)
        kept.save()

    assert data.read == ["a.bin"]


@pytest.mark.parametrize(
    "saved", ["no JSON", "[]", '{"a.bin": 3}', '{"a.bin": []}', '{"a.bin": [1, 2, 3, 4, 5, 6, 7]}']
)
def test_a_cache_that_is_damaged_only_costs_time(data: Data, saved: str) -> None:
    data.hash_of()
    (path,) = (data.cache / "hashes").iterdir()
    path.write_text(saved)

    assert data.hash_of() == sha256(b"first").hexdigest()


def test_a_hash_of_another_kind_is_none(data: Data) -> None:
    data.hash_of()
    (path,) = (data.cache / "hashes").iterdir()
    entry = data.saved["a.bin"]
    path.write_text(json.dumps({"a.bin": [*entry[:5], None, entry[6]]}))

    assert data.hash_of() == sha256(b"first").hexdigest()


def test_a_hash_is_renewed_after_a_time_and_where_its_time_is_to_come(data: Data) -> None:
    data.hash_of(2 * LONG_NS)

    def known(later_ns: int) -> bool:
        kept = data.kept(2 * LONG_NS + later_ns)
        return kept.known(data.file, Stamp.of(data.file), renew_ns=LONG_NS) is not None

    assert [known(0), known(LONG_NS // 2), known(2 * LONG_NS), known(-LONG_NS)] == [
        *(True, True, False, False)
    ]


def test_a_cache_that_takes_nothing_is_no_failure(data: Data) -> None:
    data.cache.write_text("a file in the place of the folder")

    assert data.hash_of() == sha256(b"first").hexdigest()
