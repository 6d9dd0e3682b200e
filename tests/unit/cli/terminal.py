"""A program at a pseudo-terminal, for tests that type."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence


class Terminal:
    """It has begun; `close` kills it."""

    def __init__(self, argv: Sequence[str], **variables: str) -> None:
        self.descriptor, inner = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **variables},
        )
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def until(self, text: str) -> str:
        """What came, up to that text."""
        came, deadline_s = "", time.monotonic() + 60
        while text not in came:
            assert time.monotonic() < deadline_s, came
            if select.select([self.descriptor], [], [], 0.2)[0]:
                came += os.read(self.descriptor, 4096).decode()
        return came

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.descriptor)
