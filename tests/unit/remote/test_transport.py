"""An agent starts wherever there is a Python, or it is said why not."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import HostError, NoPythonError, UsageError
from yoked.remote.client import AgentClient
from yoked.remote.ssh import (
    _knows_remote_command,
    control_folder,
    explain_end,
    python_word,
    ssh_argv,
)
from yoked.remote.transport import BOOT, FLAGS, connect_here, connect_ssh, start_agent
from yoked.remote.zipapp import agent_file

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_python(tmp_path: Path, script: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def find_python(version: str) -> str:
    """A Python of that version that starts, on PATH or of pyenv; skips where there is none."""
    name = f"python{version}"
    places = [
        shutil.which(name),
        *Path.home().glob(f".pyenv/versions/{version}*/bin/{name}"),
    ]
    for place in filter(None, places):
        if subprocess.run([place, "--version"], capture_output=True, check=False).returncode == 0:
            return place
    pytest.skip(f"{name} is not on this machine")


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.13"])
def test_an_agent_answers_under_any_python_that_is_new_enough(version: str) -> None:
    with connect_here(python=find_python(version)) as agent:
        facts = agent.call("facts")

    assert facts["hostname"]


def test_the_agents_file_is_stored_once(own_cache: Path) -> None:
    for _ in range(2):
        connect_here().close()

    assert [path.name for path in (own_cache / "agent").iterdir()] == [agent_file().digest]


def test_a_cache_that_takes_nothing_does_not_keep_the_agent_away(own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")

    with connect_here() as agent:
        assert agent.call("facts")


def test_what_a_login_shell_prints_is_passed_over(tmp_path: Path) -> None:
    noisy = fake_python(tmp_path, f'echo "Welcome!"; echo yoked-agent; exec {sys.executable} "$@"')

    with connect_here(python=noisy) as agent:
        assert agent.call("facts")


@pytest.mark.parametrize(
    "prints",
    [
        "printf Welcome",
        r"printf '\033]0;attic\007'",
        "yes | head -c 200000",
        "head -c 65530 /dev/zero | tr '\\0' x",
        "head -c 200000 /dev/zero | tr '\\0' x",
    ],
)
def test_a_login_shell_may_print_much_and_a_line_without_its_end(
    tmp_path: Path, prints: str
) -> None:
    noisy = fake_python(tmp_path, f'{prints}; exec {sys.executable} "$@"')

    with start_agent("attic", [noisy, *FLAGS, "-c", BOOT], deadline_s=5.0) as agent:
        assert agent.call("facts")
        assert agent.noise


def test_an_agent_reads_and_writes_where_a_start_file_left_its_streams_non_blocking(
    tmp_path: Path,
) -> None:
    unblocks = f"{sys.executable} -c 'import os; [os.set_blocking(n, False) for n in (0, 1, 2)]'"
    python = fake_python(tmp_path, f'{unblocks}; sleep 0.1; exec {sys.executable} "$@"')
    many = tmp_path / "many"
    many.mkdir()
    for number in range(1500):
        (many / f"{number:0>100}").touch()

    with connect_here(python=python) as agent:
        contents = agent.call("folder_contents", folder=str(many))

    # More than a pipe holds.
    assert len(contents) == 1500


@pytest.mark.parametrize(
    "script",
    [
        "exit 127",
        "echo 'disk quota exceeded' >&2; exit 1",
        "exit 0",
    ],
)
def test_a_python_that_is_none_is_named(
    tmp_path: Path, script: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(HostError) as caught:
        connect_here(host="attic", python=fake_python(tmp_path, script))
    assert str(caught.value) == snapshot


def test_a_refusal_without_a_word_is_one(tmp_path: Path) -> None:
    python = fake_python(tmp_path, 'read token; echo "yoked-refused $token"')

    with pytest.raises(NoPythonError, match=r"^attic: its Python does not run the agent"):
        connect_here(host="attic", python=python)


def test_a_line_without_an_end_is_not_kept(tmp_path: Path) -> None:
    takes_all = "exec 3<&0; cat <&3 >/dev/null & "
    prints = "head -c 1000000 /dev/zero | tr '\\0' x; kill $!; exit 1"
    python = fake_python(tmp_path, takes_all + prints)

    with pytest.raises(HostError) as caught:
        connect_here(host="attic", python=python)

    assert "status 1: xxx" in caught.value.what
    assert len(caught.value.what) < 100_000


@pytest.mark.parametrize("version", ["2.7", "3.8"])
def test_an_old_python_says_that_it_is(version: str) -> None:
    python = find_python(version)

    with pytest.raises(HostError) as caught:
        connect_here(host="attic", python=python)
    assert f" {version} " in caught.value.what
    assert str(python) in caught.value.what


def test_a_program_that_is_not_there_is_named(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(HostError) as caught:
        connect_here(python="/no/such/python")
    assert str(caught.value) == snapshot


def test_calls_that_wait_end_when_the_way_does(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    python = fake_python(tmp_path, f'echo "cable cut" >&2; exec {sys.executable} "$@"')
    agent = connect_here(host="attic", python=python)
    threading.Timer(0.2, agent._process.kill).start()

    def call_on() -> None:
        while True:
            agent.call("facts")

    with agent, pytest.raises(HostError) as caught:
        call_on()
    assert str(caught.value) == snapshot


def test_a_client_can_be_closed_while_a_host_takes_nothing() -> None:
    deaf = subprocess.Popen(["sleep", "30"], stdin=-1, stdout=-1, stderr=-1)
    agent = AgentClient("attic", deaf, lambda: HostError("attic: cut off"))
    problems: list[HostError] = []

    def send() -> None:
        try:
            agent.call("blob_append", data=bytes(8 << 20))
        except HostError as problem:
            problems.append(problem)

    sending = threading.Thread(target=send)
    sending.start()
    while not agent._lock.locked():
        time.sleep(0.01)
    agent.close(patience_s=0.1)
    sending.join()

    assert [problem.what for problem in problems] == ["attic: cut off"]
    assert deaf.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("said", "meaning", "fix"),
    [
        (
            "ssh: Could not resolve hostname attic: Name or service not known",
            "nobody knows its name",
            "~/.ssh/config",
        ),
        (
            "ssh: connect to host attic port 22: Connection timed out",
            "did not answer",
            "ping attic",
        ),
        (
            "ssh: connect to host attic port 22: No route to host",
            "did not answer",
            "ping attic",
        ),
        (
            "ssh: connect to host attic port 22: Connection refused",
            "no ssh server",
            "openssh-server",
        ),
        (
            "me@attic: Permission denied (publickey,password).",
            "refused our keys",
            "ssh-copy-id attic",
        ),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "another than the one in known_hosts",
            "ssh-keygen -R attic",
        ),
        ("Host key verification failed.", "not known here yet", "ssh attic"),
        (
            "Offending ED25519 key in /kh:2\n  remove with:\n  ssh-keygen -f '/kh' -R 'attic'",
            "or somebody between\nssh: Offending ED25519 key in /kh:2",
            "`ssh-keygen -f '/kh' -R 'attic'`",
        ),
        ("kex_exchange_identification: read: reset", "the way to it ended", "ssh -v attic"),
        ("Connection closed by UNKNOWN port 65535", "the way to it ended", "ssh -v attic"),
        ("client_loop: send disconnect", "connection ended", "ssh attic"),
        (
            "Connection to 10.0.0.2 closed by remote host.",
            "connection ended\nssh: Connection to 10.0.0.2 closed",
            "ssh attic",
        ),
        (
            "Permissions 0644 for '/k' are too open.\nx: Permission denied (publickey).",
            "passes over our key",
            "chmod 600",
        ),
        (
            "The ED25519 host key for attic is marked as revoked.\nHost key verification failed.",
            "is revoked",
            "yoked doctor",
        ),
    ],
)
def test_sshs_own_reason_is_shown_with_what_it_means(said: str, meaning: str, fix: str) -> None:
    problem = explain_end("attic", 255, f"Warning: Permanently added\n{said}\n", ssh=True)

    assert meaning in problem.what
    assert any(line in problem.what for line in said.splitlines())
    assert any(fix in line for line in problem.fix)


@pytest.mark.parametrize("python", ["python3; rm -rf ~", "a b", "$(id)", "'x'", ""])
def test_a_python_that_a_shell_would_read_otherwise_is_refused(
    python: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        python_word(python)
    assert str(caught.value) == snapshot


def test_nobody_is_asked_at_a_terminal_and_the_persons_configuration_counts() -> None:
    argv = ssh_argv("attic", "/etc/mine")

    assert "BatchMode=yes" in argv
    assert argv[argv.index("-F") + 1] == "/etc/mine"
    assert argv[-2:] == ["--", "attic"]


@needs_ssh
def test_what_the_persons_own_sessions_begin_with_is_not_ours(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(
        "Host attic\n  LocalForward 8080 localhost:80\n  RemoteCommand tmux attach\n"
        "  ProxyJump gate\n  PermitLocalCommand yes\n  LocalCommand touch /x\n  Tunnel yes\n"
    )

    lines = as_ssh_reads(config)

    assert {"localforward", "remotecommand"}.isdisjoint(line.split()[0] for line in lines)
    assert {"proxyjump gate", "permitlocalcommand no", "tunnel false"} <= set(lines)


@needs_ssh
@pytest.mark.parametrize("shared", [True, False])
def test_no_host_gets_the_persons_keys_screen_or_tickets(tmp_path: Path, shared: bool) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(
        "Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  ForwardX11Trusted yes\n"
        "  GSSAPIDelegateCredentials yes\n"
    )

    lines = as_ssh_reads(config, shared=shared)

    assert {"forwardagent no", "forwardx11 no", "forwardx11trusted no"} <= set(lines)
    # Only an ssh with Kerberos has it.
    assert "gssapidelegatecredentials yes" not in lines


def as_ssh_reads(config: Path, *, shared: bool = True) -> list[str]:
    """What ssh makes of our words and of a person's configuration."""
    program, *rest = ssh_argv("attic", str(config), shared=shared)
    words = [program, "-G", *rest, "true"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("says", "gets_it"),
    [
        ("OpenSSH_7.4p1, OpenSSL 1.0.2k-fips  26 Jan 2017", False),
        ("OpenSSH_7.6p1 Ubuntu-4, OpenSSL 1.0.2n  7 Dec 2017", True),
        ("OpenSSH_for_Windows_9.5p1, LibreSSL 3.8.2", True),
        ("dropbear", False),
    ],
)
def test_an_old_ssh_gets_no_option_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, gets_it: bool
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    _knows_remote_command.cache_clear()

    argv = ssh_argv("attic", None)
    _knows_remote_command.cache_clear()

    assert ("RemoteCommand=none" in argv) == gets_it


def test_an_ssh_that_is_slow_to_tell_its_version_is_not_taken_for_an_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("ssh", 5)

    monkeypatch.setattr("yoked.remote.ssh.subprocess.run", slow)
    _knows_remote_command.cache_clear()

    argv = ssh_argv("attic", None)
    _knows_remote_command.cache_clear()

    assert "RemoteCommand=none" in argv


def test_hosts_of_one_name_in_two_configurations_do_not_share_a_connection() -> None:
    paths = {
        next(word for word in ssh_argv("alpha", config) if word.startswith("ControlPath="))
        for config in (None, "/labs/one/ssh_config", "/labs/two/ssh_config")
    }

    assert len(paths) == 3


def test_a_configuration_whose_name_is_no_text_is_one(tmp_path: Path) -> None:
    assert ssh_argv("attic", str(tmp_path / os.fsdecode(b"caf\xe9")))


def test_the_way_to_a_shared_connection_is_short_wherever_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / "var-folders-zz-zyxvpxvq6csfxvn-n0000000000000-T"
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))

    assert control_folder() == Path("/tmp") / f"yoked-{os.getuid()}"


@needs_ssh
def test_a_host_that_nobody_knows_is_named_by_ssh_itself(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(HostError) as caught:
        connect_ssh("no-such-host.invalid")
    assert str(caught.value) == snapshot
