"""Labs for the tests of this folder: the same fixtures as for everybody, in a state of our own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.lab.pytest_plugin import lab, lab_up, pytest_configure, pytest_runtest_setup, why_not

__all__ = ["lab", "lab_up", "pytest_configure", "pytest_runtest_setup"]


@pytest.fixture(scope="session", autouse=True)
def own_labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Labs of these tests have a state folder of their own: `down --all` must not reach others."""
    # Nearly all of them log in, filter packets or ping.
    reason = why_not("sshd", "nft")
    if reason is None and shutil.which("ping") is None:
        reason = "ping is not installed (fix: sudo apt install iputils-ping)"
    if reason is not None:
        pytest.skip(f"no lab for tests on this machine: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("YOKED_STATE", str(folder))
        # Labs that the command line brings up end with the tests, however these end.
        patch.setenv("YOKED_LAB_OWNER", str(os.getpid()))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def own_connections() -> Iterator[None]:
    """ssh connections are shared; those of another lab, with hosts of the same names, are not ours.

    A socket's path is short, and pytest's folders are not.
    """
    with tempfile.TemporaryDirectory(prefix="yk-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def root_only() -> None:
    """For what only root can make or see."""
    if os.getuid() != 0:
        pytest.skip("needs root")
