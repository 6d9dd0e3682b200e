"""Why a host has no agent: what ssh said is told from what nobody said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.doctor import sshfailure
from yoked.doctor.sshfailure import comes_in_for_nothing, failure_of
from yoked.errors import HostError, NoPythonError
from yoked.remote.ssh import NoAgentError, explain_end, forget_key
from yoked.remote.transport import start_agent

DEADLINE_S = 20.0


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ssh: Could not resolve hostname attic: Name or service not known", "unresolved"),
        ("ssh: connect to host attic port 22: Connection timed out", "timeout"),
        ("Connection timed out during banner exchange", "timeout"),
        ("ssh: connect to host attic port 22: Connection refused", "refused"),
        ("ssh: connect to host attic port 22: No route to host", "unreachable"),
        ("Host key verification failed.", "host-key"),
        ("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", "host-key"),
        ("me@attic: Permission denied (publickey).", "denied"),
        ("kex_exchange_identification: read: Connection reset by peer", "other"),
        ("something new", "other"),
    ],
)
def test_what_ssh_says_has_its_kind(said: str, kind: str) -> None:
    failure = failure_of("attic", None, explain_end("attic", 255, said, ssh=True))

    assert failure.kind == kind
    assert failure.text in said
    assert failure.fix


def test_a_shell_that_ends_is_the_shells_fault(snapshot: SnapshotAssertion) -> None:
    problem = explain_end("attic", 1, "This account is currently not available.", ssh=True)

    failure = failure_of("attic", None, problem)

    assert (failure.kind, failure.text) == snapshot


def test_a_shell_that_lets_nobody_in_is_told_with_its_user(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host attic\n  User ada\n")
    problem = explain_end("attic", 1, "This account is currently not available.", ssh=True)

    assert failure_of("attic", config, problem).user == "ada"
    refused = explain_end("attic", 255, "Connection refused", ssh=True)
    assert failure_of("attic", config, refused).user is None


@pytest.mark.parametrize(
    "said",
    [
        'ssh-keygen -f "$(touch x)" -R "attic"',
        "ssh-keygen -f x; touch x; -R attic",
        "ssh-keygen -f /kh -R attic;touch",
        "ssh-keygen -f '/kh' -R 'a`x`'",
    ],
)
def test_a_line_that_a_server_has_said_is_not_the_persons_to_paste(said: str) -> None:
    warning = f"Offending ED25519 key in /kh:2\n  {said}"

    failure = failure_of("attic", None, explain_end("attic", 255, warning, ssh=True))

    assert "`ssh-keygen -R attic`" in failure.fix[0]
    assert "touch" not in " ".join(failure.fix)


def test_the_line_that_forgets_a_changed_key_is_sshs_own_with_the_fingerprint_it_shows() -> None:
    key = "SHA256:" + "a" * 43
    warning = (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        f"The fingerprint for the ED25519 key sent by the remote host is\n{key}.\n"
        'Offending ED25519 key in /k h:2\n  remove with:\n  ssh-keygen -f "/k h" -R "attic"'
    )

    failure = failure_of("attic", None, explain_end("attic", 255, warning, ssh=True))

    assert failure.text.endswith(f"CHANGED! It shows {key}")
    assert forget_key("attic", "\n".join((failure.text, *failure.fix))) == (
        'ssh-keygen -f "/k h" -R "attic"'
    )


def test_lines_to_type_name_the_configuration_that_ssh_was_given() -> None:
    for said in ("Permission denied (publickey).", "Host key verification failed.", "it is gone"):
        problem = explain_end("attic", 255, said, ssh=True, config="my config")
        assert "-F 'my config' attic" in problem.fix[0], problem.fix


def test_a_host_without_python_is_told_from_one_that_is_gone() -> None:
    assert failure_of("attic", None, NoPythonError("no such Python")).kind == "python"
    assert failure_of("attic", None, HostError("no ssh here")).kind == "other"


@pytest.mark.parametrize(("comes", "kind"), [(True, "shell"), (False, "timeout")])
def test_where_nobody_said_anything_a_try_tells_the_shell_from_the_network(
    monkeypatch: pytest.MonkeyPatch, comes: bool, kind: str
) -> None:
    monkeypatch.setattr(sshfailure, "comes_in_for_nothing", lambda *args: comes)

    failure = failure_of("attic", None, NoAgentError("no agent answered", kind="timeout"))

    assert failure.kind == kind


def test_an_agent_that_does_not_come_in_time_is_a_timeout_and_leaves_nothing(
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    # What helps the way, such as a ProxyCommand.
    script = f"sleep 60 & echo $! >{tmp_path}/helper; wait"

    with pytest.raises(NoAgentError) as raised:
        start_agent("attic", ["sh", "-c", script], deadline_s=0.5)
    assert str(raised.value) == snapshot

    assert (raised.value.kind, raised.value.said) == ("timeout", "")
    helper = Path("/proc", (tmp_path / "helper").read_text().strip())
    until_s = time.monotonic() + DEADLINE_S
    while helper.exists() and "Z" not in (helper / "stat").read_text().split(")")[1]:
        assert time.monotonic() < until_s
        time.sleep(0.01)


_IN = 'echo Authenticated to attic "([10.0.0.2]:22)" using publickey. >&2'


@pytest.mark.parametrize(
    ("ssh_does", "nothing_starts"),
    [
        (_IN, True),
        ("echo debug1: Connecting to attic port 22. >&2", False),
        (f"{_IN}; echo This account is currently not available.", True),
        # A busy host: its program comes late, and it comes.
        (f"{_IN}; sleep 0.5; echo yoked-is-in", False),
    ],
    ids=["in", "not-in", "nologin", "slow"],
)
def test_a_shell_that_starts_nothing_is_told_from_a_host_that_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ssh_does: str, nothing_starts: bool
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{ssh_does}\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sshfailure, "_TRY_S", 1)
    monkeypatch.setattr(sshfailure, "_PROGRAM_S", 2)

    assert comes_in_for_nothing("attic", None) is nothing_starts


def test_what_the_shell_said_last_is_told_where_ssh_said_nothing(
    snapshot: SnapshotAssertion,
) -> None:
    script = "echo This account is currently not available.; exit 1"

    with pytest.raises(NoAgentError) as raised:
        start_agent("attic", ["sh", "-c", script], ssh=True)

    failure = failure_of("attic", None, raised.value)
    assert (failure.kind, failure.text) == snapshot
