"""What the ranks of several hosts wrote, followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from yoked.launch.logs import parts_of
from yoked.remote.client import Part, RemoteBug


class Broken:
    """An agent that meets a bug of its own."""

    host = "attic"

    def stream(self, name: str, **args: Any) -> Iterator[Part]:
        raise RemoteBug("on attic: ZeroDivisionError()\nTraceback")


def test_a_bug_on_a_host_ends_what_is_followed() -> None:
    clients: Any = {"attic": Broken()}
    met: list[Exception] = []

    def follow() -> None:
        try:
            list(parts_of(clients, "try", clients, {"follow": True}, print))
        except RemoteBug as problem:
            met.append(problem)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    following.join(10)

    assert [str(problem) for problem in met] == ["on attic: ZeroDivisionError()\nTraceback"]
