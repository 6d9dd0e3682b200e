"""What a launch would send of the folder where a command was typed, for the doctor to know."""

from __future__ import annotations

from pathlib import Path

from yoked.agent.folders import LINK
from yoked.doctor.judge import Sent
from yoked.errors import UsageError
from yoked.fleet.model import Fleet
from yoked.launch.blobs import LARGE_BYTES
from yoked.launch.gitignore import NO_GIT, has_git
from yoked.launch.trees import Tree


def what_travels(fleet: Fleet) -> Sent:
    """What a launch finds in the current folder, by its own code; or why it would not begin."""
    folder = Path.cwd()
    try:
        tree = Tree.scan(folder, include=fleet.include, hash_of=_opened)
    except UsageError as problem:
        return Sent(None, refused=(problem.what, *problem.fix))
    # A launch says it of each folder; without rules there is nothing to obey.
    no_git = [] if has_git() or not any(folder.rglob(".gitignore")) else [NO_GIT]
    return Sent(
        frozenset(each.path for each in tree.entries),
        links={each.path: each.content for each in tree.entries if each.kind == LINK},
        remarks=(*no_git, *tree.idle_patterns()),
        # A small one is read at once.
        sizes={
            each.path: (each.source, each.size_bytes)
            for each in tree.entries
            if each.size_bytes >= LARGE_BYTES
        },
    )


def _opened(path: Path) -> str:
    """Try whether a file can be read. Raises OSError."""
    with path.open("rb") as stream:
        stream.read(1)
    return ""
