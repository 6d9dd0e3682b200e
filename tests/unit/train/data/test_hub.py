"""Any data set of the hub, from a hub on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands.train import with_fetched_data
from yoked.cli.main import main
from yoked.cli.output import Output
from yoked.errors import DataError, UsageError
from yoked.train.config import TrainConfig
from yoked.train.data import hub as hub_module
from yoked.train.data.corpus import open_corpus
from yoked.train.data.hub import HubFile, choose_files, fetch_dataset
from yoked.train.data.hub_names import parse_hub_name
from yoked.train.data.prepare import prepare

FIRST, SECOND, CONVERTED = (f"{digit}" * 40 for digit in "1ab")
STORIES = [f"Once upon a time number {n} there was a bear who ate {n} fish." for n in range(60)]


def parquet(texts: list[str], column: str = "text", **more: list[Any]) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({column: texts, **more}), content, row_group_size=20)
    return content.getvalue()


class Hub(ThreadingHTTPServer):
    """A hub with one data set, `me/stories`. commits: by revision; files: by commit and name.

    plain: names of files that are not in LFS. damaged: names that arrive with another content.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits: dict[str, str] = {"main": FIRST}
        self.files: dict[str, dict[str, bytes]] = {FIRST: {}}
        self.plain: set[str] = set()
        self.damaged: set[str] = set()
        self.gets: list[str] = []
        self.asked = 0
        self.tokens: set[str | None] = set()

    def commit_of(self, revision: str) -> str | None:
        return revision if revision in self.files else self.commits.get(revision)

    def etag(self, name: str, content: bytes) -> str:
        if name in self.plain:
            return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.tokens.add(self.headers.get("Authorization"))
        if path.startswith("/api/datasets/me/stories"):
            hub.asked += 1
            revision = path.removeprefix("/api/datasets/me/stories").removeprefix("/revision/")
            return self.tell(hub.commit_of(revision or "main"))
        _, _, rest = path.partition("/datasets/me/stories/resolve/")
        commit, _, name = rest.partition("/")
        content = hub.files.get(commit, {}).get(name)
        if content is None:
            return self.send(404, {"X-Error-Code": "EntryNotFound"}, b"")
        etag = hub.etag(name, content)
        if name in hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if self.command == "GET":
            hub.gets.append(name)
        return self.send(200, {"ETag": f'"{etag}"', "X-Repo-Commit": commit}, content)

    def tell(self, commit: str | None) -> None:
        if commit is None:
            return self.send(404, {"X-Error-Code": "RepoNotFound"}, b"")
        files = self.server.files[commit]
        siblings = [{"rfilename": name, "size": len(files[name])} for name in files]
        told = {"id": "me/stories", "sha": commit, "siblings": siblings, "tags": []}
        return self.send(200, {"Content-Type": "application/json"}, json.dumps(told).encode())

    def send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()


@pytest.fixture
def split(hub: Hub) -> Hub:
    """A data set with two files to train on, one of validation and one of tests."""
    hub.files[FIRST] = {
        "README.md": b"# Stories",
        "data/train-00000-of-00002.parquet": parquet(STORIES[:30]),
        "data/train-00001-of-00002.parquet": parquet(STORIES[30:50]),
        "data/validation-00000-of-00001.parquet": parquet(STORIES[50:55]),
        "data/test-00000-of-00001.parquet": parquet(STORIES[55:]),
    }
    return hub


def texts(named: str, cache: Path) -> dict[str, list[str]]:
    corpus = open_corpus(named, cache=cache)
    return {split: [*corpus.documents(split)] for split in ("train", "val")}


def test_a_data_set_is_fetched_by_its_splits_and_named_by_its_commit(
    split: Hub, tmp_path: Path
) -> None:
    told: list[str] = []

    named = fetch_dataset("hf:me/stories", cache=tmp_path, tell=told.append)

    assert named == f"hf:me/stories@{FIRST}"
    assert texts(named, tmp_path) == {"train": STORIES[:50], "val": STORIES[50:55]}
    assert told[0].startswith(f"hf:me/stories@{FIRST[:12]}: 3 files, ")
    assert split.tokens == {None}


def test_what_is_here_is_taken_without_asking_though_the_branch_moved(
    split: Hub, tmp_path: Path
) -> None:
    fetch_dataset("hf:me/stories", cache=tmp_path)
    split.commits["main"], split.files[SECOND] = SECOND, {"train.parquet": parquet(["new"] * 40)}
    asked = split.asked

    named = fetch_dataset("hf:me/stories", cache=tmp_path)
    assert (named, split.asked) == (f"hf:me/stories@{FIRST}", asked)

    newer = fetch_dataset("hf:me/stories@main", cache=tmp_path)
    assert newer == f"hf:me/stories@{SECOND}"
    assert fetch_dataset("hf:me/stories", cache=tmp_path) == newer
    assert fetch_dataset(named, cache=tmp_path) == named


def test_an_interrupted_download_goes_on_with_the_file_that_is_missing(
    split: Hub, tmp_path: Path
) -> None:
    second = "data/train-00001-of-00002.parquet"
    split.damaged.add(second)
    with pytest.raises(DataError, match="arrived damaged"):
        fetch_dataset("hf:me/stories", cache=tmp_path)
    split.damaged.clear()
    split.gets.clear()

    named = fetch_dataset("hf:me/stories", cache=tmp_path)

    assert split.gets == [second, "data/validation-00000-of-00001.parquet"]
    assert texts(named, tmp_path)["train"] == STORIES[:50]
    assert [path.name for path in (tmp_path / "corpora").iterdir()] == [f"hf-me--stories@{FIRST}-3"]


def test_a_file_that_is_not_in_lfs_is_verified_too(hub: Hub, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in STORIES)
    hub.files[FIRST] = {"train.jsonl": lines.encode()}
    hub.plain.add("train.jsonl")

    named = fetch_dataset("hf:me/stories", cache=tmp_path)
    found = texts(named, tmp_path)
    assert sorted(found["train"] + found["val"]) == sorted(STORIES)

    hub.damaged.add("train.jsonl")
    with pytest.raises(DataError, match="arrived damaged"):
        fetch_dataset("hf:me/stories", cache=tmp_path / "other")


@pytest.mark.parametrize("name", ["../../../../outside/train.jsonl", "TMP/outside/train.jsonl"])
def test_a_name_that_leads_out_of_the_folder_is_no_file_of_the_data_set(
    hub: Hub, tmp_path: Path, name: str
) -> None:
    hub.files[FIRST] = {name.replace("TMP", str(tmp_path)): b'{"text": "theirs"}\n'}

    with pytest.raises(DataError, match="none of its 0 files"):
        fetch_dataset("hf:me/stories", cache=tmp_path / "cache")

    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize("first", [b"[1, 2]", b"5", b"[", b"null"])
def test_a_first_line_that_is_no_object_has_no_column(
    hub: Hub, tmp_path: Path, first: bytes
) -> None:
    hub.files[FIRST] = {"train.jsonl": first + b"\n"}

    with pytest.raises(DataError, match="has no column `text`"):
        fetch_dataset("hf:me/stories", cache=tmp_path / "cache")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("named", [None, "story"])
def test_the_column_of_the_text_is_found_or_named(
    hub: Hub, tmp_path: Path, kind: str, named: str | None
) -> None:
    titles = {"title": ["a title"] * 60} if named else {}
    if kind == "parquet":
        content = parquet(STORIES, "story", stars=[5] * 60, **titles)
    else:
        rows = [
            {"stars": 5, "story": text, **({"title": "t"} if named else {})} for text in STORIES
        ]
        content = "\n".join(map(json.dumps, rows)).encode()
    hub.files[FIRST] = {f"stories.{kind}": content}

    fetched = fetch_dataset("hf:me/stories" + (f":{named}" if named else ""), cache=tmp_path)

    found = texts(fetched, tmp_path)
    assert sorted(found["train"] + found["val"]) == sorted(STORIES)


@pytest.mark.parametrize("column", ["", ":rating", ":stars"])
def test_without_a_column_of_that_name_those_that_there_are_are_told(
    hub: Hub, tmp_path: Path, column: str, snapshot: SnapshotAssertion
) -> None:
    content = parquet(STORIES, "story", title=["a title"] * 60, stars=[5] * 60)
    hub.files[FIRST] = {"stories.parquet": content}

    with pytest.raises(DataError) as refused:
        fetch_dataset(f"hf:me/stories{column}", cache=tmp_path)

    assert str(refused.value) == snapshot


def test_of_several_sets_one_must_be_named(
    hub: Hub, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    hub.files[FIRST] = {
        "short/train.parquet": parquet(STORIES[:20]),
        "long/train.parquet": parquet(STORIES),
    }
    with pytest.raises(DataError) as refused:
        fetch_dataset("hf:me/stories", cache=tmp_path)
    assert str(refused.value) == snapshot

    found = texts(fetch_dataset("hf:me/stories/short", cache=tmp_path), tmp_path)
    assert sorted(found["train"] + found["val"]) == sorted(STORIES[:20])


def test_the_hubs_own_conversion_is_taken_where_there_is_nothing_else(
    hub: Hub, tmp_path: Path
) -> None:
    hub.files[FIRST] = {"stories.csv.gz": b"no text"}
    hub.commits["refs/convert/parquet"] = CONVERTED
    hub.files[CONVERTED] = {"default/train/0000.parquet": parquet(STORIES)}

    assert fetch_dataset("hf:me/stories", cache=tmp_path) == f"hf:me/stories@{CONVERTED}"


def test_a_data_set_without_text_names_what_there_is(
    hub: Hub, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    hub.files[FIRST] = {"images.tar": b"no text", "README.md": b"# Images"}
    with pytest.raises(DataError) as refused:
        fetch_dataset("hf:me/stories", cache=tmp_path)
    assert str(refused.value) == snapshot


def test_so_many_files_are_fetched_as_are_asked_for(split: Hub, tmp_path: Path) -> None:
    named = fetch_dataset("hf:me/stories", shards=1, cache=tmp_path)
    assert texts(named, tmp_path) == {"train": STORIES[:30], "val": STORIES[50:55]}


def test_more_than_a_run_fetches_unasked_is_told_with_its_size(
    split: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MOST_UNASKED_BYTES", 100)
    with pytest.raises(DataError, match="more than is fetched unasked") as refused:
        fetch_dataset("hf:me/stories", cache=tmp_path)
    assert "--shards" in refused.value.fix[0]
    assert split.gets == []


def test_a_data_set_that_is_not_there_and_a_hub_that_is_not_there_are_told(
    split: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="404: it is not there, or not public"):
        fetch_dataset("hf:me/no-stories", cache=tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="cannot be reached") as refused:
        fetch_dataset("hf:me/stories", cache=tmp_path)
    assert "--data sotu" in refused.value.fix[-1]


@pytest.mark.parametrize("name", ["hf:", "hf:a b", "hf:../x", "hf:a/../../etc", "hf:a/b:c:d"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="hf:OWNER/NAME"):
        parse_hub_name(name)


def test_names_survive_reading_and_writing() -> None:
    for text in ("hf:a", "hf:a/b", "hf:a/b/c-d@main", "hf:a/b@v1.0:article text"):
        assert str(parse_hub_name(text)) == text


def test_no_data_set_is_taken_for_another_or_for_a_column_of_one(tmp_path: Path) -> None:
    names = [
        "hf:me/stories",
        "hf:me/stories-tale",
        "hf:me/stories:tale",
        "hf:me/s:a b",
        "hf:me/s:a-b",
    ]
    folders = [parse_hub_name(name).folder_of(tmp_path, FIRST, 1) for name in names]
    for folder in folders:
        folder.mkdir(parents=True)

    assert [parse_hub_name(name).fetched(tmp_path) for name in names] == folders


def test_files_beside_the_data_are_not_read() -> None:
    files = [HubFile(name, 1) for name in ("README.txt", "license.txt", "train.txt", "val.txt")]
    listing = choose_files(parse_hub_name("hf:a/b"), FIRST, files)
    assert [file.name for file in listing.train] == ["train.txt"]
    assert listing.validation is None, "text is held out by its hash"


def test_rows_are_prepared_from_it_and_say_from_which_commit(split: Hub, tmp_path: Path) -> None:
    found = prepare("hf:me/stories", max_seq_len=16, vocab_size=300, cache=tmp_path)

    assert found.info.source == f"hf:me/stories@{FIRST}"
    assert found.info.name == "me--stories"
    assert found.train.num_rows > 0


def test_a_run_gets_the_data_set_by_its_commit_and_its_size_is_told_first(
    split: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path))
    asked = TrainConfig(data="hf:me/stories", depth=2)

    config = with_fetched_data(asked, Output(json_mode=True))

    assert config.data == f"hf:me/stories@{FIRST}"
    assert config.passed == asked.passed
    said = capsys.readouterr()
    assert said.out == ""
    assert "3 files, " in said.err


def test_the_command_line_downloads_and_lists_it(
    split: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path))

    assert main(["data", "download", "hf:me/stories", "--shards", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["shards"]) == (f"hf:me/stories@{FIRST}", 2)

    assert main(["data", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["datasets"]
    assert f"hf-me--stories@{FIRST}-2" in [each["name"] for each in listed]
