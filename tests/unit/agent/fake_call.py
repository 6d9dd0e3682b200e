"""A call to the agent without a connection."""

from __future__ import annotations

import threading
from typing import Any

from yoked.agent.server import Call


class FakeCall(Call):
    """Keeps the parts that are sent; `sent` is set with the first."""

    def __init__(self, **args: Any) -> None:
        self.args = args
        self.data = b""
        self.cancelled = threading.Event()
        self.parts: list[Any] = []
        self.sent = threading.Event()

    def send(self, part: Any, data: bytes = b"") -> None:
        """Keep it; data is not looked at."""
        self.parts.append(part)
        self.sent.set()
