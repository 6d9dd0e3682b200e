"""One more try of ssh, and what else is looked at; the ssh is made up."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.test_sshfailure import (
    ACCEPTED,
    CERTIFIED,
    CLOSED,
    DENIED,
    GONE,
    IN,
    METHODS,
    NO_MATCH,
    OFFERED,
    TIMEOUT,
)

from yoked.doctor import sshtry
from yoked.doctor.sshtry import failure_of, seen_by, signs_from_here, try_again, way_to
from yoked.doctor.sshway import Signs, Try, Way
from yoked.errors import HostError
from yoked.fleet.model import Host
from yoked.records.examination import SshFailure
from yoked.remote.client import AgentClient
from yoked.remote.ssh import NoAgentError, explain_end
from yoked.remote.transport import start_agent

DEADLINE_S = 20.0
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("_LOGIN_S", 1.0),
        ("_PROGRAM_S", 2.0),
        ("_PROGRAM_OF_BUSY_S", 2.0),
    ):
        monkeypatch.setattr(sshtry, name, value)


def take(monkeypatch: pytest.MonkeyPatch, tried: Try, signs: Signs | None = None) -> None:
    monkeypatch.setattr(sshtry, "try_again", lambda *args: tried)
    monkeypatch.setattr(sshtry, "signs_from_here", lambda way: signs or Signs())


def an_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "ssh"
    version = '[ "$1" != -V ] || { echo OpenSSH_9.2p1 >&2; exit; }'
    program.write_text(f"#!/bin/sh\n{version}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


SAYS_IN = 'echo Authenticated to attic "([10.0.0.2]:22)" using publickey. >&2'


@pytest.mark.parametrize(
    ("ssh_does", "started", "took", "printed"),
    [
        (f"{SAYS_IN}; exec sleep 60", False, False, ""),
        ("echo debug1: Connecting to attic port 22. >&2; exec sleep 60", False, False, ""),
        (f"{SAYS_IN}; echo not available; exec sleep 60", False, False, "not available\n"),
        # A busy host: its program comes late, and it comes.
        (f"{SAYS_IN}; sleep 0.5; echo yoked-is-in; exec sleep 60", True, False, ""),
        (f"{SAYS_IN}; echo yoked-is-in; cat >/dev/null; echo yoked-has-it", True, True, ""),
        # What goes on and on is not read to its end.
        ("yes", False, False, None),
    ],
    ids=["in", "not-in", "nologin", "slow", "all", "endless"],
)
def test_a_try_shows_how_far_it_came(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ssh_does: str,
    started: bool,
    took: bool,
    printed: str | None,
) -> None:
    an_ssh(tmp_path, monkeypatch, ssh_does)

    tried = try_again("attic", None)

    assert (tried.started, tried.took) == (started, took)
    assert printed is None or tried.printed == printed
    assert ("Authenticated" in tried.words) is (SAYS_IN in ssh_does)


@needs_ssh
def test_a_shell_that_lets_nobody_in_is_told_with_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, Try(IN))
    config = tmp_path / "config"
    config.write_text("Host attic\n  User ada\n  Port 2222\n")

    def user(said: str, status: int) -> str | None:
        problem = explain_end("attic", status, said, ssh=True)
        return failure_of("attic", config, problem).user

    assert user("This account is currently not available.", 1) == "ada"
    assert user(DENIED, 255) == "ada"
    assert user("Connection refused", 255) is None
    assert way_to("attic", config).port == 2222


@pytest.mark.parametrize(("words", "kind"), [(IN, "shell"), ("", "timeout")])
def test_where_nobody_said_anything_a_try_tells_the_shell_from_the_network(
    monkeypatch: pytest.MonkeyPatch, words: str, kind: str
) -> None:
    take(monkeypatch, Try(words))

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


@needs_ssh
@pytest.mark.parametrize(("passphrase", "mode"), [("long", 0o600), ("", 0o644), ("", 0o600)])
def test_a_key_that_cannot_be_used_here_is_known_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passphrase: str, mode: int
) -> None:
    key = tmp_path / "id"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    key.chmod(mode)
    config = tmp_path / "config"
    config.write_text(f"Host attic\n  IdentityFile {key}\n")
    words = ACCEPTED.replace("/home/ada/.ssh/id_ed25519", str(key))
    open_to_all = f"Permissions 0644 for '{key}' are too open.\n" if mode == 0o644 else ""
    take(monkeypatch, Try(words + open_to_all))

    failure = failure_of("attic", config, explain_end("attic", 255, DENIED, ssh=True))

    expected = "passphrase" if passphrase else "key-mode" if open_to_all else "unused-key"
    assert failure.cause == expected
    assert expected == "unused-key" or failure.about == str(key)


@needs_ssh
@pytest.mark.parametrize(
    ("setting", "offer", "cause"),
    [
        ("HostKeyAlgorithms ecdsa-sha2-nistp521", "ssh-ed25519", "narrowed"),
        ("User ada", "ssh-dss", "no-match"),
    ],
)
def test_a_setting_here_that_leaves_out_what_a_host_has_is_named(
    tmp_path: Path, setting: str, offer: str, cause: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"{setting}\n")
    said = f"{NO_MATCH} host key type found. Their offer: {offer}"

    assert failure_of("attic", config, explain_end("attic", 255, said, ssh=True)).cause == cause


EXECUTING = "echo debug1: Executing command: \\'sleep 60 attic\\' >&2; sleep 60"


@pytest.mark.parametrize("given", [True, False])
def test_a_program_that_ssh_asks_first_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    config = tmp_path / "config"
    config.write_text('Host *\n  User ada\nMatch originalhost x exec "sleep 60 %h"\n  Port 1\n')
    an_ssh(
        tmp_path,
        monkeypatch,
        f'[ "$1" != -G ] || exit 0\necho debug1: Reading configuration data {config} >&2\n'
        f"{EXECUTING}",
    )
    problem = NoAgentError("no agent answered", kind="timeout")

    failure = failure_of("attic", config if given else None, problem)

    assert (failure.kind, failure.cause) == ("timeout", "asks")
    assert failure.about == ("" if given else str(config)) + ":3"
    assert "sleep 60 attic" in failure.text


def test_an_agent_that_takes_questions_and_answers_none_is_dumb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setattr(sshtry, "run_here", lambda *words, limit_s=0.3: None)
    take(monkeypatch, Try("debug1: SSH2_MSG_NEWKEYS received\n", turn="here"))

    failure = failure_of("attic", None, NoAgentError("no agent answered", kind="timeout"))

    assert failure.cause == "agent"


@needs_ssh
def test_a_pub_of_another_key_is_told_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("id", "older"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True, capture_output=True)
    config = tmp_path / "config"
    config.write_text(f"Host attic\n  IdentityFile {tmp_path / 'id'}\n")
    words = OFFERED.replace("/home/ada/.ssh/id_ed25519", str(tmp_path / "id")) + METHODS
    take(monkeypatch, Try(words))

    def cause() -> str:
        return failure_of("attic", config, explain_end("attic", 255, DENIED, ssh=True)).cause

    assert cause() == "refused-key"
    (tmp_path / "id.pub").write_text((tmp_path / "older.pub").read_text())
    assert cause() == "stale-pub"


@needs_ssh
@pytest.mark.parametrize(
    ("valid", "named", "cause"),
    [
        ("-2w:-1d", "", "certificate"),
        ("-2w:-1d", "CertificateFile", "certificate"),
        ("-1d:+1d", "", "refused-cert"),
    ],
)
def test_a_certificate_that_no_longer_counts_is_known_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valid: str, named: str, cause: str
) -> None:
    for name in ("id", "ca"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True, capture_output=True)
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "me", "-n", "ada", "-V", valid]
    subprocess.run([*sign, str(tmp_path / "id.pub")], check=True, capture_output=True)
    certificate = tmp_path / "id-cert.pub"
    if named:
        certificate = certificate.rename(tmp_path / "this week.pub")
    config = tmp_path / "config"
    setting = f'  {named} "{certificate}"\n' if named else ""
    config.write_text(f"Host attic\n  User ada\n  IdentityFile {tmp_path / 'id'}\n{setting}")
    take(monkeypatch, Try(CERTIFIED.replace("/home/ada/.ssh/id_ed25519", str(tmp_path / "id"))))

    failure = failure_of("attic", config, explain_end("attic", 255, DENIED, ssh=True))

    assert failure.cause == cause
    assert (failure.about == str(certificate)) is (cause == "certificate")


@needs_ssh
def test_a_key_that_the_settings_name_and_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host attic\n  IdentityFile {tmp_path / 'gone'}\n")
    take(monkeypatch, Try(GONE.replace("/home/ada/.ssh/id_ed25519", str(tmp_path / "gone"))))

    failure = failure_of("attic", config, explain_end("attic", 255, DENIED, ssh=True))

    assert (failure.cause, failure.about) == ("key-gone", str(tmp_path / "gone"))


@needs_ssh
def test_behind_a_jump_host_a_refusal_is_looked_at_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("Host attic\n  ProxyJump ada@gate:2222\n")
    said = "ssh: connect to host gate port 2222: Connection refused"
    take(monkeypatch, Try(said))

    failure = failure_of("attic", config, explain_end("attic", 255, said, ssh=True))

    assert (failure.kind, failure.cause, failure.about) == ("other", "jump-in", "gate")
    assert failure_of("garage", config, explain_end("garage", 255, said, ssh=True)).cause == ""


def test_an_ssh_that_greets_is_known_by_what_it_prints_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_ssh(tmp_path, monkeypatch, "")
    assert sshtry.ssh_here(None, None)["ssh_prints"] is None

    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho You are recorded.; echo OpenSSH_9.2p1 >&2\n")
    told = sshtry.ssh_here(None, None)

    assert told == {
        "ssh": "OpenSSH_9.2p1", "ssh_path": str(program), "ssh_prints": "You are recorded.",
        "ssh_settings_s": None,
    }  # fmt: skip


def test_the_time_that_ssh_takes_for_its_settings_is_this_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_ssh(tmp_path, monkeypatch, "sleep 0.5")

    settings_s = sshtry.ssh_here("attic", None)["ssh_settings_s"]

    assert isinstance(settings_s, float)
    assert settings_s >= 0.5


def test_only_a_file_that_ssh_reads_is_named_as_its_own(tmp_path: Path) -> None:
    config = tmp_path / "config"
    for file, cause in ((config, "config-mode"), ("/etc/passwd", "config")):
        said = f"Bad owner or permissions on {file}"
        failure = failure_of("attic", config, explain_end("attic", 255, said, ssh=True))
        assert failure.cause == cause
        assert failure.about in (str(config), "")


def test_a_connection_that_is_closed_at_once_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(monkeypatch, Try("debug1: Connection established.\n"))

    failure = failure_of("attic", None, explain_end("attic", 255, CLOSED.text, ssh=True))

    assert failure.cause == "closed"


@pytest.mark.parametrize(
    ("small", "large", "signs"),
    [
        (0, 0, Signs(pings=True, large=True)),
        (0, 1, Signs(pings=True, large=False)),
        (1, 1, Signs()),
    ],
)
def test_a_ping_is_sent_where_ssh_dials_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, large: int, signs: Signs
) -> None:
    ping = tmp_path / "ping"
    ping.write_text(f'#!/bin/sh\ncase "$*" in *1472*) exit {large} ;; esac\nexit {small}\n')
    ping.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert signs_from_here(Way(address="10.0.0.2")) == signs
    assert signs_from_here(Way(address="10.0.0.2", proxy="command")) == Signs()
    # A name may mean another host there.
    assert signs_from_here(Way(address="attic")) == Signs()


class Study:
    """A host that looks at another. error: of its dial; connected: whether that came so far."""

    def __init__(self, *, connected: bool, error: str, pings: bool = False) -> None:
        self.answer = {"connected": connected, "error": error}
        self.pings = pings
        self.asked: list[str] = []

    def call(self, name: str, *, data: bytes = b"", timeout_s: float = 30.0, **args: Any) -> Any:
        self.asked.append(name)
        if name == "run":
            return {"exit_status": 0 if self.pings else 1}
        assert args["targets"] == [{"address": "10.0.0.2", "port": 22}]
        return [self.answer]

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"connected": True, "error": "ETIMEDOUT"}, "mute"),
        ({"connected": True, "error": "ECONNRESET"}, "mute"),
        ({"connected": True, "error": "EPROTO"}, "filtered"),
        ({"connected": False, "error": "ECONNREFUSED"}, "filtered"),
        ({"connected": False, "error": "ETIMEDOUT", "pings": True}, "filtered"),
        ({"connected": False, "error": "EHOSTUNREACH"}, ""),
    ],
)
def test_another_host_sees_what_this_machine_does_not(
    monkeypatch: pytest.MonkeyPatch, answer: Mapping[str, Any], cause: str
) -> None:
    monkeypatch.setattr(sshtry, "way_to", lambda *args: Way(address="10.0.0.2", proxy="socket"))

    failure = seen_by(TIMEOUT, "attic", None, "study", Study(**answer))

    assert failure.cause == cause
    assert ("seen from study" in failure.text) is bool(cause)


def test_another_host_is_asked_only_of_silence() -> None:
    study = Study(connected=True, error="EPROTO")
    for told in (SshFailure("refused", ""), SshFailure("timeout", "", cause="mute")):
        assert seen_by(told, "attic", None, "study", study) == told
    assert study.asked == []


def test_another_host_that_answers_nothing_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(Study):
        def call(
            self, name: str, *, data: bytes = b"", timeout_s: float = 30.0, **args: Any
        ) -> Any:
            raise HostError("study: gone")

    monkeypatch.setattr(sshtry, "way_to", lambda *args: Way(address="10.0.0.2"))

    assert seen_by(TIMEOUT, "attic", None, "study", Gone(connected=True, error="")) == TIMEOUT


@pytest.mark.parametrize(("cause", "tries"), [("slow", [4, 16]), ("hangs", [4])])
def test_a_host_that_is_slow_is_waited_for_once_more_and_longer(
    monkeypatch: pytest.MonkeyPatch, cause: str, tries: list[int]
) -> None:
    told = SshFailure("timeout", "it takes long", cause=cause)
    monkeypatch.setattr(sshtry, "failure_of", lambda *args: told)
    tried: list[int] = []

    def connect(host: Host, patience_s: int) -> AgentClient:
        tried.append(patience_s)
        raise HostError(f"{host.name}: no agent")

    assert sshtry.reached(Host("attic"), connect, 4, None) == told
    assert tried == tries


@pytest.mark.parametrize(
    ("said", "python", "asks"),
    [
        ("exec: /v/bin/python: cannot execute: Permission denied", "/v/bin/python", True),
        ("ModuleNotFoundError: No module named 'math'", "/v/bin/python", True),
        ("ModuleNotFoundError: No module named 'math'", None, False),
        ("This account is currently not available.", "/v/bin/python", False),
    ],
)
def test_why_an_interpreter_does_not_run_is_asked_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, python: str | None, asks: bool
) -> None:
    asked = []

    def ask(told: SshFailure, *args: object) -> SshFailure:
        asked.append(args)
        return SshFailure("python", said, cause="barred")

    monkeypatch.setattr(sshtry, "of_interpreter", ask)
    monkeypatch.setattr(sshtry, "of_start_files", lambda told, *args: told)
    problem = explain_end("attic", 1, said, ssh=False)

    failure_of("attic", tmp_path, problem, python=python)

    assert asked == ([("attic", tmp_path, python)] if asks else [])


@needs_ssh
def test_a_console_is_asked_where_the_host_alone_knows_and_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id")]
    subprocess.run(make, check=True, capture_output=True)
    config = tmp_path / "config"
    config.write_text(f"Host attic\n  User ada\n  IdentityFile {tmp_path / 'id'}\n")
    asked: list[tuple[str | None, str]] = []

    def ask(
        console: Sequence[str], told: SshFailure, key: str, port: int, address: str
    ) -> SshFailure:
        assert (port, address) == (22, "attic")
        asked.append((told.user, key))
        return told

    monkeypatch.setattr(sshtry, "told_by", ask)
    take(monkeypatch, Try("debug1: Connection established.\n"))

    for said in (CLOSED.text, "Could not resolve hostname attic"):
        failure_of("attic", config, explain_end("attic", 255, said, ssh=True), ["sh"])
    failure_of("attic", config, explain_end("attic", 255, CLOSED.text, ssh=True))

    assert [user for user, _ in asked] == ["ada"]
    assert asked[0][1].startswith("SHA256:")


@needs_ssh
@pytest.mark.parametrize(
    ("lines", "words", "dialled"),
    [
        (
            "ProxyCommand dial %h %p\n  ProxyUseFdpass yes",
            "ssh: connect to host 192.168.77.3 port 2222: No route to host",
            (2222, "192.168.77.3"),
        ),
        ("ProxyJump garage", "ada@192.168.77.3: Permission denied (publickey).", ()),
    ],
)
def test_a_console_is_told_where_ssh_dials_unless_another_host_dials_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    words: str,
    dialled: tuple[object, ...],
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host attic\n  HostName 192.168.77.3\n  Port 2222\n  {lines}\n")
    spoke = "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2\n"
    login = Try(f"{spoke}debug1: Authenticating to 192.168.77.3:2222 as 'ada'\n")
    given: list[tuple[object, ...]] = []

    def ask(console: Sequence[str], told: SshFailure, key: str, *where: object) -> SshFailure:
        given.append(where)
        return told

    monkeypatch.setattr(sshtry, "told_by", ask)
    monkeypatch.setattr(sshtry, "signs_from_here", lambda way: Signs())
    monkeypatch.setattr(sshtry, "try_again", lambda host, config: login)

    failure_of("attic", config, explain_end("attic", 255, words, ssh=True), ["sh"])

    assert given == [dialled]
