"""What somebody meets who logs in by ssh, and what programs get from the shell."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest


def log_in(acts: Any, command: str, patience_s: float = 20) -> tuple[int, str, str]:
    """Status, output and errors of a command over ssh; a new connection each time."""
    words = ["ssh", "-F", str(acts.lab.ssh_config), "-o", "BatchMode=yes", "alpha", command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patience_s)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("no-ssh alpha", "Connection refused", marks=pytest.mark.slow),
        ("host-key alpha", "Host key verification failed"),
        pytest.param("loose-keys alpha", "Permission denied", marks=pytest.mark.slow),
    ],
)
def test_nobody_gets_in_and_everybody_does_again(acts: Any, line: str, said: str) -> None:
    before = log_in(acts, "hostname")

    acts.fault(*line.split())
    during = log_in(acts, "hostname")
    acts.heal("alpha")

    assert before[:2] == (0, "alpha")
    assert during[:2] == (255, "")
    assert said in during[2]
    assert log_in(acts, "hostname")[:2] == (0, "alpha")


@pytest.mark.parametrize("first", [0, 1])
def test_two_settings_of_the_ssh_server_are_healed_in_either_order(acts: Any, first: int) -> None:
    def known() -> tuple[bool, bool]:
        text = acts.lab.host("alpha").read_text("/run/yoked/sshd_config")
        return "other_key" in text, "StrictModes yes" in text

    before = acts.lab.host("alpha").read_text("/run/yoked/sshd_config")
    faults = [acts.fault("host-key", "alpha"), acts.fault("loose-keys", "alpha")]
    both = known()
    acts.heal(faults.pop(first).id)
    one = known()
    acts.heal(faults[0].id)

    assert both == (True, True)
    assert one == (first == 1, first == 0)
    assert acts.lab.host("alpha").read_text("/run/yoked/sshd_config") == before
    assert log_in(acts, "hostname")[:2] == (0, "alpha")


def test_a_login_shell_that_runs_nothing_says_so(acts: Any) -> None:
    acts.fault("login-shell", "alpha")
    during = log_in(acts, "hostname")
    acts.heal("alpha")

    assert during[0] == 1
    assert "not available" in during[1]
    assert log_in(acts, "hostname")[:2] == (0, "alpha")


@pytest.mark.parametrize(
    ("line", "command", "status", "printed"),
    [
        ("noisy-shell alpha", "echo mine", 0, "Welcome to alpha!\nmine"),
        pytest.param("exiting-shell alpha", "echo mine", 1, "", marks=pytest.mark.slow),
        pytest.param(
            *("exported alpha OMP_NUM_THREADS=1", "printenv OMP_NUM_THREADS", 0, "1"),
            marks=pytest.mark.slow,
        ),
        ("limit alpha nofile 64", "ulimit -Sn; ulimit -Hn", 0, "64\n64"),
    ],
)
def test_the_start_file_is_read_by_every_program_over_ssh(
    acts: Any, line: str, command: str, status: int, printed: str
) -> None:
    acts.fault(*line.split())
    during = log_in(acts, command)
    acts.heal("alpha")

    assert during[:2] == (status, printed)
    assert log_in(acts, "echo mine")[:2] == (0, "mine")


@pytest.mark.slow
def test_two_lines_of_one_start_file_are_healed_in_either_order(acts: Any) -> None:
    first = acts.fault("exported", "alpha", "FIRST=1")
    acts.fault("exported", "alpha", "SECOND=2")

    acts.heal(first.id)
    left = log_in(acts, "echo ${FIRST-none} ${SECOND-none}")
    acts.heal()

    assert left[1] == "none 2"
    # A host has no start file at first.
    assert not acts.lab.host("alpha").exists(str(Path.home() / ".bashrc"))
