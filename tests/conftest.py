"""What all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Speed is a matter of benchmarks: a busy machine is no failure.
settings.register_profile("yoked", deadline=None)
settings.load_profile("yoked")

# Tests share the machine; more threads would make them slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's job in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the person's caches or jobs, or takes itself for a rank of a launch."""
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    # Labs have a state of their own for the whole session.
    if "YOKED_STATE" not in os.environ:
        monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "YOKED_LAUNCH_DIR", "YOKED_MEETING_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def shared_data() -> Path:
    """Folder of real text beside the checkout; a test that needs it is skipped without it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: it holds text that is not part of the project")
    return folder
