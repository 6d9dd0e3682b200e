"""Files from the Hugging Face hub by its own client, each verified; and nanochat's shards."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.core.fs import sha256_of, sync_path
from yoked.errors import DataError, UsageError
from yoked.paths import cache_root, private_folder
from yoked.train.data.corpus import (
    CLIMBMIX,
    CLIMBMIX_LAST_SHARD,
    climbmix_folder,
    climbmix_name,
)
from yoked.train.data.files import require_space, writing_to
from yoked.train.data.locks import file_lock
from yoked.train.data.progress import NullProgress, ProgressSink

REPOSITORY = "karpathy/climbmix-400b-shuffle"
DEFAULT_ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 30.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Of files that are not in LFS the hub tells git's.
_GIT_BLOB = re.compile(r"[0-9a-f]{40}")


def download(
    name: str, *, shards: int, cache: Path | None = None, progress: ProgressSink | None = None
) -> Path:
    """Fetch the first `shards` shards of a data set and its validation shard; returns the folder.

    Shards that exist are not fetched again. `$HF_ENDPOINT` replaces the hub's address. No login is
    used or sent.
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
    root = cache or cache_root()
    folder = climbmix_folder(root)
    incoming = folder.with_name(f".incoming-{name}")
    lock = root / "locks" / f"download-{name}.lock"
    with file_lock(lock, progress or NullProgress()) as beating, writing_to(folder):
        private_folder(folder)
        # Validation first: without it the others are of no use.
        for index in (CLIMBMIX_LAST_SHARD, *range(shards)):
            target = folder / climbmix_name(index)
            if target.exists():
                continue
            # A download that was killed leaves a part that the client does not take up again.
            shutil.rmtree(incoming, ignore_errors=True)
            try:
                stage = f"downloading {target.name}"
                fetch_file(REPOSITORY, target.name, "main", target, incoming, stage, beating)
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
    return folder


def hub_endpoint() -> str:
    """The hub's address: `$HF_ENDPOINT`, or its own. Call it before the client is imported."""
    # The client tells the hub which libraries are here, unless this is set before it is imported.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def fetch_file(
    repository: str,
    name: str,
    revision: str,
    target: Path,
    incoming: Path,
    stage: str,
    progress: ProgressSink,
) -> None:
    """Download a file of a data set into `incoming`, verify it, and move it to `target`.

    name: of the file in the repository. stage: for the progress.
    """
    endpoint = hub_endpoint()
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    private_folder(incoming)
    url = hf_hub_url(repository, name, repo_type="dataset", revision=revision, endpoint=endpoint)
    with explained(url):
        remote = get_hf_file_metadata(url, token=False, timeout=TIMEOUT_S, endpoint=endpoint)
    etag = remote.etag or ""
    if remote.size is None or not (_SHA256.fullmatch(etag) or _GIT_BLOB.fullmatch(etag)):
        raise DataError(
            f"{url}: the server gives no size and hash (etag {remote.etag}, size "
            f"{remote.size}), so the file could not be verified",
            fix="set HF_ENDPOINT to a server that speaks the hub's protocol, or unset it",
        )
    require_space(incoming, remote.size)
    with explained(url):
        path = Path(
            hf_hub_download(
                repository,
                name,
                repo_type="dataset",
                # The commit that the sha256 belongs to; `main` may have moved meanwhile.
                revision=remote.commit_hash,
                local_dir=incoming,
                token=False,
                endpoint=endpoint,
                etag_timeout=TIMEOUT_S,
                tqdm_class=_forwarding_bar(stage, remote.size, progress),
            )
        )
    # Over plain HTTP the client compares the size alone.
    digest = sha256_of(path) if _SHA256.fullmatch(etag) else _git_blob(path)
    if digest != etag:
        raise DataError(
            f"{url} arrived damaged: its hash is {digest}, the hub says {etag}. "
            "Nothing of it was kept.",
            fix="run the same command again; if it happens again, a proxy may change the files",
        )
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(target)
    sync_path(target.parent)


def _git_blob(path: Path) -> str:
    """Git's name for a file's content; such files are small."""
    content = path.read_bytes()
    named = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return named.hexdigest()


def _forwarding_bar(stage: str, size_bytes: int, progress: ProgressSink) -> type[Any]:
    """A tqdm class for the client that draws nothing and reports to `progress`."""
    from huggingface_hub.utils.tqdm import tqdm

    done_bytes = 0

    class ForwardingBar(tqdm):
        monitor_interval = 0  # no thread that watches for bars that hang

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            nonlocal done_bytes
            self.n += n or 0
            # Xet has a bar for the network and one for the file: the one that is ahead counts.
            done_bytes = min(max(done_bytes, int(self.n)), size_bytes)
            progress.update(stage, done_bytes, size_bytes, "bytes")

    return ForwardingBar


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn the client's errors into DataErrors with a fix; errors of the disk pass."""
    try:
        yield
    # Those of the client, of its HTTP library and of Xet have no class in common.
    except Exception as error:
        network = isinstance(error, ConnectionError | TimeoutError)
        if isinstance(error, OSError) and error.errno is not None and not network:
            raise
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: Exception) -> DataError:
    response = getattr(error, "response", None)
    if response is not None and response.status_code in (401, 403, 404):
        return DataError(
            f"{url}: the hub answered {response.status_code}: it is not there, or not public",
            fix="check the name, and HF_ENDPOINT if you set it; of climbmix, see whether there is "
            "a newer yoked",
        )
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(
        f"{url} cannot be reached: {why}",
        fix=(
            "check the connection, and HF_ENDPOINT, HF_HUB_OFFLINE and proxy settings if set",
            "then run the same command again: it goes on with the shard that is missing",
            "offline, train on the embedded corpus: yoked train --data sotu",
        ),
    )
