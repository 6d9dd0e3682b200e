"""The seat of a host that is the only one of a run: there is nobody to talk to, and no store.

As `control.Control`, without torch, which takes seconds to import, and without a connection.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from yoked.errors import HostError
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.notice import Notice


class Alone:
    """What this host says, it alone hears."""

    connected = True
    trouble: HostError | None = None

    def __init__(self, job: Job) -> None:
        self._node = job.node_rank
        self._own = Notice()
        self._changed = threading.Condition()

    @property
    def notices(self) -> dict[int, Notice]:
        """This host's own notice."""
        with self._changed:
            return {self._node: self._own}

    def silent_s(self, node: int) -> float | None:
        """None: there is no other node."""
        del node
        return None

    def say(self, **changes: Any) -> None:
        """Change fields of this host's notice."""
        with self._changed:
            self._own = replace(self._own, **changes)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when something was said, and at the latest after the time."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wait_until_said(self, timeout_s: float) -> None:
        """Nothing has to leave."""

    def close(self) -> None:
        """Nothing is open."""
