"""The files of a run's folder that may come from a host: names that a run has, and no others.

A host may list anything. A `.git` would bring programs that git runs, a pickle runs code where
it is loaded, and a drawing can carry a script. So a name is known, or its file stays there:

    run.json, result.json, metrics.jsonl, events.jsonl
    logs/<host>.<rank>.log
    checkpoints/base_checkpoints/<tag>/{model,optim,meta,manifest}_<step>...
    checkpoints/tokenizer/yoked_tokenizer.json
    tensorboard/events.out.tfevents...

nanochat's forms of the tokenizer (tokenizer.pkl, token_bytes.pt) are made here from that JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from yoked.remote.client import AgentClient

TOKENIZER = "checkpoints/tokenizer"
TOKENIZER_FILE = f"{TOKENIZER}/yoked_tokenizer.json"
# A run's largest JSON is its tokenizer: 20 bytes a token.
MOST_JSON_BYTES = 64 << 20
# A line of metrics for each of 10 million steps of 8 ranks.
_MOST_LINES_BYTES = 8 << 30

# No part can begin with a dot, and [0-9] is not \d, which takes the digits of all scripts.
_TAG = r"checkpoints/base_checkpoints/[A-Za-z0-9_][A-Za-z0-9._-]{0,79}"
_OF_A_RUN = re.compile(
    r"(?:run|result)\.json|(?:metrics|events)\.jsonl"
    r"|logs/[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.[0-9]{1,6}\.log"
    rf"|{_TAG}/(?:model_[0-9]{{1,12}}\.pt|optim_[0-9]{{1,12}}_rank[0-9]{{1,6}}\.pt)"
    rf"|{_TAG}/(?:meta|manifest)_[0-9]{{1,12}}\.json"
    rf"|{re.escape(TOKENIZER_FILE)}"
    r"|tensorboard/events\.out\.tfevents\.[A-Za-z0-9._-]{1,200}"
)
_MADE_HERE = (f"{TOKENIZER}/tokenizer.pkl", f"{TOKENIZER}/token_bytes.pt")
# What a run's writers have there for a moment, and the lock of a folder of checkpoints.
_IN_THE_MAKING = re.compile(
    rf"(?:logs/|{_TAG}/|{TOKENIZER}/)?\.(?:yoked-[A-Za-z0-9._-]+|[A-Za-z0-9._-]+\.tmp)"
)
_NOT_OF_A_RUN = "no file of a run"
_TOO_LARGE = "too large"
_SAME_BUT_FOR_CASE = "differs from another by case alone"
TAKEN = "a folder or a link is in its place here"
_SHOWN_NAMES, _SHOWN_LETTERS = 3, 60


@dataclass
class Listing:
    """A run's folder on a host, by paths below it.

    files: bytes, and time of change in ns. making: files that are being written. refused: why.
    """

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    making: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


def list_run(client: AgentClient, remote: str) -> Listing:
    """Ask a host for a run's folder."""
    listing = Listing()
    spelt: dict[str, str] = {}
    for name, size, changed_ns in client.call("file_list", folder=remote):
        if name in _MADE_HERE:
            continue
        if _IN_THE_MAKING.fullmatch(name):
            listing.making.add(name)
        elif not _OF_A_RUN.fullmatch(name):
            listing.refused[name] = _NOT_OF_A_RUN
        elif size > _most_bytes(name):
            listing.refused[name] = _TOO_LARGE
        elif any(spelt.setdefault(part.lower(), part) != part for part in paths_to(name)):
            # Where a file system takes both for one, the second would overwrite the first.
            listing.refused[name] = _SAME_BUT_FOR_CASE
        else:
            listing.files[name] = (size, changed_ns)
    return listing


def is_taken(here: Path, name: str) -> bool:
    """Whether a file cannot be written below a folder: something else than a file is there."""
    *above, path = [here / part for part in paths_to(name)]
    if any(folder.is_symlink() or (folder.exists() and not folder.is_dir()) for folder in above):
        return True
    return path.is_symlink() or (path.exists() and not path.is_file())


def tell_refused(host: str, refused: Mapping[str, str]) -> str:
    """One line for a person about the files that stay on a host."""
    # As Python writes it, a name can do nothing to a terminal.
    shown = [f"{_short(name)} ({why})" for name, why in list(refused.items())[:_SHOWN_NAMES]]
    more = len(refused) - len(shown)
    count = (
        "1 file of the run stays"
        if len(refused) == 1
        else f"{len(refused):,} files of the run stay"
    )
    return f"{count} on {host}: {', '.join(shown)}{f' and {more:,} more' if more else ''}"


def _short(name: str) -> str:
    shown = ascii(name)
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."


def _most_bytes(name: str) -> int:
    suffix = PurePosixPath(name).suffix
    # Tensors are bounded by the disk alone.
    return {".json": MOST_JSON_BYTES, ".pt": 2**63}.get(suffix, _MOST_LINES_BYTES)


def paths_to(name: str) -> Iterator[str]:
    """`a`, `a/b` and `a/b/c` of `a/b/c`."""
    parts = PurePosixPath(name).parts
    return ("/".join(parts[: count + 1]) for count in range(len(parts)))
