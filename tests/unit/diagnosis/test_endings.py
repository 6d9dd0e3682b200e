"""The cause of an end, from what it left."""

from __future__ import annotations

from typing import Any

import pytest

from yoked.diagnosis.endings import cause_of_end

NO_ROOM = "OSError: [Errno 28] No space left on device"
TORCH_WRITES = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"
NO_MEMORY = "  what():  std::bad_alloc"
TORCH_ALLOCATES = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
OF_GLOO = "op.preamble.length <= op.nbytes. 1000 vs 8. Received data size doesn't match"


@pytest.mark.parametrize(
    ("left", "cause"),
    [
        ({"signal": "SIGKILL"}, "rank-killed"),
        ({"signal": "SIGKILL", "oom_killed": True}, "out-of-memory"),
        ({"signal": "SIGSEGV"}, "rank-crashed"),
        ({"signal": "SIGSEGV", "oom_killed": True}, "rank-crashed"),
        ({"signal": "SIGABRT", "last_lines": (OF_GLOO,)}, "collective-mismatch"),
        ({"signal": "SIGABRT", "last_lines": (NO_MEMORY,)}, "out-of-memory"),
        ({"kind": "MemoryError"}, "out-of-memory"),
        ({"kind": "RuntimeError", "what": TORCH_ALLOCATES}, "out-of-memory"),
        ({"kind": "OSError", "what": NO_ROOM}, "disk-full"),
        ({"kind": "RuntimeError", "what": TORCH_WRITES, "disk_full": True}, "disk-full"),
        ({"kind": "RuntimeError", "what": TORCH_WRITES}, "exception"),
        ({"kind": "StopIteration"}, "data-ran-out"),
        ({"kind": "LossNotFiniteError", "what": "wte is not finite"}, "loss-not-finite"),
        ({"kind": "WeightsApartError"}, "weights-apart"),
        ({"kind": "ValueError", "last_lines": (NO_ROOM,)}, "exception"),
        ({"kind": "SystemExit"}, "rank-exited"),
        ({}, "rank-exited"),
    ],
)  # fmt: skip
def test_the_cause_of_an_end(left: dict[str, Any], cause: str) -> None:
    assert cause_of_end(**{"signal": None, "kind": None, "what": "", **left}) == cause
