"""Data of a person's own on the hosts, under a name that is a variable of their ranks.

A host has a folder by its content (agent/pushed.py), so equal content is sent once, and of changed
content what changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yoked.core.names import DATA_NAME, DATA_NAME_RULE
from yoked.errors import UsageError
from yoked.launch.blobs import Progress, push_blobs
from yoked.launch.trees import Tree
from yoked.remote.client import AgentClient
from yoked.units import format_bytes, listed

# It is the variable that moves yoked's own folder of environments.
_NOT_OURS = "home"
_PLACE_S = 600.0


@dataclass(frozen=True)
class Pushed:
    """What a host has under a name. path: there."""

    name: str
    digest: str
    path: str
    files: int
    size_bytes: int


def variable_of(name: str) -> str:
    """The variable in which ranks find the path of the data of a name."""
    return f"YOKED_DATA_{name.upper()}"


def check_data_name(name: str) -> str:
    """The name; raises UsageError for one that makes no variable."""
    if not DATA_NAME.fullmatch(name) or name == _NOT_OURS:
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40].strip("_")
        raise UsageError(
            f"{name!r} cannot be the name of data",
            fix=f"--name {near if near not in ('', _NOT_OURS) else 'data'}    {DATA_NAME_RULE}",
        )
    return name


def name_of(folder: Path) -> str:
    """The name that data has after its folder. Raises UsageError where that makes none."""
    return check_data_name(re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_"))


def push_named(client: AgentClient, name: str, tree: Tree, progress: Progress | None = None) -> int:
    """Have a host know a folder by a name; returns the bytes that were sent. Raises HostError."""
    known = {each.name: each for each in pushed_there(client)}
    if name in known and known[name].digest == tree.digest:
        return 0
    sent_bytes = push_blobs(client, tree.files(), progress)
    client.call(
        "pushed_put",
        label=name,
        digest=tree.digest,
        data=tree.packed(),
        timeout_s=_PLACE_S,
    )
    return sent_bytes


def pushed_there(client: AgentClient) -> list[Pushed]:
    """What a host has."""
    told: Sequence[Mapping[str, Any]] = client.call("pushed")
    return [Pushed(**each) for each in told]


def variables(pushed: Iterable[Pushed]) -> dict[str, str]:
    """For the ranks of a host: where the data of each name is."""
    return {variable_of(each.name): each.path for each in pushed}


def tell_pushed(by_host: Mapping[str, Sequence[Pushed]], say: Callable[[str], None]) -> None:
    """Say which variables ranks have, and which not all of them."""
    names = {each.name: each for found in by_host.values() for each in found}
    for name in sorted(names):
        have = {
            host: each for host, found in by_host.items() for each in found if each.name == name
        }
        said = f"data in {variable_of(name)}: {format_bytes(names[name].size_bytes)}"
        if lacking := [host for host in by_host if host not in have]:
            said += f" on {listed(have)}, and none on {listed(lacking)}: push it again"
        elif len({each.digest for each in have.values()}) > 1:
            said += f", which differs between {listed(have)}: push it again"
        say(said)
