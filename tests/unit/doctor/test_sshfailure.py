"""Why a host has no agent: told from ssh's words, and from what one more try shows of the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.doctor.checks.ssh_causes import CAUSES
from yoked.doctor.sshfailure import explained, lost, told_failure, wants_try
from yoked.doctor.sshway import (
    Signs,
    Try,
    Way,
    flaw_of,
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
NO_HOST_KEY = (
    "No ED25519 host key is known for attic and you have requested strict checking.\n"
    "Host key verification failed."
)
BAD_CERTIFICATE = f"Certificate invalid: expired\r\n{NO_HOST_KEY}"
CHANGED = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @"
MISTYPED = (
    "/home/ada/.ssh/config: line 3: Bad configuration option: hostnam\n"
    "/home/ada/.ssh/config: terminating, 1 bad configuration options"
)
REVOKED_LIST = (
    "Error checking host key ED25519 SHA256:hz0udwKJdm3Pd8ZcAFIi6K5+b/BqEK09MxpVGqKPGfk in revoked "
    "keys file /mnt/it share/revoked_host_keys: No such file or directory\r\n"
    "Host key verification failed."
)
NO_MATCH = "Unable to negotiate with 192.168.1.12 port 22: no matching"


@pytest.mark.parametrize(
    ("said", "kind", "cause", "about"),
    [
        (REVOKED, "host-key", "revoked", ""),
        (REVOKED_LIST, "host-key", "revoked-list", "/mnt/it share/revoked_host_keys"),
        (BAD_CERTIFICATE, "host-key", "host-certificate", "expired"),
        (BAD_CERTIFICATE.replace("expired", "not yet valid"), "host-key", "host-certificate",
         "not yet valid"),
        (BAD_CERTIFICATE.replace("expired", "name is not a listed principal"), "host-key",
         "host-certificate", "name is not a listed principal"),
        # It may be another machine: what its certificate lacks is the least of it.
        (f"Certificate invalid: expired\r\n{CHANGED}\nHost key verification failed.",
         "host-key", "", ""),
        # The plain key was known, and ssh went on.
        (f"Certificate invalid: expired\r\n{DENIED}", "denied", "", ""),
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


CERTIFIED = (
    f"{OFFERED}{METHODS}debug1: Offering public key: /home/ada/.ssh/id_ed25519 ED25519-CERT {PRINT}"
    f" explicit\n{METHODS}"
)
CERTIFICATE = f"{OWN}-cert.pub"
HAS_KEYS = "debug1: get_agent_identities: agent returned 1 keys\n"
GONE = (
    f"{KEYED}{HAS_KEYS}{METHODS}debug1: Trying private key: {OWN}\n"
    f"no such identity: {OWN}: No such file or directory\n"
)
REFUSES = (
    f'sign_and_send_pubkey: signing failed for ED25519 "{OWN}" from agent: agent refused operation'
)


@pytest.mark.parametrize(
    ("words", "way", "cause", "about"),
    [
        (f"{OFFERED}{METHODS}", Way(), "refused-key", PRINT),
        (CERTIFIED, Way(certificates=((CERTIFICATE, "expired at 2026-11-26T21:12:15"),)),
         "certificate", CERTIFICATE),
        (CERTIFIED, Way(certificates=((CERTIFICATE, ""),)), "refused-cert", PRINT),
        # Nobody was shown it.
        (f"{OFFERED}{METHODS}", Way(certificates=((CERTIFICATE, "expired at noon"),)),
         "refused-key", PRINT),
        (GONE, Way(gone=(OWN,)), "key-gone", OWN),
        (GONE, Way(gone=(OWN,), is_files_only=True), "key-gone", OWN),
        # Who writes that into a greeting names no file of this machine.
        (GONE, Way(), "no-key", ""),
        (f"{KEYED}{HAS_KEYS}{METHODS}", Way(is_files_only=True), "kept-keys", ""),
        (f"{KEYED}{HAS_KEYS}{METHODS}", Way(), "no-key", ""),
        (f"{KEYED}{METHODS}", Way(is_files_only=True), "no-key", ""),
        (f"{ACCEPTED}{REFUSES}\n", Way(), "agent-refuses", PRINT),
        (f"{ACCEPTED}{TOO_OPEN}".replace(OWN, f"{OWN}.pub"), Way(loose=(f"{OWN}.pub",)),
         "agent-lacks", f"{OWN}.pub"),
        (f"{EXT}{OFFERED}{METHODS}", Way(), "algorithm", ""),
        (f"{KEYED}{METHODS}debug1: send_pubkey_test: no mutual signature algorithm\n", Way(),
         "algorithm", ""),
        (PARTIAL, Way(), "second-factor", "password"),
        (f"{ACCEPTED}{METHODS}", Way(), "after-key", PRINT),
        (f"{ACCEPTED}Connection closed by 192.168.1.12 port 22\n", Way(), "after-key", PRINT),
        (ACCEPTED, Way(locked=(OWN,)), "passphrase", OWN),
        (ACCEPTED, Way(), "unused-key", PRINT),
        (f"{ACCEPTED}sign_and_send_pubkey: signing failed: agent refused operation\n",
         Way(locked=(OWN,)), "agent-refuses", PRINT),
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


def test_what_is_wrong_with_a_key_here_is_told_beside_what_the_host_said() -> None:
    expired = Way(certificates=((CERTIFICATE, "expired at 2026-11-26T21:12:15"),))
    some_gone = Way(gone=("/home/ada/.ssh/lab",))
    words = f"{OFFERED}{METHODS}no such identity: /home/ada/.ssh/lab: No such file or directory\n"

    failure = explained(ended(DENIED), expired, Try(CERTIFIED), Signs())
    other = explained(ended(DENIED), some_gone, Try(words), Signs())
    agents = Way(agent="/run/user/7/agent")
    unsigned = explained(ended(DENIED), agents, Try(f"{ACCEPTED}{REFUSES}\n"), Signs())

    assert failure.text.endswith(f"the certificate {CERTIFICATE} expired at 2026-11-26T21:12:15")
    assert (
        f"the key agent at /run/user/7/agent refused to sign with the key {PRINT}" in unsigned.text
    )
    assert (other.cause, other.about) == ("refused-key", PRINT)
    assert other.text.endswith("there is no /home/ada/.ssh/lab, which the settings of ssh name")


# As `ssh-keygen -L` of OpenSSH 9.2 tells of them.
LISTED = """id-cert.pub:
        Type: ssh-ed25519-cert-v01@openssh.com user certificate
        Serial: 0
        Valid: {valid}
        Principals: {names}
        Critical Options: (none)
        Extensions: 
                permit-pty
"""  # noqa: W291 - as it is written
TWO_NAMES = "\n                root\n                ada"


@pytest.mark.parametrize(
    ("valid", "names", "flaw"),
    [
        ("from 2026-11-12T21:12:15 to 2026-11-26T21:12:15", TWO_NAMES,
         "expired at 2026-11-26T21:12:15"),
        ("before 2026-11-26T21:12:15", TWO_NAMES, "expired at 2026-11-26T21:12:15"),
        ("from 2026-11-28T21:12:15 to 2026-12-02T21:12:15", TWO_NAMES,
         "is not valid before 2026-11-28T21:12:15"),
        ("after 2026-11-28T21:12:15", TWO_NAMES, "is not valid before 2026-11-28T21:12:15"),
        ("forever", "\n                bob", "is for bob and not for ada"),
        ("from 2026-11-12T21:12:15 to 2026-12-02T21:12:15", TWO_NAMES, ""),
        ("forever", "(none)", ""),
    ],
)  # fmt: skip
def test_a_certificate_tells_itself_whether_it_counts(valid: str, names: str, flaw: str) -> None:
    now = datetime(2026, 11, 27, 21, 12, 15)  # noqa: DTZ001 - ssh-keygen tells local time

    assert flaw_of(LISTED.format(valid=valid, names=names), "ada", now) == flaw


SHOWS_CERTIFICATE = (
    "debug1: Server host certificate: ssh-ed25519-cert-v01@openssh.com SHA256:J8Gm, serial 0 ID "
    f'"attic" CA ssh-ed25519 {PRINT} valid from 2026-11-26T21:13:08 to 2026-12-02T21:13:08\n'
    "debug1: No matching CA found. Retry with plain key\n"
)


def test_an_authority_that_nobody_here_knows_is_told_from_a_key_that_nobody_knows() -> None:
    failure, changed = ended(NO_HOST_KEY), ended(CHANGED)

    told = explained(failure, Way(), Try(f"{SHOWS_CERTIFICATE}{NO_HOST_KEY}"), Signs())

    assert wants_try(failure)
    assert (told.kind, told.cause, told.about) == ("host-key", "authority", PRINT)
    assert explained(failure, Way(), Try(NO_HOST_KEY), Signs()) == failure
    words = f"{SHOWS_CERTIFICATE}{CHANGED}"
    assert explained(changed, Way(), Try(words), Signs()) == changed


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


HOPS = Way(address="192.168.1.12", proxy="command", hops=("gate", "cellar"))
ONE_HOP = replace(HOPS, hops=("gate",))
IN_GATE = (
    "debug1: Executing proxy command: exec ssh -v -W '[192.168.1.12]:22' gate\n"
    "debug1: Connecting to 10.0.0.1 [10.0.0.1] port 22.\ndebug1: Connection established.\n"
    "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.6p1\n"
    "debug1: Authenticating to 10.0.0.1:22 as 'ada'\n"
    f"{METHODS}debug1: Offering public key: {KEY} explicit\n"
    f"debug1: Server accepts key: {KEY} explicit\n"
    'Authenticated to 10.0.0.1 ([10.0.0.1]:22) using "publickey".\n'
)
IN_CELLAR = 'Authenticated to cellar (via proxy) using "publickey".\n'
ENDS = (
    "stdio forwarding failed\nkex_exchange_identification: Connection closed by remote host\n"
    "Connection closed by UNKNOWN port 65535\n"
)
PROHIBITED = f"channel 0: open failed: administratively prohibited: open failed\n{ENDS}"
REFUSED_BEHIND = f"channel 0: open failed: connect failed: Connection refused\n{ENDS}"
AT_HOST = (
    "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2p1\n"
    f"debug1: Authenticating to 192.168.1.12:22 as 'ada'\n{METHODS}"
)


@pytest.mark.parametrize(
    ("said", "words", "way", "cause", "about"),
    [
        (PROHIBITED, IN_GATE + PROHIBITED, ONE_HOP, "jump-forbids", "gate"),
        (PROHIBITED, IN_GATE + PROHIBITED, HOPS, "jump-forbids", "gate"),
        (PROHIBITED, IN_GATE + IN_CELLAR + PROHIBITED, HOPS, "jump-forbids", "cellar"),
        # A ProxyCommand `ssh -W` is not told to be talkative.
        (PROHIBITED, PROHIBITED, ONE_HOP, "jump-forbids", "gate"),
        (REFUSED_BEHIND, IN_GATE + REFUSED_BEHIND, ONE_HOP, "jump-on", "gate"),
        (f"{DENIED}\n{ENDS}", f"{KEYED}{METHODS}{DENIED}\n{ENDS}", ONE_HOP, "jump-in", "gate"),
        (f"{DENIED}\n{ENDS}", f"{IN_GATE}{DENIED}\n{ENDS}", HOPS, "jump-in", "cellar"),
        (f"ssh: connect to host gate port 22: Connection refused\n{ENDS}",
         f"ssh: connect to host gate port 22: Connection refused\n{ENDS}", HOPS, "jump-in", "gate"),
        (f"{NO_HOST_KEY}\n{ENDS}", f"{NO_HOST_KEY}\n{ENDS}", ONE_HOP, "jump-in", "gate"),
    ],
)  # fmt: skip
def test_what_a_jump_host_does_not_do_is_not_the_hosts_fault(
    said: str, words: str, way: Way, cause: str, about: str
) -> None:
    failure = ended(said)

    assert wants_try(failure, way)
    told = explained(failure, way, Try(words), Signs())

    assert (told.kind, told.cause, told.about) == ("other", cause, about)
    assert about in told.text
    assert words.splitlines()[-4].removeprefix("debug1: ") in told.text


def test_behind_a_jump_host_that_does_its_part_the_hosts_own_words_count() -> None:
    denied = explained(ended(DENIED), ONE_HOP, Try(f"{IN_GATE}{AT_HOST}{DENIED}"), Signs())
    silent = explained(TIMEOUT, ONE_HOP, Try(f"{IN_GATE}{AT_HOST}"), Signs())

    assert (denied.kind, denied.cause) == ("denied", "no-key")
    assert (silent.kind, silent.cause) == ("timeout", "large")
    assert explained(TIMEOUT, ONE_HOP, Try(IN_GATE), Signs()).cause == "jump"


PROGRAM = Way(address="192.168.1.12", proxy="command", program="cloudflared")
LEADS = "debug1: Executing proxy command: exec cloudflared access ssh --hostname attic\n"
NO_END = "kex_exchange_identification: Connection closed by remote host\n"
BROWSER = (
    "A browser window should have opened at the following URL:\n"
    "https://ada:pw@home.example.com/cdn-cgi/access/cli?token=abc\n"
)
NOT_THERE = f"{LEADS}/bin/bash: line 1: exec: cloudflared: not found\n{NO_END}"
NOT_EXECUTABLE = (
    f"{LEADS}/bin/bash: line 1: exec: cloudflared: cannot execute: Permission denied\n{NO_END}"
)


@pytest.mark.parametrize(
    ("told", "words", "kind", "cause"),
    [
        (TIMEOUT, LEADS + BROWSER, "timeout", "proxy-asks"),
        (CLOSED, f"{LEADS}Password: sh: cannot open /dev/tty: No such device\n{NO_END}",
         "other", "proxy-asks"),
        (CLOSED, NOT_THERE, "other", "proxy-gone"),
        (ended(NOT_EXECUTABLE), NOT_EXECUTABLE, "other", "proxy-gone"),
        (CLOSED, f"{LEADS}no such profile: lab\n{NO_END}", "other", "proxy-ends"),
        # The way behind it is closed: that may be the host's fault.
        (CLOSED, f"{LEADS}failed to connect to origin: connection refused\n{NO_END}",
         "other", "jump"),
        (CLOSED, f"{LEADS}{NO_END}", "other", "jump"),
        (TIMEOUT, f"{LEADS}INF connection registered\n", "timeout", "jump"),
        (TIMEOUT, LEADS, "timeout", "jump"),
    ],
)  # fmt: skip
def test_a_program_that_should_lead_to_a_host_is_heard(
    told: SshFailure, words: str, kind: str, cause: str
) -> None:
    failure = explained(told, PROGRAM, Try(words), Signs())

    assert (failure.kind, failure.cause) == (kind, cause)
    assert failure.about == ("" if cause == "jump" else "cloudflared")


def test_what_a_program_says_in_the_middle_of_sshs_words_is_parted_from_them() -> None:
    words = f"{LEADS}sh: 2: debug1: identity file /k type -1\nno profile: lab\n{NO_END}"

    failure = explained(CLOSED, PROGRAM, Try(words), Signs())

    assert failure.text.endswith("and says: sh: 2: / no profile: lab")


def test_a_program_that_handed_a_socket_over_has_done_its_part() -> None:
    words = f"{LEADS}{BANNER}Connection closed by 192.168.1.12 port 22\n"
    said = "Connection closed by 192.168.1.12 port 22"

    failure = explained(ended(said), replace(PROGRAM, proxy="socket"), Try(words), Signs())

    assert (failure.text, failure.cause) == (said, "cut")


def test_what_lets_somebody_in_is_left_out_of_what_a_program_says() -> None:
    words = f"{LEADS}{BROWSER}the last one was --token=abc12\n"

    failure = explained(TIMEOUT, PROGRAM, Try(words), Signs())

    assert "A browser window should have opened" in failure.text
    assert "@home.example.com/cdn-cgi/access/cli?..." in failure.text
    assert not any(secret in failure.text for secret in ("abc", "pw", "--hostname"))


@pytest.mark.parametrize(
    ("settings", "program", "hops"),
    [
        ("proxyjump ada@gate:2222,cellar", "", ("gate", "cellar")),
        ("proxyjump ssh://ada@gate:2222", "", ("gate",)),
        ("proxycommand exec /opt/cloudflared access ssh --hostname %h", "/opt/cloudflared", ()),
        ("proxycommand ssh -F cfg -p 2222 -W [%h]:%p ada@gate", "ssh", ("gate",)),
        ("proxycommand /usr/bin/ssh gate -W %h:%p", "/usr/bin/ssh", ("gate",)),
        ("proxycommand TOKEN=abc /opt/cloudflared %h", "/opt/cloudflared", ()),
        ("proxycommand ssh gate nc %h %p", "ssh", ()),
        ("proxycommand ssh --new gate", "", ()),
        ("proxycommand sh -c 'it is", "", ()),
        ("proxycommand none", "", ()),
    ],
)
def test_who_stands_between_is_told_by_the_settings(
    settings: str, program: str, hops: tuple[str, ...]
) -> None:
    way = way_of(f"hostname attic\n{settings}\n")

    assert (way.program, way.hops) == (program, hops)


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
