"""nanochat's shards from the Hugging Face hub: resumed, verified, then given their name.

The hub's own client finds a file and its sha256; the bytes are kept in a partial file of ours,
because the client (2.x) throws away what it had when a download is interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from yoked.core.fs import sync_folder
from yoked.errors import DataError, UsageError
from yoked.paths import cache_root, private_folder
from yoked.train.data.corpus import (
    CLIMBMIX,
    CLIMBMIX_LAST_SHARD,
    climbmix_folder,
    climbmix_name,
)
from yoked.train.data.files import require_space, writing_to
from yoked.train.data.locks import exclusive
from yoked.train.data.progress import ProgressSink, Silent

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

REPOSITORY = "karpathy/climbmix-400b-shuffle"
DEFAULT_ENDPOINT = "https://huggingface.co"
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class _Remote:
    """A file on the hub at one commit."""

    name: str
    url: str
    size_bytes: int
    sha256: str


class _BrokenTransferError(Exception):
    """The connection broke, or brought nothing for a while."""


def download(
    name: str,
    *,
    shards: int,
    cache: Path | None = None,
    progress: ProgressSink | None = None,
    retry_wait_s: float = 1.0,
) -> Path:
    """Fetch the first `shards` shards of a data set and its validation shard; gives the folder.

    Files that are there are not fetched again; one that was interrupted goes on where it was.
    The hub's address is `$HF_ENDPOINT` where that is set. No login is used or sent.
    retry_wait_s: wait before the second attempt to reach the hub; doubles with each further one.
    Raises DataError: unknown data set, no connection, no such file, damaged on the way, disk full.
    """
    if name != CLIMBMIX:
        raise DataError(
            f"{name}: no data set of this name can be downloaded",
            fix=f"yoked data download {CLIMBMIX} --shards 8",
        )
    if not 1 <= shards <= CLIMBMIX_LAST_SHARD:
        raise UsageError(
            f"{CLIMBMIX} has {CLIMBMIX_LAST_SHARD:,} shards for training, not {shards:,}",
            fix=f"--shards 1 to {CLIMBMIX_LAST_SHARD}",
        )
    root, sink = cache or cache_root(), progress or Silent()
    folder = climbmix_folder(root)
    hub = _Hub(os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT, retry_wait_s)
    with (
        exclusive(root / "locks" / f"download-{name}.lock", sink) as beating,
        writing_to(folder),
    ):
        private_folder(folder)
        incoming = folder.with_name(f".incoming-{name}")
        incoming.mkdir(exist_ok=True)
        # Validation first: without it the others are of no use.
        for index in (CLIMBMIX_LAST_SHARD, *range(shards)):
            target = folder / climbmix_name(index)
            if not target.exists():
                _fetch(hub, target, incoming, beating)
        with contextlib.suppress(OSError):
            incoming.rmdir()
    return folder


def _fetch(hub: _Hub, target: Path, incoming: Path, progress: ProgressSink) -> None:
    """One file, verified before it gets its name."""
    remote = hub.find(target.name)
    # Another version of the file begins anew.
    partial = incoming / f"{remote.name}.{remote.sha256[:16]}.part"
    for stale in set(incoming.glob(f"{remote.name}.*")) - {partial}:
        stale.unlink()
    have_bytes = partial.stat().st_size if partial.exists() else 0
    missing_bytes = remote.size_bytes - have_bytes
    require_space(incoming, missing_bytes)
    with writing_to(incoming, missing_bytes), partial.open("a+b") as file:
        digest = hub.complete(remote, file, progress)
        os.fsync(file.fileno())
    if digest != remote.sha256:
        partial.unlink()
        raise DataError(
            f"{remote.url} arrived damaged: its sha256 is {digest}, the hub says {remote.sha256}. "
            "Nothing of it was kept.",
            fix="run the same command again; if it happens again, a proxy may change the files",
        )
    partial.replace(target)
    sync_folder(target.parent)


class _Hub:
    """The hub's files, by way of its client."""

    def __init__(self, endpoint: str, retry_wait_s: float) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._retry_wait_s = retry_wait_s

    def find(self, name: str) -> _Remote:
        """Where a file is, how long, and its sha256."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        def url_at(revision: str) -> str:
            return hf_hub_url(
                REPOSITORY,
                name,
                repo_type="dataset",
                revision=revision,
                endpoint=self._endpoint,
            )

        url = url_at("main")
        with self._explained(url):
            found = get_hf_file_metadata(
                url, token=False, timeout=_TIMEOUT_S, endpoint=self._endpoint
            )
        return self._checked(name, url, url_at(found.commit_hash or "main"), found)

    def _checked(self, name: str, asked: str, url: str, found: HfFileMetadata) -> _Remote:
        if found.size is None or found.etag is None or not _SHA256.fullmatch(found.etag):
            raise DataError(
                f"{asked}: the server gives no size and sha256 (etag {found.etag}, size "
                f"{found.size}), so the file could not be verified",
                fix="set HF_ENDPOINT to a server that speaks the hub's protocol, or unset it",
            )
        return _Remote(name, url, found.size, found.etag)

    def complete(self, remote: _Remote, file: BinaryIO, progress: ProgressSink) -> str:
        """Append what is missing; gives the sha256 of the whole. `file` is open for a+b."""
        digest = hashlib.sha256()
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        fruitless = 0
        while (have_bytes := file.tell()) < remote.size_bytes:
            try:
                digest = self._append(remote, file, digest, progress)
            except _BrokenTransferError as interruption:
                fruitless = 0 if file.tell() > have_bytes else fruitless + 1
                if fruitless == _ATTEMPTS:
                    raise _unreachable(remote.url, interruption.__cause__) from interruption
                time.sleep(self._retry_wait_s * 2**fruitless)
        return digest.hexdigest()

    def _append(
        self, remote: _Remote, file: BinaryIO, digest: hashlib._Hash, progress: ProgressSink
    ) -> hashlib._Hash:
        """One request for what is missing. Raises _BrokenTransferError when it breaks off."""
        from huggingface_hub import get_session

        have_bytes = file.tell()
        # A compressed answer would have neither the size nor the sha256.
        headers = {"Range": f"bytes={have_bytes}-", "Accept-Encoding": "identity"}
        try:
            with get_session().stream(
                "GET", remote.url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
            ) as response:
                if response.status_code >= 500 or response.status_code == 429:
                    raise _BrokenTransferError from _status_error(response)
                if response.status_code not in (200, 206):
                    raise _unreachable(remote.url, _status_error(response))
                if response.status_code == 200 and have_bytes:
                    # The server begins at the start, whatever was asked for.
                    file.truncate(0)
                    digest = hashlib.sha256()
                # As they arrive: chunks of a given size would lose an unfinished one at a break.
                for chunk in response.iter_bytes():
                    file.write(chunk)
                    digest.update(chunk)
                    progress.update(
                        f"downloading {remote.name}", file.tell(), remote.size_bytes, "bytes"
                    )
        except _network_errors() as error:
            raise _BrokenTransferError from error
        finally:
            file.flush()
        return digest

    @contextlib.contextmanager
    def _explained(self, url: str) -> Iterator[None]:
        try:
            yield
        except _network_errors() as error:
            raise _unreachable(url, error) from error


def _status_error(response: Any) -> OSError:
    return OSError(f"the server answered {response.status_code} {response.reason_phrase}")


def _network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises when the network fails.

    The client changed the HTTP library beneath it between its versions 1 and 2, but its own
    error always derives from that library's base class.
    """
    from huggingface_hub.errors import HfHubHTTPError

    library: list[type[Exception]] = [k for k in HfHubHTTPError.__bases__ if k is not OSError]
    # HF_HUB_OFFLINE makes the client raise a ConnectionError.
    return (*library, ConnectionError, TimeoutError)


def _unreachable(url: str, error: BaseException | None) -> DataError:
    response = getattr(error, "response", None)
    if response is not None and response.status_code in (401, 403, 404):
        return DataError(
            f"{url}: the hub answered {response.status_code}: there is no such file, or it is "
            "not public",
            fix="check HF_ENDPOINT if you set it; otherwise the data set has moved: see whether "
            "there is a newer yoked",
        )
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(
        f"{url} cannot be reached: {why}",
        fix=(
            "check the connection, and HF_ENDPOINT, HF_HUB_OFFLINE and proxy settings if set",
            "then run the same command again: it goes on where it was",
            "offline, train on the embedded corpus: yoked train --data sotu",
        ),
    )
