"""What all tests share."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from syrupy.assertion import SnapshotAssertion

# Speed is a matter of benchmarks: a busy machine is no failure.
settings.register_profile("yoked", deadline=None)
settings.load_profile("yoked")

# Tests share the machine; more threads would make them slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's job in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """No test sees the person's caches or jobs, takes itself for a rank of a launch, or has what
    another test has switched off.
    """
    if "yoked.train.kernels" in sys.modules:
        sys.modules["yoked.train.kernels"].switch_on()
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    # Labs have a state of their own for the whole session, and tests of ranks may come between.
    if "own_labs" not in request.fixturenames:
        monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "YOKED_LAUNCH_DIR", "YOKED_MEETING_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def snapshot(
    snapshot: SnapshotAssertion, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> SnapshotAssertion:
    """The text that a test prints, as `make golden` wrote it.

    A change of wording touches these files alone, and is read as one diff. What differs between
    machines and days stands there by its name.
    """
    names = {
        re.escape(sys.executable): "PYTHON",
        re.escape(str(tmp_path)): "TMP",
        re.escape(str(tmp_path_factory.getbasetemp())): "TMPS",
        re.escape(str(Path(__file__).parents[1])): "CHECKOUT",
        rf"\b{re.escape(socket.gethostname())}\b": "HOSTNAME",
        r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b": "DATE",
        r"[\d.]+ [kMGT]B (?=(are )?free)": "SPACE ",
        r"(?<=127\.0\.0\.1:)\d+|(?<=\bport )[3-6]\d{4}\b": "PORT",
        r"(?<=\bprocess )\d+\b": "PID",
        r"(?<=\.py\", line )\d+(?=, in )": "LINE",
    }

    def without_place(data: object, path: object) -> object:
        if isinstance(data, str):
            for found, name in names.items():
                data = re.sub(found, name, data)
        return data

    return snapshot.with_defaults(matcher=without_place)


@pytest.fixture
def shared_data() -> Path:
    """Folder of real text beside the checkout; a test that needs it is skipped without it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: it holds text that is not part of the project")
    return folder
