"""Why a host has no agent: told from ssh's words, and from what one more try shows of the way."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.doctor.checks.ssh_causes import CAUSES
from yoked.doctor.sshfailure import explained, lost, told_failure, wants_try
from yoked.doctor.sshway import (
    Signs,
    Try,
    Way,
    is_narrowed,
    louder_left_out,
    turn_of,
    way_of,
)
from yoked.errors import HostError, NoPythonError
from yoked.records.examination import SshFailure, SshKind
from yoked.remote.ssh import NoAgentError, explain_end, forget_key
from yoked.remote.transport import start_agent

PRINT = "SHA256:" + "k" * 43
KEY = f"/home/ada/.ssh/id_ed25519 ED25519 {PRINT}"
DENIED = "ada@192.168.1.12: Permission denied (publickey)."

# As OpenSSH 9.2 says it with -v.
CONNECTING = "debug1: Connecting to attic [192.168.1.12] port 22.\n"
CONNECTED = f"{CONNECTING}debug1: Connection established.\n"
BANNER = (
    f"{CONNECTED}debug1: Local version string SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u10\n"
    "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.6p1\n"
)
HUNG = f"{BANNER}debug1: SSH2_MSG_KEXINIT sent\ndebug1: expecting SSH2_MSG_KEX_ECDH_REPLY\n"
KEYED = f"{BANNER}debug1: SSH2_MSG_NEWKEYS received\n"
METHODS = "debug1: Authentications that can continue: publickey\n"
OFFERED = f"{KEYED}{METHODS}debug1: Offering public key: {KEY} explicit\n"
ACCEPTED = f"{OFFERED}debug1: Server accepts key: {KEY} explicit\n"
IN = f'{ACCEPTED}Authenticated to attic ([192.168.1.12]:22) using "publickey".\n'


def ended(said: str, status: int = 255) -> SshFailure:
    return told_failure(explain_end("attic", status, said, ssh=True))


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
    failure = ended(said)

    assert (failure.kind, failure.cause) == (kind, "")
    assert failure.text in said
    assert failure.fix


@pytest.mark.parametrize("what", ["incorrect signature", "message authentication code incorrect"])
def test_what_arrives_otherwise_than_it_was_sent_is_looked_for_in_rules(what: str) -> None:
    failure = ended(f"ssh_dispatch_run_fatal: Connection to 192.168.1.11 port 22: {what}")

    assert (failure.kind, failure.cause) == ("other", "altered")


REVOKED = (
    "@       WARNING: REVOKED HOST KEY DETECTED!               @\n"
    "The ED25519 host key for attic is marked as revoked.\n"
    "This could mean that a stolen key is being used to impersonate this host.\n"
    "Host key verification failed."
)
NO_JUMP = (
    "channel 0: open failed: connect failed: Host is down\nstdio forwarding failed\n"
    "kex_exchange_identification: Connection closed by remote host"
)
BIND = (
    "bind 10.99.1.7: Cannot assign requested address\nssh: connect to host attic port 22: failure"
)
BOOTING = (
    "System is booting up. Unprivileged users are not permitted to log in yet.\n"
    "Connection closed by 192.168.1.12 port 22"
)
MISTYPED = (
    "/home/ada/.ssh/config: line 3: Bad configuration option: hostnam\n"
    "/home/ada/.ssh/config: terminating, 1 bad configuration options"
)
NO_MATCH = "Unable to negotiate with 192.168.1.12 port 22: no matching"


@pytest.mark.parametrize(
    ("said", "kind", "cause", "about"),
    [
        (REVOKED, "host-key", "revoked", ""),
        (f"{NO_MATCH} key exchange method found. Their offer: diffie-hellman-group1-sha1",
         "other", "no-match", ""),
        (f"{NO_MATCH} host key type found. Their offer: ssh-rsa", "other", "no-match", ""),
        ("channel 0: open failed: connect failed: open failed", "other", "no-session", ""),
        ("mux_x\nSession open refused by peer", "other", "no-session", ""),
        (NO_JUMP, "other", "jump", ""),
        ("Received disconnect from 192.168.1.12 port 22:2: Too many authentication failures",
         "denied", "too-many", ""),
        (MISTYPED, "other", "config", "/home/ada/.ssh/config"),
        (BIND, "other", "bind", ""),
        ("ssh: connect to host attic port 22: Permission denied", "unreachable", "forbidden", ""),
        ("ssh: connect to host attic port 22: Network is unreachable", "unreachable", "no-route",
         ""),
        (BOOTING, "other", "starting", ""),
        ("/home/ada/.ssh/config line 5: no argument after keyword \"port\"",
         "other", "config", "/home/ada/.ssh/config"),
        ("Bad owner or permissions on /home/ada/.ssh/config",
         "other", "config-mode", "/home/ada/.ssh/config"),
        # A warning, after which ssh goes on: what it ends with is another thing.
        (f"/home/ada/.ssh/config line 3: Deprecated option \"useroaming\"\n{DENIED}",
         "denied", "", ""),
    ],
)  # fmt: skip
def test_words_of_ssh_that_leave_no_doubt_need_no_other_try(
    said: str, kind: str, cause: str, about: str
) -> None:
    failure = ended(said)

    assert (failure.kind, failure.cause, failure.about) == (kind, cause, about)
    assert wants_try(failure) is (cause == "")
    assert failure.text in said.replace("\n", " / ")


@pytest.mark.parametrize(
    ("said", "status", "kind", "cause", "about"),
    [
        ("This account is currently not available.", 1, "shell", "nologin", ""),
        ("This service allows sftp connections only.", 1, "shell", "sftp-only", ""),
        ("/bin/bash: No such file or directory", 1, "shell", "chroot", "/bin/bash"),
        ("bash: line 1: exec: /opt/py/bin/python3.11: cannot execute: Permission denied", 126,
         "python", "not-executable", "/opt/py/bin/python3.11"),
        ("sh: 1: exec: /opt/python: Permission denied", 126,
         "python", "not-executable", "/opt/python"),
        ("Please login as the user \"ubuntu\" rather than the user \"root\".", 142,
         "shell", "wrong-user", "ubuntu"),
        ("WARNING: Your password has expired.\nPassword change required but no TTY available.", 1,
         "denied", "expired", ""),
        ("You are required to change your password immediately (root enforced)", 1,
         "denied", "expired", ""),
        ("rbash: line 1: exec: restricted", 1, "shell", "restricted", ""),
        ("bash: cannot create temp file for here-document: No space left on device", 1,
         "shell", "full", ""),
        ("Fatal Python error: init_fs_encoding: failed to get the Python codec", 1,
         "python", "died", ""),
        ("", 137, "python", "died", ""),
        # Anything may have said these.
        ("This account is for backups only", 0, "shell", "", ""),
        ("", 1, "shell", "", ""),
    ],
)  # fmt: skip
def test_what_is_in_the_way_of_a_program_is_told_from_a_start_file(
    said: str, status: int, kind: str, cause: str, about: str
) -> None:
    failure = ended(said, status)

    assert (failure.kind, failure.cause, failure.about) == (kind, cause, about)


SHELL = SshFailure("shell", "This account is for backups only")
FORCED = "debug1: Remote: /root/.ssh/authorized_keys:2: key options: command user-rc\n"


@pytest.mark.parametrize(
    ("told", "tried", "kind", "cause", "about"),
    [
        (SHELL, Try(IN), "shell", "", ""),
        (SHELL, Try(f"{FORCED}{IN}"), "shell", "key-command", "/root/.ssh/authorized_keys:2"),
        (replace(SHELL, cause="sftp-only"), Try(f"{FORCED}{IN}"), "shell", "key-command",
         "/root/.ssh/authorized_keys:2"),
        (SHELL, Try(IN, started=True, took=True), "python", "died", ""),
        (SHELL, Try(IN, printed="This account is currently not available.\n"),
         "shell", "nologin", ""),
    ],
)  # fmt: skip
def test_one_more_try_shows_what_the_key_or_the_shell_does_instead(
    told: SshFailure, tried: Try, kind: str, cause: str, about: str
) -> None:
    failure = explained(told, Way(user="ada"), tried, Signs())

    assert (failure.kind, failure.cause, failure.about) == (kind, cause, about)
    assert failure.user == "ada"


OWN = "/home/ada/.ssh/id_ed25519"
TOO_OPEN = f"Permissions 0644 for '{OWN}' are too open.\nLoad key \"{OWN}\": bad permissions\n"
PARTIAL = (
    f'{ACCEPTED}Authenticated using "publickey" with partial success.\n'
    "debug1: Authentications that can continue: password\n"
)
EXT = "debug1: kex_input_ext_info: server-sig-algs=<rsa-sha2-512,rsa-sha2-256>\n"


@pytest.mark.parametrize(
    ("words", "way", "cause", "about"),
    [
        (f"{OFFERED}{METHODS}", Way(), "refused-key", PRINT),
        (f"{EXT}{OFFERED}{METHODS}", Way(), "algorithm", ""),
        (f"{KEYED}{METHODS}debug1: send_pubkey_test: no mutual signature algorithm\n", Way(),
         "algorithm", ""),
        (PARTIAL, Way(), "second-factor", "password"),
        (f"{ACCEPTED}{METHODS}", Way(), "after-key", PRINT),
        (f"{ACCEPTED}Connection closed by 192.168.1.12 port 22\n", Way(), "after-key", PRINT),
        (ACCEPTED, Way(locked=(OWN,)), "passphrase", OWN),
        (ACCEPTED, Way(), "unused-key", PRINT),
        (f"{ACCEPTED}sign_and_send_pubkey: signing failed: agent refused operation\n",
         Way(locked=(OWN,)), "unused-key", PRINT),
        (f"{ACCEPTED}{TOO_OPEN}", Way(loose=(OWN,)), "key-mode", OWN),
        # Who writes that into a greeting does not get the mode of another file changed.
        (f"Permissions 0644 for '/etc/passwd' are too open.\n{OFFERED}{METHODS}", Way(),
         "refused-key", PRINT),
        (f"{KEYED}{METHODS}", Way(), "no-key", ""),
        (f"{KEYED}{METHODS}", Way(locked=(OWN,)), "passphrase", OWN),
        (f"{KEYED}debug1: Authentications that can continue: password,keyboard-interactive\n",
         Way(), "keys-off", "password,keyboard-interactive"),
        (f"{OFFERED}{METHODS}", Way(stale=(OWN,)), "stale-pub", OWN),
        (f"{OFFERED}debug1: Offering public key: /k RSA {PRINT}\n{METHODS}", Way(stale=(OWN,)),
         "refused-key", ""),
        (CONNECTING, Way(), "", ""),
    ],
)  # fmt: skip
def test_how_far_a_key_comes_tells_why_it_does_not_let_in(
    words: str, way: Way, cause: str, about: str
) -> None:
    failure = explained(ended(DENIED), way, Try(words), Signs())

    assert (failure.kind, failure.cause, failure.about) == ("denied", cause, about)
    assert failure.text.startswith(DENIED.rstrip("."))


TIMEOUT = SshFailure("timeout", "attic: no agent answered in 8 s")
MUTE, SPEAKS = Signs("study", port="mute"), Signs("study", port="speaks")


@pytest.mark.parametrize(
    ("tried", "signs", "kind", "cause"),
    [
        (Try(CONNECTING), Signs(), "timeout", ""),
        (Try(CONNECTING), Signs(pings=True, large=True), "timeout", "filtered"),
        (Try(CONNECTING), Signs(pings=True, large=False), "timeout", "large"),
        (Try(CONNECTED), Signs(pings=True, large=True), "timeout", "mute"),
        (Try(HUNG), Signs(), "timeout", "large"),
        (Try(IN), Signs(), "shell", "hangs"),
        (Try(IN, printed="This account is currently not available."), Signs(), "shell", "nologin"),
        (Try(IN, started=True), Signs(), "timeout", "large"),
        (Try(IN, started=True, took=True), Signs(), "timeout", "slow"),
        # As another host sees it.
        (Try(), MUTE, "timeout", "mute"),
        (Try(), Signs("study", port="closes"), "timeout", "mute"),
        (Try(), SPEAKS, "timeout", "filtered"),
    ],
)
def test_silence_is_told_by_how_far_something_came(
    tried: Try, signs: Signs, kind: str, cause: str
) -> None:
    failure = explained(TIMEOUT, Way(user="ada"), tried, signs)

    assert (failure.kind, failure.cause) == (kind, cause)
    assert signs.text in failure.text


# As OpenSSH 9.2 says it with -vvv.
ASKS = (
    "OpenSSH_9.2p1\ndebug1: Reading configuration data /home/ada/.ssh/config\n"
    "debug2: checking match for 'exec \"sleep 12\"'\ndebug1: Executing command: 'sleep 12'\n"
)
RECEIVED = f"{KEYED}debug3: receive packet: type 21\n"


@pytest.mark.parametrize(
    ("words", "turn"),
    [
        ("", ""),
        (ASKS, "here"),
        (f"{ASKS}{CONNECTING}", "there"),
        (f"{ASKS}debug1: Executing proxy command: exec nc attic 22\n", "there"),
        (BANNER, "there"),
        (RECEIVED, "here"),
        (f"{RECEIVED}debug3: send packet: type 5\n", "there"),
        # Before OpenSSH told of packets.
        (KEYED, "there"),
    ],
)
def test_before_it_has_dialled_and_after_a_packet_came_it_is_this_machines_turn(
    words: str, turn: str
) -> None:
    assert turn_of(words) == turn


def test_of_the_louder_words_those_stay_that_ssh_says_otherwise() -> None:
    assert louder_left_out(RECEIVED) == KEYED


@pytest.mark.parametrize(
    ("tried", "cause", "about"),
    [
        (Try(ASKS, turn="here", place=":3", helpers=("sh -c sleep 12",)), "asks", ":3"),
        (Try(KEYED, turn="here", is_dumb=True), "agent", ""),
        (Try(KEYED, turn="here", helpers=("ssh-sk-helper",)), "helper", "ssh-sk-helper"),
        (Try(KEYED, turn="here"), "waits", ""),
        # The program is over; now the host does not answer.
        (Try(f"{ASKS}{CONNECTING}", turn="there"), "", ""),
        (Try(HUNG, turn="there", is_dumb=True), "large", ""),
    ],
)
def test_a_controller_that_waits_is_guilty_and_no_host(tried: Try, cause: str, about: str) -> None:
    failure = explained(TIMEOUT, Way(), tried, Signs())

    assert (failure.kind, failure.cause, failure.about) == ("timeout", cause, about)


def test_a_host_that_answers_is_not_called_unreachable_and_one_that_does_not_is() -> None:
    told = SshFailure("unreachable", "connect to host attic port 22: No route to host")

    assert explained(told, Way(), Try(), Signs()) == told
    assert explained(told, Way(), Try(), Signs(pings=True, large=True)).cause == "filtered"
    assert explained(told, Way(), Try(), MUTE).cause == "filtered"


def test_a_host_that_refuses_this_machine_alone_has_an_ssh_server() -> None:
    told = SshFailure("refused", "connect to host attic port 22: Connection refused")

    assert explained(told, Way(), Try(), SPEAKS).cause == "filtered"
    assert explained(told, Way(), Try(), Signs("study", port="refuses", pings=True)) == told


def test_behind_a_jump_host_silence_is_nobodys_in_particular() -> None:
    for proxy, cause in (("command", "jump"), ("socket", ""), ("", "")):
        way = Way(proxy=proxy)  # type: ignore[arg-type]
        assert explained(TIMEOUT, way, Try(), Signs()).cause == cause


CLOSED = SshFailure("other", "kex_exchange_identification: Connection closed by remote host")


@pytest.mark.parametrize(
    ("told", "words", "way", "kind", "cause"),
    [
        (CLOSED, CONNECTED, Way(), "other", "closed"),
        (CLOSED, CONNECTED, Way(proxy="command"), "other", "jump"),
        (CLOSED, HUNG, Way(), "other", "cut"),
        (SshFailure("other", "Connection closed by 192.168.1.12 port 22"), ACCEPTED
         + "Connection closed by 192.168.1.12 port 22\n", Way(), "denied", "after-key"),
        (SshFailure("other", "something new"), CONNECTED, Way(), "other", ""),
    ],
)  # fmt: skip
def test_a_connection_that_is_closed_is_told_by_when(
    told: SshFailure, words: str, way: Way, kind: str, cause: str
) -> None:
    failure = explained(told, way, Try(words), Signs())

    assert (failure.kind, failure.cause) == (kind, cause)


def test_settings_here_are_the_culprit_only_where_ssh_would_agree_without_them() -> None:
    text = f"{NO_MATCH} host key type found. Their offer: ssh-ed25519"
    usual = {"hostkeyalgorithms": "ssh-ed25519,rsa-sha2-512"}

    assert is_narrowed(text, {"hostkeyalgorithms": "ecdsa-sha2-nistp521"}, usual)
    assert not is_narrowed(text, usual, usual)
    assert not is_narrowed(text, {"hostkeyalgorithms": "rsa-sha2-512"}, {})
    assert not is_narrowed("something new", usual, usual)


def test_the_way_is_what_ssh_says_of_its_configuration() -> None:
    said = (
        "user ada\nhostname 192.168.1.12\nport 2222\nproxyusefdpass yes\n"
        "identityfile ~/.ssh/id_rsa\nidentityfile ~/.ssh/id_ed25519\n"
    )

    plain, proxied = way_of(said), way_of(f"{said}proxycommand nc %h %p\n")

    assert (plain.address, plain.port, plain.user, plain.proxy) == ("192.168.1.12", 2222, "ada", "")
    assert plain.files == ("~/.ssh/id_rsa", "~/.ssh/id_ed25519")
    assert proxied.proxy == "socket"
    assert way_of("proxyusefdpass no\nproxyjump gate\n").proxy == "command"
    assert way_of("proxycommand none\n").proxy == ""
    assert way_of(None) == Way()


def test_a_connection_that_ends_while_a_host_is_examined_is_told_as_that() -> None:
    said = "Connection to 192.168.1.12 closed by remote host."

    failure = lost(explain_end("attic", 255, said, ssh=True), 3.2)

    assert (failure.kind, failure.cause) == ("other", "ended")
    assert "after 3 s" in failure.text
    assert said in failure.text


def test_every_kind_of_failure_is_known_and_may_have_no_cause_that_is() -> None:
    assert set(CAUSES) == set(get_args(SshKind))
    assert all("" in own for own in CAUSES.values())
    assert all(each.why and each.mend for own in CAUSES.values() for each in own.values())


def test_a_shell_that_ends_is_the_shells_fault(snapshot: SnapshotAssertion) -> None:
    failure = ended("This account is currently not available.", 1)

    assert (failure.kind, failure.text) == snapshot


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
    failure = ended(f"Offending ED25519 key in /kh:2\n  {said}")

    assert "`ssh-keygen -R attic`" in failure.fix[0]
    assert "touch" not in " ".join(failure.fix)


def test_the_line_that_forgets_a_changed_key_is_sshs_own_with_the_fingerprint_it_shows() -> None:
    key = "SHA256:" + "a" * 43
    warning = (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        f"The fingerprint for the ED25519 key sent by the remote host is\n{key}.\n"
        'Offending ED25519 key in /k h:2\n  remove with:\n  ssh-keygen -f "/k h" -R "attic"'
    )

    failure = ended(warning)

    assert failure.text.endswith(f"CHANGED! It shows {key}")
    assert forget_key("attic", "\n".join((failure.text, *failure.fix))) == (
        'ssh-keygen -f "/k h" -R "attic"'
    )


def test_lines_to_type_name_the_configuration_that_ssh_was_given() -> None:
    for said in ("Permission denied (publickey).", "Host key verification failed.", "it is gone"):
        problem = explain_end("attic", 255, said, ssh=True, config="my config")
        assert "-F 'my config' attic" in problem.fix[0], problem.fix


def test_a_host_without_python_is_told_from_one_that_is_gone() -> None:
    assert told_failure(NoPythonError("no such Python")).kind == "python"
    assert told_failure(HostError("attic: gone")).kind == "other"
    missing = told_failure(HostError("attic: there is no ssh on this machine", fix="install it"))
    assert (missing.cause, missing.fix) == ("no-ssh", ("install it",))


def test_what_the_shell_said_last_is_told_where_ssh_said_nothing(
    snapshot: SnapshotAssertion,
) -> None:
    script = "echo This account is currently not available.; exit 1"

    with pytest.raises(NoAgentError) as raised:
        start_agent("attic", ["sh", "-c", script], ssh=True)

    failure = told_failure(raised.value)
    assert (failure.kind, failure.text) == snapshot
