"""What a host's own console tells of a login: the script, on a system that is made up.

getent, sshd and ssh are small scripts; sed, grep and a shell are those of this machine.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.doctor.builders import only
from tests.unit.doctor.troubles import no_agent

from yoked.doctor import console
from yoked.doctor.console import (
    LINKS,
    WORKS,
    addresses_of,
    mend_link,
    read,
    script,
    sentence,
    told_by,
)
from yoked.records.examination import BrokenLink, SshFailure

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("timeout") is None, reason="the script is for Linux"
)

ME = getpass.getuser()
KEY = f"SHA256:{'k' * 43}"
DENIED = SshFailure("denied", "Permission denied (publickey).", user=ME)
# What sshd says of its settings, of a user's login; and how a login ends.
SSHD = """\
case " $* " in
    *" -T "*) cat "$YOKED_ROOT/told" ;;
    *" -t "*) cat "$YOKED_ROOT/wrong" >&2; [ ! -s "$YOKED_ROOT/wrong" ] ;;
esac
"""
# It is told what sshd is to be told. A folder behind -i has the key.
SSH = """\
case $* in *ProxyCommand*) ;; *) cat "$YOKED_ROOT/heard"; exit 255 ;; esac
for each; do case $each in *sshd\\ -i*) proxy=$each ;; esac; last=$each; done
log=$(echo "$proxy" | sed "s/.*-E '\\([^']*\\)'.*/\\1/")
cat "$YOKED_ROOT/log" > "$log"
case $proxy in *UsePAM=no*) without=1 ;; esac
[ -e "$YOKED_ROOT/lets-in" ] || [ -n "$without" ] || exit 255
case $last in *python3*) [ ! -e "$YOKED_ROOT/no-threads" ] || [ -n "$without" ] || exit 1 ;; esac
echo yoked-in
"""
GETENT = """\
case " $* " in
    *" -s hangs "*) sleep 60 ;;
    *" -s "*) exit 0 ;;
    *" shadow "*) cat "$YOKED_ROOT/etc/shadow" ;;
    *) [ -e "$YOKED_ROOT/hangs" ] && sleep 60; grep "^$2:" "$YOKED_ROOT/looked-up" ;;
esac
"""
# The kernel's answer for the address that is dialled, and what the table has.
IP = """\
case "$*" in
    rule) cat "$YOKED_ROOT/rules" ;;
    "route get fibmatch "*) cat "$YOKED_ROOT/route" ;;
    "route get "*) echo "192.168.77.3 dev eth0 src 192.168.77.53 uid 0" ;;
    route) cat "$YOKED_ROOT/routes" ;;
    "-o address show") echo "2: eth0    inet 192.168.77.3/24 scope global eth0" ;;
    "-d -o link show") cat "$YOKED_ROOT/links" ;;
esac
"""
KEYGEN = """\
for file; do :; done
case $* in
    "-lf -") read -r key; case $key in
        *"ssh-ed25519 AAAA"*) echo "256 $(cat "$YOKED_ROOT/print") x (ED25519)" ;; esac ;;
    *-lf*) echo "256 $(cat "$YOKED_ROOT/print") x (ED25519)" ;;
    *) echo k > "$file"; echo k > "$file.pub" ;;
esac
"""


class System:
    """A system below a folder, in which a login works."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, shell = root / "home", root / "bin/own-shell"
        for name in ("etc/ssh", "etc/security", "proc/12", "run", "home/.ssh", "bin"):
            (root / name).mkdir(parents=True)
        account = f"{ME}:x:{os.getuid()}:0::{self.home}:{shell}\n"
        self.write("etc/passwd", account)
        self.write("looked-up", account)
        self.write("etc/nsswitch.conf", "passwd: files hangs [NOTFOUND=return] # and\n")
        self.write("etc/shadow", f"{ME}:*:20000:0:99999:7:::\n")
        self.write("etc/ssh/sshd_config", "Port 22\nAllowUsers ada\n")
        self.write("proc/12/comm", "sshd\n")
        self.write("proc/12/cmdline", "sshd\0-D\0-E\0/nonexistent\0")
        self.tell()
        self.write("keys", "ssh-ed25519 AAAA me\n")
        self.write("print", KEY)
        self.write("rules", "0:\tfrom all lookup local\n32766:\tfrom all lookup main\n")
        self.write("route", "local 192.168.77.3 dev lo proto kernel scope host src 192.168.77.3\n")
        self.write("heard", "debug1: Remote protocol version 2.0, remote software version x\r\n")
        for name in ("wrong", "log", "ruleset", "routes", "filters"):
            self.write(name, "")
        self.write("lets-in", "")
        self.links()
        for name, text in (
            ("sshd", SSHD), ("ssh", SSH), ("getent", GETENT), ("ssh-keygen", KEYGEN),
            ("own-shell", 'exec sh "$@"\n'), ("python3", ""), ("ldd", "echo none\n"),
            ("ip", IP), ("nft", 'cat "$YOKED_ROOT/ruleset"\n'),
            ("tc", 'cat "$YOKED_ROOT/filters"\n'),
        ):  # fmt: skip
            self.write(f"bin/{name}", f"#!/bin/sh\n{text}")
            (root / "bin" / name).chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def tell(self, *lines: str) -> None:
        """What sshd says of its settings; the usual stands behind it."""
        usual = (
            "port 22", "listenaddress 0.0.0.0:22", "usepam yes", "strictmodes no",
            f"authorizedkeysfile {self.root}/keys",
        )  # fmt: skip
        own = {each.split()[0] for each in lines}
        more = [each for each in usual if each.split()[0] not in own]
        self.write("told", "\n".join([*lines, *more]) + "\n")

    def links(self, words: str = "", *others: str) -> None:
        """What `ip -d -o link` says of the card."""
        card = f"2: eth0: <BROADCAST,MULTICAST,UP> mtu 1500 {words} state UP \\    link/ether 02:0a"
        self.write("links", "\n".join([card, *others]) + "\n")

    def refuses(self, log: str = "") -> None:
        (self.root / "lets-in").unlink()
        self.write("log", log)

    def tells(self, shell: str = "sh", shown: str = "") -> tuple[str, BrokenLink | None]:
        environment = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}", "YOKED_ROOT": str(self.root),
        }  # fmt: skip
        told = script(ME, KEY, 22, "mark", ["192.168.77.3"], shown)
        done = subprocess.run(
            [shell], input=told, capture_output=True, text=True, check=False, env=environment
        )
        assert done.stderr == ""
        assert list((self.root / "run").iterdir()) == []
        return done.stdout, read(done.stdout, "mark")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_on_a_host_in_order_every_link_holds(system: System, shell: str) -> None:
    said, link = system.tells(shell)

    assert link == BrokenLink(WORKS)
    assert [line.split()[1] for line in said.splitlines() if line.startswith("ok")] == [
        "account:", "sshd:", "port:", "account", "key:", "a", "a", "a",
    ]  # fmt: skip
    assert "NO" not in said


def hangs(system: System) -> None:
    system.write("hangs", "")


def elsewhere(system: System) -> None:
    system.write("looked-up", "")


def gone(system: System) -> None:
    (system.root / "bin/own-shell").unlink()


def broken(system: System) -> None:
    system.write("bin/own-shell", "#!/bin/sh\nexit 3\n")


def no_home(system: System) -> None:
    (system.home / ".ssh").rmdir()
    system.home.rmdir()


def no_folder(system: System) -> None:
    system.write("wrong", "Missing privilege separation directory: /run/sshd\r\n")


def open_keys(system: System) -> None:
    said = "".join(
        f"Permissions 0644 for '/etc/ssh/{kind}_key' are too open.\r\n" for kind in ("rsa", "ecdsa")
    )
    system.write("wrong", f"{said}sshd: no hostkeys available -- exiting.\r\n")


def no_keys_at_all(system: System) -> None:
    system.write("wrong", "sshd: no hostkeys available -- exiting.\r\n")


def log_stands(system: System, state: str = "T (stopped)") -> None:
    system.refuses("Accepted publickey\n")
    for pid, opened in (("1", "socket:[77]"), ("31", "socket:[78]"), ("32", "socket:[77]")):
        folder = system.root / "proc" / pid
        (folder / "fd").mkdir(parents=True)
        (folder / "fd" / "3").symlink_to(opened)
        (folder / "comm").write_text("in:imuxsock\n")
        (folder / "cmdline").write_text("/usr/sbin/rsyslogd\0-n\0")
        (folder / "status").write_text(f"State:\t{state}\n")
    (system.root / "proc/net").mkdir()
    (system.root / "dev").mkdir()
    system.write("dev/log", "")
    log = os.path.realpath(system.root / "dev/log")
    system.write("proc/net/unix", f"0: 2 0 0 2 1 78 /run/x\n0: 2 0 0 2 1 77 {log}\n")
    system.write("bin/logger", "#!/bin/sh\nexec sleep 60\n")
    (system.root / "bin/logger").chmod(0o755)


def log_waits(system: System) -> None:
    log_stands(system, "S (sleeping)")


def mistyped(system: System) -> None:
    system.write("wrong", "/etc/ssh/sshd_config: line 3: Bad configuration option: Prt\r\n")


def stopped(system: System) -> None:
    system.write("proc/12/comm", "bash\n")


def only_a_login_is_left(system: System) -> None:
    system.write("proc/12/cmdline", "sshd: root [priv]\0")


def expired(system: System) -> None:
    system.write("etc/shadow", f"{ME}:*:20000:0:99999:7::7305:\n")


def locked(system: System) -> None:
    system.write("etc/shadow", f"{ME}:!*:20000:0:99999:7:::\n")
    system.tell("usepam no")


def must_change(system: System) -> None:
    system.write("etc/shadow", f"{ME}:*:0:0:99999:7:::\n")
    system.refuses("Accepted publickey\nPassword change required\n")


def not_in_files(system: System) -> None:
    system.write("print", "SHA256:another")


def wrapped(system: System) -> None:
    system.write("keys", "# mine\nssh-ed25519 A\nAA\nA me\n")


def wrapped_at_a_blank(system: System) -> None:
    system.write("keys", "ssh-rsa BBBB you\nssh-ed25519\nAAAA\nme\n")


def from_elsewhere(system: System) -> None:
    system.write("keys", '# mine\nfrom="172.31.255.7",no-pty ssh-ed25519 AAAA me\n')


def forced_by_key(system: System) -> None:
    system.write("keys", 'command="internal-sftp" ssh-ed25519 AAAA me\n')


def loose(system: System) -> None:
    system.tell("strictmodes yes", f"authorizedkeysfile {system.home}/.ssh/keys")
    system.write("home/.ssh/keys", "ssh-ed25519 AAAA me\n")
    (system.home / ".ssh").chmod(0o777)


def not_listed(system: System) -> None:
    system.refuses("debug1: x\nUser me not allowed because not listed in AllowUsers\r\n")


def by_pam(system: System) -> None:
    system.refuses("Accepted publickey\n")
    (system.root / "etc/security/limits.conf").write_text(f"# few\n{ME} - stack 64\n")


def by_a_module(system: System) -> None:
    system.refuses("fatal: Access denied for user me by PAM account configuration\r\n")


def no_threads(system: System) -> None:
    system.write("no-threads", "")
    (system.root / "etc/security/limits.conf").write_text("* - nproc 1\n")


def forced(system: System) -> None:
    system.refuses("Accepted publickey\n")
    system.tell("usepam no", "forcecommand backup")
    system.write("etc/ssh/sshd_config", "Port 22\n  ForceCommand backup\n")


def other_port(system: System) -> None:
    system.write("heard", REFUSED)
    system.tell("port 2222")


def other_port_of_no_known_address(system: System) -> None:
    system.write("route", "")
    system.tell("port 2222")


def no_keys(system: System) -> None:
    system.tell("pubkeyauthentication no")
    system.write("etc/ssh/sshd_config", "PubkeyAuthentication no\n")


def listens_here(system: System) -> None:
    system.write("route", "")
    system.tell("listenaddress 127.0.0.1:22")
    system.write("etc/ssh/sshd_config", "Port 22\nlistenaddress 127.0.0.1\n")


CONNECTED = "debug1: Connection established.\r\n"
SILENT = f"{CONNECTED}Connection timed out during banner exchange\r\n"
CLOSED = f"{CONNECTED}Exceeded MaxStartups\r\nConnection closed by remote host\r\n"
REFUSED = "ssh: connect to host 192.168.77.3 port 22: Connection refused\r\n"
NEAR = "192.168.77.0/24 dev eth0 proto kernel scope link src 192.168.77.53\n"


def another_listens(system: System, port: str = "2222") -> None:
    """endlessh has port 22, and sshd by its settings another."""
    system.write("heard", SILENT)
    system.tell(f"port {port}")
    (system.root / "proc/net").mkdir()
    (system.root / "proc/40/fd").mkdir(parents=True)
    (system.root / "proc/40/fd/3").symlink_to("socket:[91]")
    system.write("proc/40/comm", "python3\n")
    system.write("proc/40/cmdline", "endlessh\0/run/x.py\0")
    rows = ["0: 00000000:1600 0:0 0A 0:0 0:0 0 0 0 90", "1: 00000000:0016 0:0 0A 0:0 0:0 0 0 0 91"]
    system.write("proc/net/tcp", "\n".join(["  sl", *rows]) + "\n")


def port_taken(system: System) -> None:
    another_listens(system, "22")


def another_speaks_ssh(system: System) -> None:
    another_listens(system)
    system.write("heard", "debug1: Remote protocol version 2.0, remote software version Go\r\n")
    system.tell("port 22", "port 2222")


def moved(system: System) -> None:
    system.write("route", NEAR)


def listens_elsewhere(system: System) -> None:
    system.write("heard", REFUSED)
    system.tell("listenaddress 10.147.17.1:22", "listenaddress 127.0.0.1:22")
    system.write("etc/ssh/sshd_config", "ListenAddress 10.147.17.1\nListenAddress 127.0.0.1\n")


def ipv6_alone(system: System) -> None:
    system.write("heard", REFUSED)
    system.tell("addressfamily inet6", "listenaddress [::]:22")
    system.write("etc/ssh/sshd_config", "Port 22\nAddressFamily inet6\n")


def listens_nowhere(system: System) -> None:
    system.write("heard", REFUSED)


def server_stopped(system: System) -> None:
    system.write("heard", SILENT)
    system.write("proc/12/status", "Name:\tsshd\nState:\tT (stopped)\n")


def many_startups(system: System) -> None:
    system.write("heard", CLOSED)
    title = "sshd: /usr/sbin/sshd -D -E /nonexistent [listener] 10 of 10-100 startups\0"
    system.write("proc/12/cmdline", title)


def half_upgraded(system: System) -> None:
    said = "sshd: error while loading shared libraries: libcrypto.so.9: cannot open shared object"
    system.write("wrong", f"/usr/sbin/{said} file: No such file or directory\n")


def certificates(system: System) -> None:
    system.tell("authorizedkeysfile none", "trustedusercakeys /etc/ssh/user_ca.pub")


def no_keys_file(system: System) -> None:
    system.tell("authorizedkeysfile none", "trustedusercakeys none")
    system.write("etc/ssh/sshd_config", "AuthorizedKeysFile none\n")


def directory(system: System, answers: str, of: str = "Keys", *more: str) -> None:
    """A program of which sshd asks who may log in."""
    keyword = f"authorized{of.lower()}command"
    system.tell(f"{keyword} {system.root}/bin/asked %u", f"{keyword}user {ME}", *more)
    own = f"Authorized{of}CommandUser me\nAuthorized{of}Command /bin/asked %u\n"
    system.write("etc/ssh/sshd_config", own)
    system.write("bin/asked", f"#!/bin/sh\n[ $1 = {ME} ] && {answers}\n")
    (system.root / "bin/asked").chmod(0o755)


def directory_is_silent(system: System) -> None:
    directory(system, "exec sleep 60")


def directory_of_principals_is_silent(system: System) -> None:
    directory(system, "exec sleep 60", "Principals")


def directory_lacks_the_key(system: System) -> None:
    directory(system, "exit 0", "Keys", "authorizedkeysfile none")


def directory_has_the_key(system: System) -> None:
    system.write("keys", "")
    directory(system, "echo ssh-ed25519 AAAA me")


def closed_for_maintenance(system: System) -> None:
    system.refuses("User me not allowed because /etc/nologin exists\r\n")
    system.write("etc/nologin", "until 18:00\n")
    system.write("bin/id", "#!/bin/sh\necho 1000\n")
    (system.root / "bin/id").chmod(0o755)


def start_file_waits(system: System) -> None:
    system.refuses("Accepted publickey\n")
    system.tell("usepam no")
    system.write("home/.bashrc", "true\nexit 0\n")


def no_main_rule(system: System) -> None:
    system.write("rules", "0:\tfrom all lookup local\n32767:\tfrom all lookup default\n")


def tiny_segments(system: System) -> None:
    (system.root / "proc/sys/net/ipv4").mkdir(parents=True)
    system.write("proc/sys/net/ipv4/tcp_min_snd_mss", "1400\n")


def unit_denies(system: System) -> None:
    for name in ("machine.slice.d", "user-.slice.d"):
        (system.root / "etc/systemd/system" / name).mkdir(parents=True)
    # No login is in a container's.
    system.write("etc/systemd/system/machine.slice.d/g.conf", "[Slice]\n\nIPAddressDeny=any\n")
    denied = "[Slice]\nIPAddressDeny=10.0.0.0/8\n"
    system.write("etc/systemd/system/user-.slice.d/g.conf", denied)


def data_changed(system: System) -> None:
    rule = "\t\ttcp dport 22 @th,160,8 set 0x7 # handle 4\n"
    system.write(
        "ruleset", f"table inet odd {{ # handle 3\n\tchain c {{ # handle 1\n{rule}\t}}\n}}\n"
    )


def frames_taken(system: System) -> None:
    taker = "3: macvtap0@eth0: <BROADCAST> mtu 1500 \\    link/ether 02:0a \\    macvtap  mode "
    system.links("", f"{taker.replace('macvtap', 'macvlan', 1)}bridge numtxqueues 1")
    assert (system.tells()[1] or DENIED.link) == BrokenLink(WORKS)
    system.links("", f"{taker}passthru numtxqueues 1")


def port_of_bridge(system: System) -> None:
    system.links("qdisc noqueue master br0")


def xdp_program(system: System) -> None:
    system.links("xdpgeneric qdisc noqueue")


def filter_drops(system: System) -> None:
    system.write("filters", "filter protocol ip pref 1 u32\n  action order 1: gact action drop\n")


def handing_on(rule: str, hook: str = "prerouting") -> str:
    return (
        f"table ip gitea {{ # handle 3\n\tchain pre {{ # handle 1\n\t\ttype nat hook {hook} "
        f"priority -100; policy accept;\n\t\t{rule} # handle 7\n\t}}\n}}\n"
    )


def redirected(system: System) -> None:
    for rule, hook in (
        ("tcp dport 2222 redirect to :22", "prerouting"), ("tcp dport != 22 dnat to 10.0.0.9", "x"),
        ("tcp dport 22 redirect to :2222", "output"),
        ('iifname "lo" tcp dport 22 redirect to :2222', "prerouting"),
        ("tcp dport { 80, 443, 8000-9000 } redirect to :3128", "prerouting"),
        ("ip daddr 10.9.9.9 tcp dport 22 dnat to 172.17.0.2", "prerouting"),
    ):  # fmt: skip
        system.write("ruleset", handing_on(rule, hook))
        assert system.tells()[1] == BrokenLink(WORKS), rule
    system.write("ruleset", handing_on("tcp dport { 21-23, 80 } counter redirect to :2222"))


@pytest.mark.parametrize(
    ("trouble", "code", "about", "line"),
    [
        (frames_taken, "frames-taken", "macvtap mode passthru of eth0", 0),
        (port_of_bridge, "frames-to-master", "br0", 0),
        (xdp_program, "xdp-program", "xdpgeneric", 0),
        (filter_drops, "tc-drops", "gact action drop", 0),
        (redirected, "redirected", "tcp dport { 21-23, 80 } counter redirect to :2222", 7),
        (hangs, "name-source-hangs", "hangs", 0),
        (elsewhere, "name-source", "files hangs", 0),
        (gone, "shell-gone", "bin/own-shell", 0),
        (broken, "shell-broken", "bin/own-shell", 0),
        (no_home, "home-gone", "home", 0),
        (no_folder, "privsep-folder", "/run/sshd", 0),
        (open_keys, "host-key-mode", "/etc/ssh/rsa_key /etc/ssh/ecdsa_key", 0),
        (no_keys_at_all, "no-host-keys", "", 0),
        (log_stands, "log-stopped", "/usr/sbin/rsyslogd", 32),
        (log_waits, "log-waits", "/usr/sbin/rsyslogd", 32),
        (mistyped, "settings", "line 3: Bad configuration option: Prt", 0),
        (stopped, "not-running", "", 0),
        (only_a_login_is_left, "not-running", "", 0),
        (expired, "expired", "7305", 0),
        (locked, "locked", "", 0),
        (must_change, "change-password", "", 0),
        (not_in_files, "key-missing", "keys", 0),
        (wrapped, "key-broken", "4", 2),
        (wrapped_at_a_blank, "key-broken-words", "3", 2),
        (from_elsewhere, "key-from", "172.31.255.7", 2),
        (forced_by_key, "key-command", "internal-sftp", 1),
        (loose, "key-mode", ".ssh", 0),
        (not_listed, "not-listed", "not listed in AllowUsers", 2),
        (by_pam, "pam-limit", "stack 64", 2),
        (by_a_module, "pam", "Access denied for user me by PAM account configuration", 0),
        (no_threads, "pam-limit", "nproc 1", 1),
        (forced, "forced", "backup", 2),
        (other_port, "other-port", "2222", 0),
        (other_port_of_no_known_address, "other-port", "2222", 0),
        (another_listens, "other-listener", "endlessh /run/x.py (process 40)", 22),
        (port_taken, "port-taken", "endlessh /run/x.py", 22),
        (another_speaks_ssh, "port-taken", "endlessh /run/x.py", 22),
        (moved, "new-address", "192.168.77.53", 0),
        (listens_elsewhere, "listens-here", "10.147.17.1:22 127.0.0.1:22", 1),
        (ipv6_alone, "family", "AddressFamily inet6", 2),
        (listens_nowhere, "not-listening", "192.168.77.3 port 22", 0),
        (server_stopped, "sshd-stopped", "12", 0),
        (many_startups, "startups", "10 of 10", 0),
        (half_upgraded, "sshd-broken", "file: No such file or directory", 0),
        (certificates, "certificates", "/etc/ssh/user_ca.pub", 0),
        (no_keys_file, "no-keys-file", "AuthorizedKeysFile none", 1),
        (directory_is_silent, "sshd-asks", "bin/asked %u", 2),
        (directory_of_principals_is_silent, "sshd-asks", "bin/asked %u", 2),
        (directory_lacks_the_key, "key-missing", "bin/asked %u", 0),
        (closed_for_maintenance, "nologin", "/etc/nologin", 0),
        (no_keys, "keys-off", "PubkeyAuthentication no", 1),
        (listens_here, "listens-here", "127.0.0.1:22", 2),
        (start_file_waits, "start-file", "exit 0", 2),
        (no_main_rule, "no-main-rule", "", 0),
        (tiny_segments, "kernel-setting", "net/ipv4/tcp_min_snd_mss = 1400", 0),
        (unit_denies, "unit-denies", "IPAddressDeny=10.0.0.0/8", 2),
        (data_changed, "data-changed", "tcp dport 22 @th,160,8 set 0x7", 4),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_the_link_that_fails_is_named(
    system: System, trouble: Callable[[System], None], code: str, about: str, line: int
) -> None:
    trouble(system)

    said, link = system.tells()

    assert link is not None
    assert (link.code, link.line) == (code, line)
    assert link.about.endswith(about)
    # A person at the console reads the same as the doctor tells.
    assert f"NO   {sentence(replace(DENIED, link=link))}\n     " in said


@pytest.mark.parametrize(
    ("route", "routes"),
    [
        ("default via 192.168.77.1 dev eth0\n", ""),
        (NEAR, "default via 192.168.77.3 dev eth0\n"),
        ("", ""),
    ],
    ids=["by a router", "at the gateway", "unknown"],
)
def test_an_address_that_is_forwarded_to_the_host_is_no_trouble(
    system: System, route: str, routes: str
) -> None:
    system.write("route", route)
    system.write("routes", routes)
    system.write("heard", REFUSED)
    if route:
        # So is its port.
        other_port(system)

    assert system.tells()[1] == BrokenLink(WORKS)


def settings_of_a_socket(system: System) -> None:
    system.tell("port 2222", "listenaddress 127.0.0.1:2222")


def firewall_refuses(system: System) -> None:
    (system.root / "proc/net").mkdir()
    system.write("proc/net/tcp", "0: 00000000:0016 0:0 0A 0:0 0:0 0 0 0 90\n")
    system.write("heard", REFUSED)


@pytest.mark.parametrize("state", [settings_of_a_socket, firewall_refuses, directory_has_the_key])
def test_sshd_s_settings_are_not_blamed_where_they_let_in(
    system: System, state: Callable[[System], None]
) -> None:
    state(system)

    assert system.tells()[1] == BrokenLink(WORKS)


def test_what_a_person_changes_here_is_no_line_for_the_host() -> None:
    link = BrokenLink("new-address", "192.168.77.53", "192.168.77.3")

    fix = mend_link("gamma", replace(DENIED, link=link), "~/lab/ssh_config")

    assert (fix.host, fix.root, fix.by_hand) == ("", False, True)
    assert "`HostName 192.168.77.53` for gamma in ~/lab/ssh_config" in fix.command


def test_a_name_that_is_dialled_is_given_to_the_console_as_addresses() -> None:
    assert addresses_of("fd00:0::1%eth0") == ("fd00::1",)
    assert addresses_of("") == ()
    assert {"127.0.0.1", "::1"} & set(addresses_of("localhost"))


def test_where_a_socket_listens_a_server_that_starts_for_each_connection_is_no_trouble(
    system: System,
) -> None:
    stopped(system)
    (system.root / "proc/net").mkdir(exist_ok=True)
    head, row = "  sl  local_address rem_address   st", "   0: 00000000:0016 00000000:0000 0A 0"
    system.write("proc/net/tcp", f"{head}\n{row}\n")

    said, link = system.tells()

    assert link == BrokenLink(WORKS)
    assert "process of each connection" in said


def test_every_code_of_the_script_has_its_words_and_none_is_left_over() -> None:
    text = Path(console.__file__).with_name("login_links.sh").read_text()

    used = set(re.findall(r"\b(?:no|no_setting|say) ([a-z]+(?:-[a-z]+)*)", text))

    assert set(LINKS) <= used
    for code, link in LINKS.items():
        failure = replace(DENIED, link=BrokenLink(code, "about", "/file", 3))
        assert sentence(failure)
        assert "{" not in sentence(failure).replace("{ ", "")
        assert link.by_hand or "    " not in mend_link("attic", failure).command


@pytest.mark.parametrize(
    "printed",
    ["", "mark", "mark\tsettings", "other\tsettings\ta\tb\t1", "mark\tno-such-code\ta\tb\t1"],
)
def test_what_is_no_answer_of_the_script_is_none(printed: str) -> None:
    assert read(printed, "mark") is None


def test_words_of_a_host_end_no_line() -> None:
    evil = "x'; touch /tmp/x; echo '\x1b[2J"

    link = read(f"mark\tnot-listed\t{evil}\t{evil}\t7\n", "mark")

    assert link is not None
    fix = mend_link("attic", replace(DENIED, user=evil, link=link))
    assert "\x1b" not in f"{link}{fix.command}"
    words = subprocess.run(
        ["bash", "-c", f"sed() {{ printf '%s|' \"$@\"; }}; pkill() {{ :; }}; {fix.command}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert words.split("|")[0] == "-i.yoked"
    assert words.count("|") == 3
    assert not Path("/tmp/x").exists()


@pytest.mark.parametrize(
    ("code", "kind", "cause"), [("locked", "timeout", ""), (WORKS, "timeout", "filtered")]
)
def test_a_console_tells_more_of_a_failure(
    tmp_path: Path, code: str, kind: str, cause: str
) -> None:
    shell = tmp_path / "shell"
    shell.write_text(
        "#!/bin/sh\nmark=$(sed -n 's/^mark=//p'); "
        f'printf \'%s\\t{code}\\t\\t\\t\\n\' "$mark" | tr -d "\'"\n'
    )
    shell.chmod(0o755)

    found = told_by([str(shell)], SshFailure("timeout", "it is silent", user=ME), KEY)

    assert (found.kind, found.cause) == (kind, cause)
    assert found.link == (None if code == WORKS else BrokenLink("locked"))
    assert ("works on the host itself" in found.text) is (code == WORKS)


@pytest.mark.parametrize("words", ["/nonexistent/shell", "/bin/false", "/bin/cat"])
def test_a_console_that_tells_nothing_changes_nothing(words: str) -> None:
    assert told_by([words], DENIED) == DENIED


def test_a_link_is_the_finding_with_its_line() -> None:
    seen = no_agent("denied", "Permission denied", cause="refused-key", user="ada")()
    hosts = tuple(
        replace(host, failure=replace(host.failure, link=BrokenLink("shell-gone", "/bin/zsh")))
        if host.failure is not None
        else host
        for host in seen.hosts
    )

    finding = only(replace(seen, hosts=hosts))

    assert "the login shell of ada, /bin/zsh, is not there" in finding.saw
    assert [(fix.host, fix.command, fix.root) for fix in finding.fix] == [
        ("garage", "usermod -s /bin/sh ada", True)
    ]


@pytest.mark.parametrize(
    ("printed", "rules", "code"),
    [
        (KEY, "", "key-is-own"),
        ("SHA256:another", "", "key-of-another"),
        ("SHA256:another", handing_on("tcp dport 22 redirect to :2222"), "redirected"),
    ],
)
def test_a_key_that_ssh_does_not_know_is_compared_with_the_hosts_own(
    system: System, printed: str, rules: str, code: str
) -> None:
    system.tell("hostkey /etc/ssh/ssh_host_ed25519_key")
    system.write("print", printed)
    system.write("ruleset", rules)

    _, link = system.tells(shown=KEY)

    assert link is not None
    assert link.code == code


def test_a_key_that_is_the_hosts_own_is_taken_over_without_another_look() -> None:
    said = f"REMOTE HOST IDENTIFICATION HAS CHANGED! It shows {KEY}"
    link = BrokenLink("key-is-own", KEY, "/etc/ssh/ssh_host_ed25519_key")
    seen = no_agent("host-key", said)()
    failure = replace(seen.host("garage").failure or DENIED, link=link)
    hosts = tuple(replace(each, failure=failure) if each.failure else each for each in seen.hosts)

    found = only(replace(seen, hosts=hosts))

    assert "nobody stands between" in found.saw
    assert [each.host for each in found.fix] == ["", ""]
    assert "-R" in found.fix[0].command
