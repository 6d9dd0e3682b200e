"""Every check finds its trouble, on the right host, with a line that mends it; and no other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.builders import (
    ADDRESS,
    INPUT,
    MAC,
    NAMES,
    PORTS,
    PYTHON,
    RENDEZVOUS,
    change,
    firewall,
    home,
    interface,
    told,
)
from tests.unit.doctor.troubles import (
    TWO_HOPS,
    Make,
    acted,
    asked,
    behind_router,
    by_vpn,
    code,
    data,
    dialled,
    docker_named,
    dropped_between,
    everywhere,
    fails,
    filtered,
    fixed_neighbour,
    has,
    here,
    in_container,
    in_windows,
    in_zones,
    ipv6_alone,
    large_run,
    lease,
    led_away,
    library,
    listed_as,
    looked_again,
    measured,
    metered,
    modules,
    names_known,
    netmask,
    no_agent,
    no_agents,
    no_interface_at_all,
    not_tried,
    on_gpus,
    on_radio,
    on_rocm,
    on_vpn,
    one_machine,
    other_versions,
    outbound_alone,
    over_what_is_off,
    plain,
    rested,
    route,
    routed,
    said,
    shared_address,
    slow_echoes,
    spoofed,
    strict_filter,
    taken,
    two_networks,
    unheard,
    unkeyed,
    vpn_meant,
    wants,
    watched,
    windowed,
    windows,
    with_amd,
    with_card,
    with_gpu,
)

from yoked.doctor.catalog import CHECKS
from yoked.doctor.causes import findings_of
from yoked.doctor.checks.content import A_FOLDER, CHANGING
from yoked.doctor.checks.ssh_causes import CAUSES
from yoked.doctor.fixing import plan_fixes
from yoked.doctor.sshfailure import HERE
from yoked.records.examination import Examination, Need, Severity, World


def shared() -> Examination:
    """attic looked last, and saw what garage had left."""
    seen = told(home(), "garage", "health/folders/state/mark", "0123456789ab")
    return told(seen, "attic", "health/folders/state/beside", ["0123456789ab"])


@dataclass(frozen=True)
class Case:
    """What is made wrong, and what must be found; the golden file has the words and the fixes."""

    check: str
    make: Make
    hosts: tuple[str, ...] = ("garage",)
    severity: Severity = "error"


MODULE = {"path": "/v/rowscale.py", "version": None, "digest": None}
PACKAGES = "/home/ada/.local/share/yoked/envs/abc/lib/python3.12/site-packages"
TWICE = {"4.bin": "a1", "4 (1).bin": "a1", "5.bin": "b2"}
START = {"file": f"{PACKAGES}/sitecustomize.py", "digest": "aa", "because": None}
PLUGIN = {"name": "units", "value": "units:load", "package": "units", "version": "0.4",
          "folder": f"{PACKAGES}/units-0.4.dist-info", "file": f"{PACKAGES}/units.py"}  # fmt: skip
A_FILE = {"kind": "file", "size": 8, "digest": "a" * 64}
ROWS = {"kind": "folder", "count": 2, "entries": {"1.txt": "8", "2.txt": "9"}}
MISSING, FREE = {"kind": "missing"}, {"problem": None, "owner": None}
CACHED = {"revision": "6c1d", "folder": "/home/ada/.cache/huggingface/hub", "files": {"a.bin": 9},
          "offline": False}  # fmt: skip
LIBRARY = {"file": "/opt/sim/lib/libstdc++.so.6", "hides": "/usr/lib64/libstdc++.so.6",
           "set_by": "/etc/ld.so.conf.d/00-sim.conf"}  # fmt: skip
FLAW = {"file": f"{PACKAGES}/torch/distributed/c10d.py", "package": "torch",
        "version": "2.13.0+cpu", "how": "content", "found": "aa"}  # fmt: skip
UNKNOWN = {"addresses": [], "error": "Name or service not known", "took_s": 0.01}
SLOW = {"error": "no answer in 1.5 s", "took_s": 1.5}
SILENT = {"addresses": [], "error": "no answer in 1.5 s", "took_s": 1.5}
RANK = {
    "pid": 4711,
    "run": "otter",
    "command": "python train.py",
    "user": "ada",
    "cores": 1.0,
    "memory_bytes": 3 << 30,
    "age_s": 7200.0,
    "start_ticks": 123_456,
    "launch": "a1b2",
}
WORDS = "as ssh has it"
# What a cause names, where it names something.
ROTATES = "/bin/sh /usr/local/sbin/rotate"
REAPER = {
    "pid": 108,
    "command": "/bin/sh /usr/local/sbin/reap",
    "file": "/usr/local/sbin/reap",
    "line": 2,
    "words": "for p in $(pgrep -P 1 python); do kill -9 $p; done",
    "about": ["python", "orphans"],
    "limit_bytes": None,
}
ABOUT = {
    "ended-by": "/usr/local/sbin/portguard",
    "timed-out": "/etc/ssh/sshd_config:3",
    "refused-key": f"SHA256:{'k' * 43}",
    "key-mode": "/home/ada/.ssh/id_ed25519",
    "passphrase": "/home/ada/.ssh/id_ed25519",
    "stale-pub": "/home/ada/.ssh/id_ed25519",
    "asks": "/home/ada/.ssh/config:3",
    "key-command": "/home/ada/.ssh/authorized_keys:2",
    "chroot": "/bin/bash",
    "start-file": "/home/ada/.bashrc:3",
    "wrong-user": "ubuntu",
    "not-executable": "/opt/py/bin/python3.11",
    "barred": "/root",
    "other-home": "~/my venv/bin/python",
    "config-mode": "/home/ada/.ssh/config",
    "revoked-list": "/mnt/it-share/revoked_host_keys",
    "certificate": "/home/ada/.ssh/id_ed25519-cert.pub",
    "refused-cert": f"SHA256:{'k' * 43}",
    "key-gone": "/home/ada/.ssh/lab",
    "agent-refuses": f"SHA256:{'k' * 43}",
    "agent-lacks": "/home/ada/.ssh/id_ed25519.pub",
    "host-certificate": "expired",
    "authority": f"SHA256:{'k' * 43}",
    **dict.fromkeys(("jump-forbids", "jump-in", "jump-on", "jump-name"), "gate"),
    **dict.fromkeys(("proxy-gone", "proxy-asks", "proxy-ends"), "cloudflared"),
}
SCRATCH = {"path": "/scratch", "exists": True, "writable": False, "read_only": False,
           "owner_uid": 0, "free_bytes": 10**11, "free_inodes": 10**6,
           "error": "EACCES: Permission denied"}  # fmt: skip
FULL = {"path": "/home/ada/.local/state/yoked", "exists": True, "writable": False,
        "free_bytes": 0, "free_inodes": 10**6, "read_only": False,
        "error": "ENOSPC: No space left on device"}  # fmt: skip

HOME_CACHE = {"path": "/home/ada/.cache/yoked", "exists": False, "writable": False,
              "read_only": False, "free_bytes": 10**11}  # fmt: skip
MOUNT = {"place": "/home", "filesystem": "9p", "source": "share", "options": "rw,cache=none"}
NO_FAMILY = "OSError: [Errno 97] Address family not supported by protocol"
OF_SSH = "/etc/systemd/system/ssh.service.d/hardening.conf"
PLACES = [{"file": "/home/ada/.bashrc", "line": 3}, {"file": "/etc/environment", "line": 1},
          {"file": "/etc/ssh/sshd_config", "line": 9}, {"file": "/opt/env", "line": 2}]  # fmt: skip

LOOPBACK_RULES = ["table inet mine {", "chain input {",
                  "type filter hook input priority filter; policy accept;",
                  'iif "lo" tcp dport 1024-65535 drop', "}", "}"]  # fmt: skip

FORGETS = {"net/netfilter/nf_conntrack_tcp_timeout_established": "4"}
FOLLOWS = ["table inet fw {", "chain input {",
           "type filter hook input priority filter; policy accept;",
           "ct state established,related accept", "}", "}"]  # fmt: skip

BUILDS = "/home/ada/.cache/torch_extensions/py312_cpu"


def unread(source: str | None) -> Examination:
    """A file of garage's data gives an error, on a disk of that name."""
    seen = told(
        replace(home(), need=Need(data={"2.bin": "a1"}, folders={"data": "/srv/data"})),
        "garage", "health/data", {"2.bin": "unreadable: Input/output error"},
    )  # fmt: skip
    mount = {"place": "/srv", "filesystem": "ext4", "source": source, "options": "rw"}
    return told(seen, "garage", "health/data_mount", mount) if source else seen


def at_torch(seen: Examination, name: str) -> Any:
    return seen.host(name).torch


def ended(left: dict[str, Any], *programs: dict[str, Any]) -> Make:
    """What became of what was left alone on garage, and who ends such there."""
    found = {"programs": list(programs), "sessions": []}
    return lambda: told(
        told(home(), "garage", "health/left_alone", left), "garage", "health/enders", found
    )


CASES = (
    # ssh
    Case("ssh-unresolved", no_agent("unresolved", "Could not resolve hostname")),
    Case("ssh-timeout", no_agent("timeout", "Connection timed out")),
    Case("ssh-refused", no_agent("refused", "Connection refused")),
    Case("ssh-unreachable", no_agent("unreachable", "No route to host")),
    Case("ssh-host-key", no_agent("host-key", "Offending ED25519 key in known_hosts:3")),
    Case("ssh-denied", no_agent("denied", "Permission denied (publickey).")),
    Case("ssh-shell", no_agent("shell", "exit status 1")),
    Case("ssh-shell", no_agent("shell", "This account is currently not available.",
                               cause="nologin")),
    Case("ssh-python", no_agent("python", "python3: command not found")),
    Case("ssh-python", no_agent("python", "no thread", cause="no-threads")),
    Case("ssh-python", no_agent("python", "no thread", cause="host-exhausted")),
    Case("ssh-other", no_agent("other", "the connection ended")),
    *(
        Case(
            f"ssh-{kind}",
            no_agent(kind, WORDS, cause=cause, about=ABOUT.get(cause, ""), user="ada"),
            hosts=() if cause in HERE else ("garage",),
        )
        for kind, causes in CAUSES.items()
        for cause in causes
        if cause
    ),
    Case("ssh-denied", no_agents("attic", "garage", kind="denied", text=WORDS, cause="passphrase",
                                 about="/home/ada/.ssh/id_rsa"), hosts=()),
    # One jump host keeps both away; it is of this fleet, or of none.
    Case("ssh-other", no_agents("garage", kind="other", text=WORDS, cause="jump-forbids",
                                about="attic"), hosts=("attic",)),
    Case("ssh-other", no_agents("attic", "garage", kind="other", text=WORDS, cause="jump-forbids",
                                about="gate"), hosts=("attic",)),
    Case("ssh-denied", no_agents(*NAMES, kind="denied", text=WORDS, cause="refused-key"),
         hosts=()),
    Case("shell-noise", said("health/shell/sources_noise", True), severity="warning"),
    Case("shell-noise", said("health/shell", {
        "rc": "~/.ssh/rc", "sources_noise": True}),
         severity="warning"),
    Case("shell-noise", said("health/shell", {
        "rc": "~/.ssh/rc", "sources_noise": True,
        "prints": {"file": "/home/ada/.bashrc", "line": 3, "words": "echo hello"}}),
         severity="warning"),
    Case("shell-noise", lambda: replace(
        told(home(), "garage", "health/shell/sources_noise", True), controller={
            **home().controller, "ssh_path": "/opt/bin/ssh", "ssh_prints": "Be recorded."}),
         hosts=(), severity="warning"),
    Case("ssh-slow", lambda: change(home(), "garage", connect_s=9.0), severity="warning"),
    Case("ssh-slow", lambda: change(
        told(home(), "garage", "health/shell/takes_long", {
            "file": "/home/ada/.bashrc", "line": 3, "words": "sleep 6", "took_s": 6.0}),
        "garage", connect_s=9.0), severity="warning"),
    Case("ssh-slow", lambda: replace(
        change(home(), "garage", connect_s=6.0),
        controller={**home().controller, "ssh_settings_s": 2.0}), hosts=(), severity="warning"),
    # one host or two
    Case("same-machine", one_machine, hosts=("study", "garage")),
    Case("no-proc", lambda: told(told(home(), "garage", "facts/os", "Darwin"),
                                 "garage", "facts/has_proc", False)),
    Case("agent-failed", said("health/untold", {"facts": "OSError(20, 'Not a directory')"})),
    Case("agent-failed", said("health/untold", {"health": "garage gave no answer to 'health'"}),
         severity="warning"),
    Case("agent-failed", said("health/untold", {
        "facts": "/home/ada/.cache/yoked/agent/0a is gone: somebody emptied the cache meanwhile"})),
    Case("agent-failed", said("health/basics", {
        "/dev/null": "a plain file of 11 bytes",
        "/bin/sh": "/usr/bin/fish does not understand sh: fish: Unsupported use of '='"})),
    Case("agent-failed", said("health/basics", {"/dev/null": "EACCES: Permission denied"})),
    *(Case("agent-failed", lambda denials=denials: told(
        said("health/basics", {"executable memory": "EACCES: Permission denied"})(),
        "garage", "health/tables/denials", denials)) for denials in (
            [], ["/etc/systemd/system/ssh.service.d/hard.conf:2 MemoryDenyWriteExecute=yes"])),
    Case("agent-failed", said("health/basics", {
        "/sys": "empty: no sysfs is mounted there", "/dev/zero": "no device"}),
         severity="warning"),
    # interfaces
    Case("interface-gone", wants(interface="enp9s0")),
    Case("interface-down", said("health/links/eth0/up", False)),
    Case("no-carrier", said("health/links/eth0/carrier", False)),
    Case("no-carrier", over_what_is_off),
    Case("no-carrier", lambda: looked_again(changes=5)),
    Case("no-address", has(interface("lo", "127.0.0.1", 8, "loopback"))),
    Case("no-address", has({**interface("eth0:lan", ADDRESS["garage"], 24),
                            "gloo_address": None})),
    Case("no-address", lambda: looked_again(**interface("eth0", "192.168.1.91", 24))),
    Case("no-address", lambda: looked_again(fresh=[ADDRESS["garage"]])),
    Case("no-address", lease),
    Case("link-local", has({**interface("eth0", "fe80::1", 64), "gloo_address": None})),
    Case("private-interface", docker_named),
    Case("same-address", shared_address, hosts=("garage", "attic")),
    Case("same-address", lambda: told(said("health/links/eth0/mac", MAC["garage"])(), "study",
                                      "health/links/eth0/mac", MAC["garage"]),
         hosts=("study", "garage")),
    Case("families", ipv6_alone),
    Case("no-interface", no_interface_at_all),
    # itself
    Case("loopback", said("health/links/lo/up", False)),
    Case("loopback", said("health/loopback", {"127.0.0.1": "EADDRNOTAVAIL"})),
    Case("loopback", said("health/loopback", {"127.0.0.1": "ETIMEDOUT"})),
    Case("loopback", lambda: told(said("health/loopback", {"127.0.0.1": "ETIMEDOUT"})(), "garage",
                                  "health/firewall", firewall("nft", LOOPBACK_RULES))),
    # ways
    Case("wrong-netmask", netmask),
    Case("forbidden-route", route("EACCES")),
    Case("forbidden-route", route("EINVAL")),
    Case("forbidden-route", route("EHOSTUNREACH")),
    Case("no-route", route("ENETUNREACH")),
    Case("other-network", two_networks),
    Case("wrong-neighbour", fixed_neighbour),
    Case("other-way", by_vpn),
    Case("other-way", routed(hops=TWO_HOPS, network=ADDRESS["attic"], prefix=32)),
    Case("other-way", routed(gateway="192.168.1.99")),
    Case("wrong-source", routed(source="10.9.9.9", network="192.168.1.0", prefix=24)),
    Case("other-answers", dialled(None, "garage", answered_by="study")),
    Case("other-answers", spoofed, hosts=("study", "garage")),
    Case("lost-between", dropped_between, hosts=("garage", "attic")),
    Case("client-isolation", lambda: unheard("failed", router=True),
         hosts=("garage", "attic", "study")),
    Case("silent-neighbour", lambda: unheard("failed", router=False),
         hosts=("garage", "attic", "study")),
    Case("reverse-path", strict_filter),
    Case("container-bridge", in_container),
    Case("container-bridge", lambda: in_container("10.88.0.7", "podman")),
    Case("nat", windows, hosts=("study",)),
    Case("nat", in_windows("nat", portproxy=[2222, 8000]), hosts=("study",)),
    Case("nat", in_windows("virtioproxy"), hosts=("study",)),
    Case("wsl-firewall", in_windows("mirrored", inbound="Block"), hosts=("study",)),
    Case("wsl-firewall", in_windows("mirrored"), hosts=("study",)),
    Case("router-between", behind_router, hosts=("study", "attic", "garage")),
    Case("dial-failed", dialled(None, "garage", error="ENOPROTOOPT")),
    Case("dial-failed", filtered),
    # limits
    Case("open-files", said("health/limits/nofile", [24, 24])),
    Case("open-files", dialled("garage", None, error="EMFILE")),
    Case("process-limit", said("health/limits/nproc", [6, 6])),
    Case("process-limit", said("health/limits/pids", {"max": 64, "current": 40})),
    Case("address-space", said("health/limits/as", [600 << 20, None])),
    Case("address-space", lambda: told(
        told(told(home(), "garage", "health/limits/as", [800_000_000, 800_000_000]),
             "garage", "health/limits/later", ["as"]),
        "garage", "health/writers", {"managers": [], "raw": [], "loops": [
            {"pid": 77, "command": "fairmem", "changes": ["limits"],
             "words": "prlimit --pid $p --as=800000000"}]})),
    Case("address-space", lambda: told(
        told(home(), "garage", "health/limits/as", [600 << 20, None]),
        "garage", "health/limits/later", ["as"])),
    Case("address-space", said("health/limits/stack", [65_536, 65_536])),
    Case("address-space", lambda: told(
        told(home(), "garage", "health/limits/stack", [65_536, 65_536]), "garage",
        "health/set_limits", {"s": [{"file": "/etc/bash.bashrc", "line": 1}]})),
    Case("open-files", lambda: told(
        told(home(), "garage", "health/limits/nofile", [24, 24]), "garage",
        "health/set_limits", {"n": []})),
    Case("file-size", said("health/limits/fsize", [65_536, 65_536])),
    Case("cpu-time", said("health/limits/cpu", [600, 600])),
    Case("umask", said("health/limits/umask", 0o777)),
    Case("umask", lambda: told(told(home(), "garage", "health/limits/umask", 0o777), "garage",
                               "health/set_limits", {"umask": [
                                   {"file": "/home/ada/.bashrc", "line": 3}]})),
    Case("port-range", said("health/ports/range", [40_000, 40_001])),
    Case("port-range", said("health/ports/reserved", "32768-60990")),
    Case("process-limit", lambda: told(told(home(), "garage", "health/limits/pid_max", 310),
                                       "garage", "health/limits/tasks", 300)),
    Case("port-range", dialled("garage", None, error="EADDRNOTAVAIL")),
    Case("port-range", said("health/ports/reserved", "1024-65535")),
    Case("port-taken", said("health/ports/owners", {"29500": [
        {"pid": 77, "command": "nginx", "user": "www", "run": None}]}),
         severity="warning"),
    Case("port-taken", said("health/ports/owners", {"29500": [
        {**RANK, "ended": True}]}), severity="warning"),
    Case("port-taken", said("health/ports/owners", {"29500": [
        {**RANK, "ended": False}]}), severity="warning"),
    Case("port-taken", said("health/ports/owners", {"29500": [
        {**RANK, "ended": True}, {"pid": 77, "command": "nginx", "user": "www", "run": None}]}),
         severity="warning"),
    # firewalls
    Case("firewall-drop", dialled(None, "garage")),
    Case("firewall-ephemeral", dialled(None, "garage", ports=PORTS)),
    Case("firewall-reject", dialled(None, "garage", error="EHOSTUNREACH")),
    Case("firewall-reject", dialled(None, "garage", error="ECONNREFUSED")),
    Case("firewall-drop", dialled("garage", None, arrived=True)),
    Case("firewall-out", dialled("garage", "attic", arrived=True), hosts=("attic",)),
    Case("firewall-out", outbound_alone),
    Case("firewall-out", dialled("garage", "attic", unsent=True)),
    Case("firewall-out", library),
    Case("firewall-out", unkeyed),
    Case("firewall-range", dialled(None, "garage", ports=PORTS[:1])),
    Case("connection-rate", dialled("attic", "garage", ports=PORTS[1:])),
    Case("connection-rate", dialled("attic", "garage", purposes=("bulk", "rendezvous"))),
    Case("rendezvous-port", dialled("attic", "garage", ports=(RENDEZVOUS,)), severity="warning"),
    Case("rendezvous-port", lambda: told(
        dialled("attic", "garage", ports=(RENDEZVOUS,))(), "garage", "health/firewall",
        firewall("nft", ["table inet s {", "chain i {", INPUT, "ct count over 1 drop", "}", "}"]))),
    Case("conntrack-full", said("health/kernel/conntrack_count", 262_144)),
    Case("conntrack-full", lambda: told(
        said("health/settings", FORGETS)(), "garage", "health/firewall",
        firewall("nft", FOLLOWS))),
    Case("conntrack-full", said("health/settings", FORGETS), severity="warning"),
    # flow
    Case("mtu", dialled("attic", "garage", purposes=("bulk",), rtt_s=0.0003, bulk_bytes=0),
         hosts=("attic", "garage")),
    Case("bulk-stalls", dialled("attic", "garage", purposes=("bulk",), rtt_s=0.0003,
                                bulk_bytes=90_000), hosts=("garage", "attic")),
    Case("bulk-stalls", metered, hosts=("garage", "attic")),
    Case("bulk-stalls", lambda: rested("attic", "garage", "ECONNRESET"), hosts=("garage", "attic")),
    Case("bulk-stalls", lambda: rested("garage", "attic", "ECONNABORTED"),
         hosts=("garage", "attic")),
    Case("bulk-stalls", lambda: rested("attic", "garage", "ETIMEDOUT"), hosts=("garage", "attic")),
    Case("loss", lambda: slow_echoes((0.0004,) * 7 + (0.21, 0.22, 0.42)),
         hosts=("attic", "garage"), severity="warning"),
    Case("jitter", lambda: slow_echoes((0.002, 0.003, 0.01, 0.03, 0.05, 0.06, 0.08, 0.09)),
         hosts=("attic", "garage"), severity="warning"),
    Case("wifi-power-save", lambda: on_radio(power_save=True),
         hosts=("study",), severity="warning"),
    Case("wifi-weak", lambda: on_radio(signal_dbm=-82), hosts=("study",), severity="warning"),
    Case("slow-link", lambda: measured(6e6, 6e6), hosts=("attic", "garage"), severity="warning"),
    Case("slow-link", lambda: measured(20e6, 117e6), hosts=("attic", "garage"), severity="warning"),
    Case("slow-link", windowed, hosts=("garage", "attic"), severity="warning"),
    Case("slow-interface", on_vpn, severity="warning"),
    Case("slow-port", said("health/links/eth0/speed_bit_per_s", 10**8), severity="warning"),
    Case("slow-port", said("health/links/eth0/duplex", "half"), severity="warning"),
    Case("busy-link", said("health/traffic", {
        "cards": {"eth0": {"rx_bit_per_s": 1e6, "tx_bit_per_s": 9e8}},
        "programs": [{"pid": 77, "command": "backup-push", "address": ADDRESS["study"],
                      "port": 8730, "connections": 24, "rx_bit_per_s": 0.0,
                      "tx_bit_per_s": 9e8}]}), severity="warning"),
    # folders
    Case("folder-hangs", said("health/folders/state", {"path": "/net/ada", "error": "no answer"})),
    Case("read-only", said("health/folders/state/read_only", True)),
    Case("read-only", lambda: told(told(home(), "garage", "health/folders/cache/read_only", True),
                                   "garage", "health/folders/cache/filesystem", "squashfs")),
    Case("folder-denied", said("health/folders/cache", {
        "path": "/home/ada/.cache/yoked", "writable": False, "read_only": False, "owner_uid": 0,
        "free_bytes": 10**11, "error": "EACCES: Permission denied"})),
    Case("folder-denied", said("health/folders/tmp", SCRATCH), severity="warning"),
    Case("folder-denied", said("health/folders/cache", {
        **HOME_CACHE, "error": "ENOENT: No such file or directory",
        "blocked": "/home/ada/.cache", "link_to": "/media/ssd/cache"})),
    Case("folder-denied", said("health/folders/state", {
        "path": "/home/ada/.local/state/yoked", "writable": False,
        "error": "ENOTDIR: Not a directory", "blocked": "/home/ada/.local/state"})),
    Case("folder-denied", said("health/folders/cache", {
        **HOME_CACHE, "owner_uid": 1000, "error": "EPERM: Operation not permitted",
        "place": "/home/ada/.cache", "marks": "i"})),
    Case("folder-denied", lambda: told(
        told(home(), "garage", "health/folders/cache/kept", False),
        "garage", "health/clock/watched_s", 3.2)),
    Case("folder-denied", said("health/folders/tmp/kept", False), severity="warning"),
    Case("folder-denied", lambda: told(
        told(home(), "garage", "health/folders/state/kept", False),
        "garage", "health/folders/state/now", "yoked-look-ab.sync-conflict-20261127.json")),
    Case("disk-full", said("health/folders/state", FULL)),
    Case("disk-full", large_run, hosts=("attic",)),
    Case("no-inodes", said("health/folders/state/free_inodes", 0)),
    Case("tmp-missing", lambda: told(told(home(), "garage", "health/folders/tmp/exists", False),
                                     "garage", "health/environment/TMPDIR", "/nowhere"),
         severity="warning"),
    Case("tmp-missing", lambda: told(
        told(home(), "garage", "health/folders/tmp/path", f"/srv/{'deep/' * 16}"),
        "garage", "health/environment/TMPDIR", f"/srv/{'deep/' * 16}"), severity="warning"),
    Case("noexec", said("health/folders/tmp/noexec", True), severity="warning"),
    Case("noexec", lambda: told(told(told(
        home(), "garage", "torch/imported", False),
        "garage", "torch/error", "ImportError: failed to map segment from shared object"),
        "garage", "health/folders/home/noexec", True)),
    Case("shared-memory", said("health/folders/shm/free_bytes", 64 << 20), severity="warning"),
    Case("remote-folder", said("health/folders/state/filesystem", "nfs4"), severity="warning"),
    # environment
    Case("python-home", said("health/environment/PYTHONHOME", "/nowhere")),
    Case("gloo-transport", said("health/environment/GLOO_DEVICE_TRANSPORT", "IBVERBS")),
    Case("unlike-variables", said("health/environment/GOMP_CPU_AFFINITY", "0"), severity="warning"),
    Case("unlike-variables", lambda: told(
        on_gpus(), "garage", "health/environment/NCCL_PROTO", "LL")),
    Case("unlike-variables", said("health/environment/TORCH_DISTRIBUTED_DEBUG", "detail")),
    Case("unlike-variables", said("health/environment/TORCH_GLOO_LAZY_INIT", "1")),
    Case("unlike-variables", said("health/environment/TORCH_DIST_INIT_BARRIER", "1")),
    Case("unlike-variables", said("health/environment/ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
         severity="warning"),
    Case("unlike-variables", said(
        "health/environment/TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"), severity="warning"),
    Case("unlike-variables", said("health/environment/PYTORCH_JIT", "0"), severity="warning"),
    Case("unlike-variables", said("health/environment/DATA_DIR", "/srv/old"), severity="warning"),
    Case("shell-variables", said("health/environment/RANK", "5"), severity="warning"),
    Case("shell-variables", said("health/environment/GLOO_SOCKET_IFNAME", "docker0"),
         severity="warning"),
    Case("shell-variables", said("health/environment/GLOO_PORT_RANGE", "5000-6000"),
         severity="warning"),
    Case("debug-variables", lambda: told(
        home(("attic",)), "attic", "health/environment/TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
         hosts=("attic",), severity="warning"),
    Case("shell-variables", said("health/environment/OMP_NUM_THREADS", "1"), severity="warning"),
    Case("shell-variables", said("health/environment/ONEDNN_MAX_CPU_ISA", "SSE41"),
         severity="warning"),
    Case("shell-variables", said("health/environment/PYTHONWARNINGS", "error"),
         severity="warning"),
    Case("shell-variables", said("health/environment/PYTHONPATH", "/opt/ros"), severity="warning"),
    Case("shell-variables", said("health/environment/PYTHONIOENCODING", "ascii"),
         severity="warning"),
    Case("shell-variables", said("health/environment/PYTHONSAFEPATH", "1"), severity="warning"),
    Case("preload", said("health/environment/LD_PRELOAD", "/gone.so"), severity="warning"),
    Case("preload", said("health/preload", ["/usr/lib/libx.so"]), severity="warning"),
    Case("shell-variables", lambda: told(
        said("health/environment/PYTHONPYCACHEPREFIX", "/proc/nas/pycache")(),
        "garage", "torch/compiled", False), severity="warning"),
    Case("preload", lambda: told(
        watched(monotonic_s=96.0, real_s=96.0)(),
        "garage", "health/preload", ["/usr/lib/faketime/libfaketime.so.1"])),
    Case("preload", lambda: told(
        dialled("garage", None, error="ECONNREFUSED", took_s=8e-5)(),
        "garage", "health/preload", ["/usr/lib/libproxychains.so.4"])),
    # software
    Case("python-missing", lambda: change(
        told(home(), "garage", "wanted/python", "/opt/gone/python"), "garage",
        torch={"python": "/opt/gone/python", "error": "there is no /opt/gone/python"})),
    Case("torch-import", lambda: change(
        told(home(), "garage", "wanted/python", "/v/bin/python"), "garage",
        torch={"python": "/v/bin/python", "imported": False,
               "error": "it is a link to /usr/bin/python3.11, which is not there"})),
    Case("torch-import", lambda: change(
        told(home(), "garage", "wanted/python", "/v/bin/python"), "garage",
        torch={"python": "/v/bin/python", "imported": False,
               "error": "Too many levels of symbolic links"})),
    Case("python-old", said("torch/python_version", "3.10.4")),
    Case("torch-missing", lambda: change(home(), "garage",
                                         torch={"error": "no Python there has torch"})),
    Case("torch-missing", lambda: change(home(), "garage", torch={
        "python": PYTHON, "python_version": "3.12.3", "torch": None, "torch_path": None})),
    Case("torch-shadowed", lambda: told(told(told(
        home(), "garage", "torch/torch_path", "/home/ada/torch.py"),
        "garage", "torch/imported", False), "garage", "torch/gloo", None)),
    Case("torch-shadowed", lambda: not_tried("/home/ada/torch.py")),
    Case("torch-shadowed", lambda: not_tried("/home/ada/pytorch/torch/__init__.py"),
         severity="warning"),
    Case("torch-missing", lambda: change(home(), "garage", torch={
        "error": "no Python there has torch",
        "no_base": "there is no Python from 3.11 to 3.14: python3 is 3.9"})),
    Case("torch-import", lambda: told(told(
        home(), "garage", "torch/imported", False),
        "garage", "torch/error", "OSError: libc10.so: cannot open")),
    Case("torch-import", lambda: told(told(
        home(), "garage", "torch/imported", False),
        "garage", "torch/error", "the interpreter ended with signal 9")),
    Case("torch-import", lambda: told(told(
        home(), "garage", "torch/imported", False),
        "garage", "torch/error", "OSError: libc10.so: failed to map segment from shared object")),
    Case("torch-import", lambda: fails(
        "Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be a number", begun=False,
        culprits={"what": "start", "files": [],
                  "variables": [{"name": "PYTHONHASHSEED", "places": PLACES}]},
        environment={"PYTHONHASHSEED": "random0"}, set_by={"PYTHONHASHSEED": PLACES})),
    Case("torch-import", lambda: fails(
        "Fatal Python error: invalid PYTHONUTF8 environment variable value", begun=False,
        culprits={"what": "start", "files": [],
                  "variables": [{"name": "PYTHONUTF8", "places": PLACES}]},
        environment={"PYTHONUTF8": "1\r"}, set_by={"PYTHONUTF8": PLACES})),
    Case("torch-import", lambda: fails(
        "ModuleNotFoundError: No module named 'math'", begun=False, culprits={
            "what": "start", "files": [], "variables": [], "home": {
                "file": "/v/pyvenv.cfg", "home": "/usr/bin", "own": "/opt/py/bin"}})),
    Case("torch-import", lambda: fails(
        f"PermissionError: [Errno 13] Permission denied: '{PACKAGES}/typing_extensions.py'",
        blame={"package": "torch", "barred": {
            "place": f"{PACKAGES}/typing_extensions.py", "owner": "root", "mode": "0600",
            "user": "ada", "lacks": "r"}})),
    Case("torch-import", lambda: fails(
        "SystemExit: no IDE", begun=False, culprits={
            "what": "start", "files": ["/v/site-packages/zz.pth"], "variables": []})),
    Case("torch-import", lambda: fails(
        "ImportError: /opt/sim/lib/libssl.so.3: file too short",
        culprits={"what": "import", "files": [],
                  "variables": [{"name": "LD_LIBRARY_PATH", "places": []}]},
        environment={"LD_LIBRARY_PATH": "/opt/sim/lib"}, set_by={"LD_LIBRARY_PATH": []})),
    Case("torch-import", lambda: fails(
        "ImportError: a.so: cannot open shared object file", blame={
            "package": "numpy", "file": "/v/site-packages/numpy/a.so", "of_python": False})),
    Case("torch-import", lambda: fails(
        "AttributeError: module 'numpy' has no attribute 'ndarray'",
        blame={"file": f"{PACKAGES}/torch/storage.py", "package": "torch"},
        altered=[{"file": f"{PACKAGES}/numpy/__init__.py", "package": "numpy", "version": "2.3.1",
                  "how": "dangling"}])),
    Case("torch-import", lambda: told(fails(
        "ImportError: cannot import name 'deprecated'", blame={
            "package": "typing_extensions", "file": "/v/site-packages/typing_extensions.py"}),
        "garage", "wanted/python", "/v/bin/python")),
    Case("torch-import", lambda: fails(
        "ModuleNotFoundError: No module named '_ssl'", blame={
            "missing": "_ssl", "file": "/usr/lib/python3.12/ssl.py", "of_python": True})),
    Case("torch-import", lambda: fails(
        "ImportError: libffi.so.8: cannot open shared object file", blame={
            "file": "/usr/lib/python3.12/ctypes/__init__.py", "of_python": True})),
    Case("torch-import", lambda: fails(
        "garage: /v/bin/python cannot be started: Permission denied", begun=False)),
    Case("torch-import", lambda: change(home(), "garage", torch={
        "python": PYTHON, "imported": None, "error": None, "silent_s": 21.5, "culprits": {
            "what": "start", "late": True, "variables": [], "files": ["/v/zz_licence.pth"]}})),
    Case("torch-shadowed", lambda: replace(home(), controller={
        **home().controller, "shadows": ["/home/ada/mine/queue.py"]}), hosts=(),
         severity="warning"),
    Case("torch-missing", lambda: change(home(), "garage", torch={
        "python": "/v/bin/python", "python_version": "3.12.3", "torch": None, "torch_path": None,
        "stranded": "/v/lib/python3.12/site-packages"})),
    Case("encryption", lambda: told(told(home(), "garage", "torch/tls_most", "TLSv1_2"),
                             "garage", "torch/tls_file", "/usr/lib/ssl/openssl.cnf")),
    Case("encryption", lambda: replace(home(), controller={
        **home().controller, "openssl": "/opt/conda/bin/openssl",
        "certificates": "openssl req failed: libssl.so.1.1: cannot open"}), hosts=()),
    Case("encryption", lambda: replace(home(), controller={
        **home().controller, "openssl": None, "certificates": "there is no program openssl here"}),
         hosts=()),
    Case("torch-import", lambda: told(
        fails("the interpreter ended with signal 9"),
        "garage", "health/memory/available_bytes", 1 << 30)),
    Case("torch-version", other_versions),
    Case("torch-version", said("torch/stale", {
        "folder": "/v/lib/python3.12/site-packages/torch-2.12.0+cpu.dist-info",
        "version": "2.12.0+cpu"})),
    Case("gloo-missing", said("torch/gloo", False)),
    Case("numpy-missing", said("torch/numpy", None)),
    Case("python-version", said("torch/python_version", "3.13.1"), severity="warning"),
    Case("compiler", said("health/compiler/cxx", None), severity="warning"),
    # devices
    Case("device-missing", wants(device="cuda")),
    Case("device-missing", wants(device="mps")),
    Case("gpu-hidden", lambda: with_card("cuda", health__environment__CUDA_VISIBLE_DEVICES="-1",
                                         torch__cuda_available=False)),
    Case("gpu-driver", lambda: with_gpu(health__gpu__error="no permission for /dev/nvidia0")),
    Case("gpu-build", lambda: with_card(driver="550.54.14", torch__cuda_available=False),
         severity="warning"),
    Case("gpu-build", lambda: with_card("cuda", driver="550.54.14", torch__cuda_available=False,
                                        wanted__python="~/own/bin/python")),
    Case("gpu-build", lambda: with_card(driver="470.256.02", cuda="12.6",
                                        torch__cuda_available=None), severity="warning"),
    Case("gpu-build", lambda: with_card(name="GTX 1080", capability="6.1")),
    Case("gpu-unused", with_gpu),
    Case("gpu-unused", lambda: with_gpu(wanted__python="~/own/bin/python")),
    Case("gpu-unused", lambda: with_gpu("auto", torch__imported=None, torch__cuda_available=None),
         severity="warning"),
    Case("gpu-unused", lambda: with_card(driver="470.256.02", torch__build="cpu",
                                         torch__cuda_build=None), severity="warning"),
    Case("gpu-unused", lambda: with_amd(wanted__device="cuda")),
    Case("gpu-unused", lambda: with_amd(torch__torch="2.13.0+rocm6.4", torch__build="rocm"),
         severity="warning"),
    Case("gpu-integrated", on_rocm, severity="warning"),
    Case("gpu-integrated", lambda: on_rocm(wanted__device="cuda"), severity="warning"),
    Case("compiler", lambda: with_card(torch__headers=False), severity="warning"),
    Case("nccl-missing", lambda: with_card("cuda"), severity="warning"),
    Case("nccl-missing", lambda: with_card("cuda", wanted__python="~/own/bin/python"),
         severity="warning"),
    # processes
    Case("stale-ranks", said("health/processes/stale", [RANK]), severity="warning"),
    Case("stale-ranks", said("health/processes/stale", [{**RANK, "launch": None}]),
         severity="warning"),
    Case("other-run", said("health/processes/runs", [
        {"run": "night", "user": "ada@laptop", "ours": True, "pid": 9, "age_s": 1510.0}]),
         severity="warning"),
    Case("other-run", said("health/processes/runs", [
        {"run": "big", "user": "bob", "ours": False, "pid": 9, "age_s": 90.0}]),
         severity="warning"),
    Case("busy-host", said("health/processes/busy", [
        {"pid": 99, "command": "make -j8", "user": "ada", "cores": 3.9}]),
         severity="warning"),
    Case("busy-host", lambda: told(told(home(), "garage", "health/processes/small", 50),
                                  "garage", "health/processes/small_cores", 2.5),
         severity="warning"),
    Case("busy-host", lambda: with_card(health__gpu__busy=[{"pid": 5, "command": "ollama",
                                                           "memory_bytes": 6 << 30}]),
         severity="warning"),
    # the machine
    Case("memory", said("health/memory", {"available_bytes": 100 << 20, "swap_free_bytes": 0})),
    Case("memory", said("health/memory", {"available_bytes": 100 << 20,
                                          "swap_free_bytes": 4 << 30}), severity="warning"),
    Case("gpu-memory", lambda: on_gpus(garage=8 << 30), severity="warning"),
    Case("overcommit", said("health/memory", {"available_bytes": 12 << 30, "overcommit": 2,
                                              "commit_left_bytes": 1 << 30})),
    Case("ranks", wants(ranks=8), severity="warning"),
    Case("ranks", lambda: told(told(home(), "garage", "wanted/ranks", 6), "garage",
                                    "facts/usable_cores", 8), severity="warning"),
    Case("cpu-quota", said("health/processors/quota_cores", 0.5), severity="warning"),
    Case("cpu-quota", said("health/processors/policy", "idle"), severity="warning"),
    Case("cpu-quota", said("health/processors/nice", 19), severity="warning"),
    Case("cpu-quota", said("health/processors/tracer", {"pid": 77, "command": "strace"}),
         severity="warning"),
    Case("cpu-quota", said("health/processors/of_init", 24), severity="warning"),
    Case("cpu-quota", said("torch/stops", {
        "times": 3, "lost_s": 2.7, "pid": 77, "command": "cpulimitd /run/cpulimitd"})),
    Case("cpu-quota", said("torch/stops", {"times": 4, "lost_s": 0.6}), severity="warning"),
    Case("clock", lambda: change(home(), "garage", clock_offset_s=3600.0), severity="warning"),
    Case("clock", watched(monotonic_s=96.0, real_s=96.0)),
    Case("clock", watched(real_s=-3596.8), severity="warning"),
    Case("clock", watched(*NAMES, monotonic_s=0.4), hosts=()),
    Case("clock", lambda: replace(home(), hosts=tuple(
        replace(each, clock_offset_s=-3 * 86_400.0) for each in home().hosts)),
         hosts=(), severity="warning"),
    Case("ptrace", said("health/kernel/ptrace_scope", 2), severity="warning"),
    # power
    Case("shutdown", said("health/power/shutdown_s", 40.0)),
    Case("shutdown", said("health/power/shutdown_s", 9 * 3600.0), severity="warning"),
    Case("logout", said("health/power/kill_user_processes", True)),
    Case("paused", lambda: told(
        rested("attic", "garage", "ETIMEDOUT"),
        "garage", "health/launch", {"stood": {"times": 1, "lost_s": 3.0}})),
    Case("battery", said("health/power/on_battery", True), severity="warning"),
    Case("sleep", said("health/power/can_inhibit", False, "study"),
         hosts=("study",), severity="warning"),
    Case("sleep", lambda: told(told(home(), "garage", "health/power/idle_action", "suspend"),
                                    "garage", "health/power/can_inhibit", False),
         severity="warning"),
    Case("throttled", said("health/power/throttled", True), severity="warning"),
    # what is sent
    Case("data", lambda: data({"000.bin": "a1"})),
    Case("data", lambda: data({"000.bin": "a1", "001.bin": "b2", "002.bin": "c3"})),
    Case("data", lambda: data({"000.bin": "a1", "001.bin": "b2", "._000.bin": "c3"}),
         severity="warning"),
    Case("data", lambda: data({"000.bin": "a pipe",
                                       "001.bin": "unreadable: Permission denied"})),
    Case("data", lambda: data({"000.bin": CHANGING, "001.bin": "b2"})),
    Case("program-needs", lambda: listed_as({
        "attic": ("0", "1", "2", "3"), "garage": ("0", "3", "1", "2"),
        "study": ("0", "1", "2", "3")}, unsorted=["train.py:7"]), hosts=("attic", "garage"),
        severity="warning"),
    Case("program-needs", lambda: listed_as({
        "attic": ("0", "1"), "garage": ("1", "0")}, file_times=["train.py:7"]),
        hosts=("attic", "garage"), severity="warning"),
    Case("program-needs", lambda: in_zones(garage=("America/New_York", -18_000)),
         severity="warning"),
    Case("program-needs", lambda: told(
        in_zones(garage=("Asia/Kolkata", 19_800)), "garage", "health/environment/TZ",
        "Asia/Kolkata"), severity="warning"),
    Case("data", lambda: told(
        replace(home(), need=Need(data={"000.bin": "a1"})),
        "garage", "health/untold", {"data": "/srv/data: Permission denied"})),
    Case("data", lambda: told(
        replace(home(), need=Need(data={"000.bin": "a1"}, folders={"data": "/srv/data"})),
        "garage", "health/untold", {"data": "/srv/data: Transport endpoint is not connected"})),
    Case("data", said("health/data_lock", "ENOLCK"), severity="warning"),
    Case("data", lambda: told(
        said("health/data_map", "[Errno 19] No such device")(), "garage", "health/data_mount",
        MOUNT)),
    Case("data", lambda: unread(None)),
    Case("data", lambda: unread("/dev/nvme0n1p2")),
    Case("code-differs", lambda: code({"train.py": "a1", "torch.py": "zz"}), severity="warning"),
    Case("code-differs", lambda: code({"train.py": "zz"}), severity="warning"),
    Case("data", lambda: data({"000.bin": "a1", "001.bin": "b2", "x.bin": A_FOLDER})),
    Case("data", lambda: replace(everywhere("health/data", TWICE), need=Need(
        data=TWICE, folders={"data": "~/rows"})), (), severity="warning"),
    Case("data", lambda: told(replace(home(), need=Need(
        data={"Gr\u00f6\u00dfe.bin": "a1", "B.bin": "b2"}, folders={"data": "~/rows"})),
        "garage", "health/data", {"Gro\u0308\u00dfe.bin": "a1", "b.bin": "b2"})),
    Case("data", lambda: replace(home(), need=Need(
        data={"1.bin": "a1", "2.bin": sha256(b"").hexdigest()}, folders={"data": "/rows"})), (),
        severity="warning"),
    Case("data", lambda: replace(home(), need=Need(
        data={"1.bin": "a1", "._1.bin": "b2"}, folders={"data": "/rows"})), (),
        severity="warning"),
    Case("data", lambda: replace(home(), need=Need(
        data={"1.bin": "a1", "0.bin": A_FOLDER}, folders={"data": "/rows"})), (),
        severity="warning"),
    Case("data", lambda: replace(home(), need=Need(
        data={"Gr\udcf6\udcdfe.bin": "a1"}, folders={"data": "/rows"})), (), severity="warning"),
    Case("data", lambda: replace(everywhere("health/data", {"1.txt": "a1"}), need=Need(
        data={"1.txt": "a1"}, folders={"data": "~/rows"},
        damaged={"1.txt": "970 zero bytes from byte 971 to its end, in a text of 1941"})), ()),
    Case("data", lambda: here(damaged={"/rows/a.gz": "cut off: its gzip has no end"}), ()),
    Case("program-needs", lambda: here(left=["common.py", "rows/deep.py"]), ()),
    Case("program-needs", lambda: here(left_named=["config.json"]), (), severity="warning"),
    Case("program-needs", lambda: here(broken=["common.py:12: invalid syntax"], python="3.12.1"),
         ()),
    Case("program-needs", lambda: here(pointers=["scales.txt"], named=["scales.txt"]), ()),
    Case("program-needs", lambda: here(pointers=["demo/scales.txt"], named=["scales.txt"]), (),
         severity="warning"),
    Case("program-needs", lambda: here(special=["pipe (a pipe)"]), (), severity="warning"),
    Case("program-needs", lambda: here(misnamed=["notes-Gr\udcf6\udcdfe.md"]), (),
         severity="warning"),
    Case("program-needs", lambda: here(programs=["/w/train.py"], refused=[
        "/w has 2.2 GB in 5 files; a program's folder may have 500 MB in 20,000",
        "name in /w/.gitignore what hosts need not get"]), ()),
    Case("program-needs", lambda: here(programs=["/w/train.py"], remarks=[
        "include rows.bin: no file of the folder matches"]), (), severity="warning"),
    Case("program-needs", lambda: here(programs=["/w/train.py"], growing=["rows.bin"]), (),
         severity="warning"),
    Case("program-needs", lambda: here(links=["out"], dead_links=["out -> runs/7", "a/b -> c"]), (),
         severity="warning"),
    Case("program-needs", lambda: led_away("1.pt", "/mnt/usb/1.pt", *NAMES), NAMES,
         severity="warning"),
    Case("program-needs", lambda: here(beside=[
        {"module": "common", "file": "common.so", "kind": "extension", "python": None,
         "arch": "x86_64", "foreign": False, "older": True},
        {"module": "common", "file": "common.py", "kind": "source"}]), (), severity="warning"),
    Case("program-needs", lambda: here(beside=[
        {"module": "common", "file": "common.pyc", "kind": "bytecode", "python": "3.10"}]), NAMES),
    # what the program asks for by name
    Case("program-needs", lambda: asked("variables", "ROWS", attic="1", garage=None, study="1"),
         severity="warning"),
    Case("program-needs", lambda: replace(
        asked("variables", "ROWS", attic=None, garage=None, study=None),
        controller={"asks": {"variables": {"ROWS": "train.py:7"}}, "set_here": ["ROWS"]}),
        NAMES, severity="warning"),
    Case("program-needs", lambda: asked(
        "settings", "ROWS", "variables", attic="1", garage="2", study="1"), severity="warning"),
    Case("program-needs", lambda: asked(
        "reads", "~/rows.json", "files", attic=A_FILE, garage=MISSING, study=A_FILE),
         severity="warning"),
    Case("program-needs", lambda: asked(
        "reads", "~/rows.json", "files", attic=MISSING, garage=A_FILE, study=MISSING),
         severity="warning"),
    Case("program-needs", lambda: asked(
        "reads", "/rows", "files", asks={"here": {"/rows": "train.py:7"}},
        attic=MISSING, garage=MISSING), (), severity="warning"),
    Case("program-needs", lambda: asked("reads", "~/hub/datasets--ada--rows/refs/main", "files",
         attic={**A_FILE, "begins": "6c1d"}, study={**A_FILE, "begins": "6c1d"},
         garage={**A_FILE, "digest": "b" * 64, "begins": "1b77"}), severity="warning"),
    Case("program-needs", lambda: asked(
        "reads", "/rows", "files", attic=ROWS, study=ROWS, garage={
        **ROWS, "count": 1, "entries": {"1.txt": "8"}}), severity="warning"),
    Case("program-needs", lambda: asked(
        "reads", "/rows", "files", attic=ROWS, study=ROWS, garage={
        "kind": "unreadable", "problem": "EACCES"}), severity="warning"),
    Case("program-needs", lambda: asked("reads", "/rows", "files",
         attic={**ROWS, "entries": {"gr\u00f6\u00dfen.csv": "8", "2.txt": "9"}},
         study={**ROWS, "entries": {"gr\u00f6\u00dfen.csv": "8", "2.txt": "9"}},
         garage={**ROWS, "entries": {"gro\u0308\u00dfen.csv": "8", "2.txt": "9"}}),
         severity="warning"),
    Case("program-needs", lambda: asked(
        "above", ".env", attic=MISSING, study=MISSING, garage={**A_FILE, "path": "/home/ada/.env"}),
         severity="warning"),
    Case("program-needs", lambda: asked("writes", "/tmp/rows.json", attic=FREE, study=FREE, garage={
        "problem": "EACCES", "owner": "bob"}), severity="warning"),
    Case("program-needs", lambda: asked("creates", "/dev/shm/rows", attic=MISSING,
         garage=A_FILE), severity="warning"),
    Case("program-needs", lambda: asked("programs", "git", attic="/usr/bin/git", garage=None),
         severity="warning"),
    Case("program-needs", lambda: asked("libraries", "libsndfile.so.1", attic=True, garage=False),
         severity="warning"),
    Case("program-needs", lambda: asked("ports", "8000", attic=None, garage="EADDRINUSE"),
         severity="warning"),
    Case("program-needs", lambda: asked("hosts", "fileserver", attic=True, garage=False),
         severity="warning"),
    Case("program-needs", lambda: asked("hub", "ada/net", attic=CACHED, study=CACHED, garage={
        **CACHED, "revision": "1b77"}), severity="warning"),
    Case("program-needs", lambda: replace(home(), controller={
        "asks": {"fills": {"out": "train.py:7"}}, "left_folders": ["out"]}), (),
        severity="warning"),
    Case("program-needs", lambda: asked("beyond", "../rows"), (), severity="warning"),
    Case("program-needs", lambda: asked("overwrites", "MASTER_ADDR"), (), severity="warning"),
    Case("program-needs", lambda: asked("stops", "breakpoint"), (), severity="warning"),
    Case("program-needs", lambda: asked("by_one", "rows.txt"), (), severity="warning"),
    Case("program-needs", lambda: asked(
        "resumes", "~/ckpt/last.pt", "files", attic=A_FILE, garage=MISSING, study=MISSING),
        ("garage", "study"), severity="warning"),
    Case("program-needs", lambda: asked("dealt", "names[local::world]"), (), severity="warning"),
    Case("program-needs", lambda: asked("shuffled", "set(found)"), (), severity="warning"),
    # what an interpreter takes in
    Case("unlike-python", lambda: taken(garage={
        "plugins": [PLUGIN], "torch_settings": {"default dtype": "torch.float64"}})),
    Case("unlike-python", lambda: taken(garage={
        "starts": [{**START, "because": f"{PYTHON[:-11]}/pyvenv.cfg"}],
        "settings": {"multiprocessing starts by": "spawn"}}), severity="warning"),
    Case("unlike-python", lambda: taken(garage={"foreign": [LIBRARY]}), severity="warning"),
    Case("unlike-python", lambda: told(
        taken(garage={"settings": {"handler of SIGCHLD": "SIG_IGN"}}), "garage",
        "health/set_limits", {"SIGCHLD": PLACES[:1]}), severity="warning"),
    Case("unlike-python", lambda: told(told(
        taken(garage={"settings": {"encoding of names": "iso8859-1"}}), "garage",
        "health/environment/LC_ALL", "de_DE.ISO-8859-1"), "garage",
        "health/set_by", {"LC_ALL": PLACES[:1]}), severity="warning"),
    Case("unlike-python", lambda: taken(
        attic={"starts": [START]}, study={"starts": [START]}), severity="warning"),
    # what programs do first
    Case("program-acts", acted("thread", said="RuntimeError: can't start new thread")),
    Case("program-acts", acted("thread"), ("garage",)),
    Case("program-acts", lambda: told(
        acted("shared-memory", said="OSError: [Errno 30] Read-only file system")(), "garage",
        "health/folders/shm", {"path": "/dev/shm", "exists": True, "writable": False})),
    Case("program-acts", lambda: told(
        acted("inotify", said="PermissionError: [Errno 1] Operation not permitted")(), "garage",
        "torch/acts/seccomp", True), severity="warning"),
    Case("program-acts", acted("request", variables=["http_proxy"]), severity="warning"),
    Case("program-acts", acted("locked-memory", limit="l"), severity="warning"),
    Case("program-acts", acted("secure", file="/usr/bin/python3.11", by="capability"),
         severity="warning"),
    Case("program-acts", acted("secure", file="/usr/bin/python3.11", by="mode"),
         severity="warning"),
    Case("program-acts", lambda: told(
        acted("secure", file="/usr/bin/python3.11", by="capability")(), "attic",
        "health/environment/LD_LIBRARY_PATH", "/opt/cuda/lib64")),
    Case("program-acts", acted("inotify", holders=[
        {"pid": 77, "command": "clouddrived", "count": 128}]), severity="warning"),
    Case("program-acts", acted("home.map", "home.link", mount=MOUNT), severity="warning"),
    Case("program-acts", acted(
        "program", said="status 1: No module named yoked_beside", by="isolated",
        file="/w/bin/python", command='exec -a "$0" python3.11 -I "$@"')),
    Case("program-acts", acted("module-statistics", said="EOFError: marshal data too short")),
    Case("program-acts", acted("module-bz2"), severity="warning"),
    Case("program-acts", acted("unix-socket", said=NO_FAMILY)),
    Case("program-acts", lambda: told(
        acted("unix-socket", said=NO_FAMILY)(), "garage", "health/tables/denials", [
            f"{OF_SSH}:2 RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK",
            f"{OF_SSH}:3 RestrictAddressFamilies=AF_UNIX AF_INET"])),
    Case("program-acts", lambda: told(
        acted("netlink", said=NO_FAMILY)(), "garage", "health/tables/denials", [
            f"{OF_SSH}:2 RestrictAddressFamilies=~AF_NETLINK AF_PACKET"])),
    Case("package-altered", lambda: taken(garage={"altered": [FLAW], "more": 0})),
    Case("package-altered", lambda: taken(garage={
        "altered": [{**FLAW, "how": "bytecode",
                     "file": f"{PACKAGES}/torch/utils/__pycache__/fetch.cpython-312.pyc"}]})),
    Case("package-altered", lambda: taken(garage={
        "altered": [{**FLAW, "package": "rich", "version": "14.1", "how": "empty"}],
        "more": 3}), severity="warning"),
    Case("package-altered", lambda: taken(garage={
        "altered": [{**FLAW, "file": f"{PACKAGES}/rich/__init__.py", "package": "rich",
                     "version": "14.1", "how": "dangling"}]}), severity="warning"),
    Case("package-altered", lambda: taken(garage={
        "imported": None, "altered": [{
            "file": f"{PACKAGES}/typing_extensions-4.12.dist-info", "package": "typing_extensions",
            "version": "4.12", "how": "unreadable"}]})),
    Case("package-altered", lambda: taken(**{
        name: {"library": {"build": "b1", "home": "/usr/lib/python3.12/", "files": {
            "socket.py": "aa", "queue.py": "bb" if name == "garage" else "cc"}}}
        for name in NAMES})),
    Case("package-altered", lambda: taken(
        attic={"library": {"build": "b1", "home": "/usr/lib/python3.12/", "younger": [],
                           "files": {"socket.py": "aa"}}},
        garage={"library": {"build": "b1", "home": "/usr/lib/python3.12/", "younger": ["socket.py"],
                            "files": {"socket.py": "bb"}}})),
    Case("package-altered", lambda: taken(garage={"altered": [
        {"file": "/usr/lib/python3.12/__pycache__/statistics.cpython-312.pyc", "package": None,
         "version": None, "how": "cut", "found": "a1"}]})),
    Case("torch-import", lambda: fails(
        "AttributeError: module 'torch.x' has no attribute 'y'", altered=[{**FLAW, "how": "empty"}],
        blame={"file": "/v/site-packages/torch/__init__.py", "package": "torch"})),
    Case("torch-import", lambda: fails("ValueError: bad marshal data (unknown type code)")),
    Case("torch-import", lambda: fails(
        "EOFError: marshal data too short", altered=[{**FLAW, "how": "cut"}],
        blame={"file": "/v/site-packages/torch/__init__.py", "package": "torch"})),
    Case("torch-import", lambda: fails(
        "ImportError: /v/libc10.so: undefined symbol: x",
        blame={"file": "/v/site-packages/torch/_C.so", "package": "torch",
               "libraries": [LIBRARY]})),
    Case("code-differs", lambda: modules(
        attic={**MODULE, "digest": "aa"}, garage={**MODULE, "digest": "bb"},
        study={**MODULE, "digest": "aa", "path": "/w/rowscale.py"}), severity="warning"),
    Case("code-differs", lambda: modules(
        attic={**MODULE, "version": "2.1"}, garage=None), hosts=("attic", "garage"),
         severity="warning"),
    Case("code-differs", lambda: plain(attic=None, garage={**MODULE, "version": "2.1"})),
    # names
    Case("own-name", said("health/names/own/addresses", ["127.0.1.1"]), severity="warning"),
    Case("own-name", lambda: told(
        said("health/names/own/addresses", ["127.0.0.1"])(),
        "garage", "health/names/hostname", "localhost"), severity="warning"),
    Case("own-name-unresolved", said("health/names/own", UNKNOWN), severity="warning"),
    Case("own-name-elsewhere", said("health/names/own/addresses", ["192.168.1.77"]),
         severity="warning"),
    Case("peer-name", lambda: told(names_known(), "garage", "health/names/others/attic", UNKNOWN),
         severity="warning"),
    Case("peer-name", lambda: told(
        told(names_known(), "garage", "health/names/others/attic", UNKNOWN),
        "garage", "health/names/order", "dns"), severity="warning"),
    Case("peer-name-wrong", lambda: told(names_known(), "garage",
                                         "health/names/others/attic/addresses", ["192.168.1.99"]),
         severity="warning"),
    Case("name-family", lambda: told(change(home(), "garage", interfaces=(
        *home().host("garage").interfaces, interface("eth0:6", "fd00::12", 64))),
        "garage", "health/names/own/addresses", ["fd00::12", ADDRESS["garage"]]),
         severity="warning"),
    Case("slow-names", lambda: replace(
        told(home(), "garage", "health/names/reverse", {ADDRESS["attic"]: SLOW}),
        world=World(ok=False, took_s=5.0, said={"garage": "timed out"}, reason="no world"))),
    Case("slow-names", said("health/names/reverse", {ADDRESS["attic"]: SLOW}), severity="warning"),
    Case("slow-names", said("health/names/reverse", {"127.0.0.1": SLOW}), severity="warning"),
    Case("slow-names", said("health/names/own", SILENT), severity="warning"),
    # a launch in small
    Case("small-launch", shared, hosts=("attic", "garage")),
    Case("small-launch", said("health/launch", {"damaged": [
        f"/home/ada/.cache/yoked/trees/ab/{name}.py" for name in ("common", "train")]})),
    Case("small-launch", said("health/launch", {"failed": "Failed to connect to bus"})),
    Case("small-launch", said("health/launch", {"noise": {
        "line": "226: binding file libc.so.6", "variables": [
            {"name": "LD_DEBUG", "places": [{"file": "/home/ada/.bashrc", "line": 1}]}]}}),
        severity="warning"),
    Case("small-launch", said("health/launch", {"adopter": {"pid": 98, "command": "boxd"}}),
         severity="warning"),
    Case("small-launch", said("health/launch", {"batons": [f"{BUILDS}/fused_adam/lock"]}),
         severity="warning"),
    # Of the program's own name there is one.
    Case("small-launch", lambda: told(
        here(extensions=["rows"]), "garage", "health/launch",
        {"batons": [f"{BUILDS}/{name}/lock" for name in ("fused_adam", "rows")]})),
    *(Case("small-launch", said("health/launch", {"enclosed": {
        "command": "bash -c python3", "start_file": start_file}}))
      for start_file in (None, {"file": "/home/ada/.bashrc", "line": 1,
                                "words": "exec unshare --user --pid --fork bash -c python3"})),
    *(Case("small-launch", said("health/launch", {"login": {
        "how": how, "command": {"file": "/home/ada/.bashrc", "line": 1, "words": words}}}),
        severity="warning")
      for how, words in (("waits", "flock 9"), ("blocks", "/usr/local/bin/prompt-info"))),
    # what ends programs, takes files away, or closes sessions
    Case("enders", ended({"killed": {"after_s": 4.2}}, REAPER)),
    Case("enders", ended({"killed": {"after_s": 4.2}, "programs": [REAPER]})),
    Case("enders", ended({"killed": {"after_s": 4.2}})),
    Case("enders", ended({"signals": [
        {"name": "SIGUSR1", "sender": {"pid": 9, "commands": ["pkill -USR1 python", ROTATES]}}]},
        {**REAPER, "command": ROTATES, "about": ["python"]})),
    *(Case("enders", ended({"signals": [{"name": "SIGTERM", "sender": {
        "pid": pid, "commands": []}}]})) for pid in (0, 9)),
    Case("enders", lambda: told(
        told(ended({}, REAPER)(), "garage", "torch/error", "the interpreter ended with signal 9"),
        "garage", "torch/imported", False)),
    Case("enders", ended({}, REAPER), severity="warning"),
    Case("enders", ended({}, {**REAPER, "pid": None, "command": ""}), severity="warning"),
    Case("enders", ended({}, {**REAPER, "about": ["python", "memory"], "limit_bytes": 3 * 10**8}),
         severity="warning"),
    Case("enders", ended({"taken": [
        {"path": f"/home/ada/.local/state/yoked/yoked-look-1/{name}.py", "how": how}
        for name, how in (("common", "gone"), ("train", "empty"))], "takers": [
        {**REAPER, "about": []}, {"pid": 9, "command": "clamonacc", "file": None, "line": 0,
                                  "words": ""}]})),
    Case("enders", ended({"taken": [
        {"path": "/home/ada/.local/state/yoked/yoked-look-1/common.py", "how": "altered"}]})),
    Case("enders", ended({"taken": [
        {"path": "/home/ada/.local/state/yoked/yoked-look-1/common.py", "how": "barred"}]})),
    Case("enders", said("health/enders", {"programs": [], "sessions": [
        {"file": "/etc/ssh/sshd_config", "line": 9, "words": "ChannelTimeout session:*=1",
         "after_s": 1}]}), severity="warning"),
    # the last proof
    Case("world-failed", lambda: replace(home(), world=World(
        ok=False, took_s=3.0, said={"garage": "it was connecting"}, reason="no world"))),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.check)
def test_a_trouble_is_one_finding_with_its_host_and_its_fix(case: Case) -> None:
    seen = case.make()

    found = findings_of(seen)

    assert [each.check for each in found] == [case.check], found
    assert found[0].severity == case.severity
    assert found[0].hosts == case.hosts
    assert found[0].saw
    assert found[0].why
    # Those of an unknown failure are the words of the error itself.
    assert case.check == "ssh-other" or all(fix.repair for fix in found[0].fix)


@pytest.mark.parametrize("seen", [
    asked("settings", "ROWS", "variables", attic=None, garage=None, study=None),
    asked("settings", "TMPDIR", "variables", attic="/a", garage="/b", study="/c"),
    asked("settings", "ROWS_DIR", "variables", attic="/home/ada/rows", garage="/home/ada/rows"),
    asked("reads", "/rows", "files", attic=MISSING, garage=MISSING),
    asked("reads", "/usr/share/dict/words", "files", attic=A_FILE, garage={**A_FILE, "size": 9}),
    asked("reads_below", "/rows", "files", attic=ROWS, garage={**ROWS, "count": 9}),
    asked("rewrites", "/rows/a", "writes", attic=FREE, garage={"problem": "ENOENT", "owner": None}),
    asked("libraries", "liba.so.1", attic=None, garage=True),
    asked("hosts", "hub.example", attic=False, garage=False),
    asked("hub", "ada/net", attic=CACHED, garage={**CACHED, "revision": None, "files": {}}),
    asked("above", ".env", attic=MISSING, garage=MISSING),
    replace(asked("reads", "/home/ada/rows", "files", attic=ROWS, garage=MISSING),
            need=Need(folders={"data": "~/rows"})),
], ids=lambda seen: next(iter(seen.controller["asks"])))  # fmt: skip
def test_what_a_program_can_do_without_is_not_missed(seen: Examination) -> None:
    assert findings_of(seen) == ()


def test_of_two_files_that_differ_one_is_brought_to_the_other_host() -> None:
    other = {**A_FILE, "digest": "b" * 64}

    [found] = findings_of(asked("reads", "/rows", "files", attic=A_FILE, garage=other))

    assert found.hosts == ("attic", "garage")
    assert [fix.host for fix in found.fix] == ["garage"]


def test_what_a_program_does_in_an_assert_is_named_where_asserts_are_left_out() -> None:
    seen = taken(garage={"settings": {"optimisation": "1"}})
    seen = replace(seen, controller={"asks": {"asserts": {"_newest": "common.py:7"}}})

    [found] = findings_of(seen)

    assert found.hosts == ("garage",)
    assert "the program works in one: _newest(...) at common.py:7" in found.saw


def test_nothing_is_sent_onto_a_disk_that_gives_errors() -> None:
    (found,) = findings_of(unread("/dev/sdb1"))

    assert "2.bin no file that can be read: unreadable: Input/output error" in found.saw
    assert "/dev/sdb1" in found.saw
    assert found.fix[0].command.startswith("sudo smartctl -a /dev/sdb    ")
    assert "another disk" in found.fix[1].command
    assert not any("`yoked train` sends" in fix.command for fix in found.fix)


@pytest.mark.parametrize(
    ("act", "told_on"), [("thread", set(NAMES)), ("inotify", set()), ("no-such-act", set())]
)
def test_what_works_nowhere_is_told_where_torch_cannot_do_without(
    act: str, told_on: set[str]
) -> None:
    found = findings_of(acted(act)(*NAMES))

    assert {each.hosts[0] for each in found} == told_on
    assert all("and not on" not in each.saw for each in found)


def test_a_guard_of_memory_counts_by_its_limit_unless_something_was_killed() -> None:
    guard = {**REAPER, "about": ["python", "memory"], "limit_bytes": 9 << 30}

    assert findings_of(ended({}, guard)()) == ()
    late = {**guard, "about": ["python", "memory", "shortage"], "limit_bytes": 1 << 29}
    assert findings_of(ended({}, late)()) == ()
    (found,) = findings_of(ended({"killed": {"after_s": 2.0}}, guard)())
    assert found.severity == "error"
    assert "/usr/local/sbin/reap, line 2," in found.saw


def test_acts_that_fail_by_one_mount_are_one_finding() -> None:
    seen = acted("home.map", "home.link", mount=MOUNT)()
    acts = {**at_torch(seen, "garage")["acts"]}
    failed = {**acts["failed"], "request": {"said": "no", "variables": ["http_proxy"]}}
    seen = told(seen, "garage", "torch/acts/failed", failed)

    found = findings_of(seen)

    assert len(found) == 2
    assert "map a file in its home and link a file in its home (OSError: no; on share" in (
        found[0].saw + found[1].saw
    )


def test_locks_that_no_host_has_are_no_trouble() -> None:
    assert findings_of(everywhere("health/data_lock", "ENOLCK")) == ()


@pytest.mark.parametrize(
    ("stood", "stops"),
    [({"times": 1, "lost_s": 1.2}, None), ({"times": 3, "lost_s": 6.0}, {"times": 1, "lost_s": 6})],
)
def test_a_host_that_a_busy_moment_or_a_person_held_up_is_not_called_paused(
    stood: dict[str, Any], stops: dict[str, Any] | None
) -> None:
    seen = told(home(), "garage", "health/launch", {"stood": stood})

    assert findings_of(told(seen, "garage", "torch/stops", stops)) == ()


def stood(*gaps: tuple[float, float]) -> dict[str, Any]:
    """ago_s and lost_s of each time that nothing ran."""
    return {
        "times": len(gaps),
        "lost_s": sum(lost_s for _, lost_s in gaps),
        "gaps": [{"ago_s": ago_s, "lost_s": lost_s} for ago_s, lost_s in gaps],
    }


def test_a_host_that_stood_alone_is_paused() -> None:
    seen = told(home(), "garage", "health/launch", {"stood": stood((9.0, 1.5), (2.0, 3.0))})
    # Another stood at another time.
    seen = told(seen, "attic", "health/launch", {"stood": stood((20.0, 1.2))})

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("paused", ("garage",))
    assert "2 times" in found.saw


@pytest.mark.parametrize("where", ["a host", "this machine"])
def test_hosts_that_stood_together_are_not_called_paused(where: str) -> None:
    seen = told(home(), "garage", "health/launch", {"stood": stood((9.0, 2.5), (2.0, 3.0))})
    late = stood((9.4, 2.2), (3.5, 1.1))
    if where == "a host":
        seen = told(seen, "attic", "health/launch", {"stood": late})
    else:
        seen = replace(seen, controller={**seen.controller, "stood": late})

    assert findings_of(seen) == ()


def test_every_check_has_cases_as_grave_as_it_says() -> None:
    found: dict[str, set[str]] = {check.code: set() for check in CHECKS}
    for case in CASES:
        found[case.check].add(case.severity)

    assert all(check.severity in found[check.code] for check in CHECKS), found
    assert all(found[check.code] == {"warning"} for check in CHECKS if check.severity == "warning")


def test_nothing_is_found_in_an_ordinary_home() -> None:
    assert findings_of(home()) == ()


def test_nothing_is_found_where_hosts_tell_nothing() -> None:
    seen = home()
    for name in NAMES:
        seen = change(seen, name, health={}, torch=None, facts={}, interfaces=())

    assert findings_of(replace(seen, world=None)) == ()


def test_a_model_that_trains_on_gpus_is_not_compared_with_the_memory_of_hosts() -> None:
    assert findings_of(on_gpus()) == ()


def test_a_model_that_is_to_train_beside_the_gpu_takes_memory_of_the_host() -> None:
    seen = on_gpus()

    by_flag = findings_of(replace(seen, need=replace(seen.need, device="cpu")))
    by_file = findings_of(told(seen, "study", "wanted/device", "cpu"))

    assert [(each.check, each.hosts) for each in by_flag] == [("memory", (n,)) for n in NAMES]
    assert [(each.check, each.hosts) for each in by_file] == [("memory", ("study",))]


def test_tables_that_a_gpu_leaves_to_its_host_take_memory_there() -> None:
    seen = on_gpus()

    found = findings_of(replace(seen, need=replace(seen.need, host_bytes_beside_gpu=32 << 30)))

    assert [(each.check, each.hosts) for each in found] == [("memory", (n,)) for n in NAMES]


def test_a_gpus_memory_is_compared_also_where_a_host_has_none() -> None:
    seen = told(on_gpus(garage=8 << 30), "attic", "facts/gpus", [])
    small = replace(seen, need=replace(seen.need, memory_bytes=1 << 30))

    assert [(each.check, each.hosts) for each in findings_of(small)] == [
        ("gpu-memory", ("garage",))
    ]


def test_a_check_is_made_before_a_launch_only_if_it_can_find_something_there() -> None:
    quick = {check.code for check in CHECKS if check.quick}

    assert not quick & {"torch-import", "gloo-missing", "nccl-missing"}


@pytest.mark.parametrize(
    "make",
    [with_amd, lambda: on_rocm(facts__gpus=[{"vendor": "amd", "name": "gfx1100"}])],
    ids=["a part of the processor", "a card in use"],
)
def test_a_gpu_of_amd_is_no_trouble_by_itself(make: Make) -> None:
    assert findings_of(make()) == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_card(cuda="12.8", driver="550.54.14"),
        lambda: with_card(driver=None, capability=None),
        lambda: with_card("cpu", driver="470.256.02", torch__headers=False),
        lambda: told(home(), "garage", "torch/headers", False),
    ],
    ids=["a minor version", "a card that tells nothing", "a card that is not to train", "no GPU"],
)
def test_a_torch_that_its_driver_runs_is_no_trouble(make: Make) -> None:
    assert findings_of(make()) == ()


def test_beside_a_card_that_trains_a_flag_for_the_cpu_asks_nothing_of_it() -> None:
    seen = with_card(driver="470.256.02", torch__headers=False)

    assert findings_of(replace(seen, need=replace(seen.need, device="cpu"))) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        ("TORCH_DISTRIBUTED_DEBUG", "info"),
        ("GLOO_DEVICE_TRANSPORT", "TCP"),
        ("TORCH_GLOO_LAZY_INIT", "0"),
        ("NCCL_PROTO", "LL"),
        ("NCCL_BUFFSIZE", ""),
    ],
)
def test_a_variable_that_changes_nothing_may_be_set_on_one_host(name: str, value: str) -> None:
    assert findings_of(told(home(), "garage", f"health/environment/{name}", value)) == ()


def test_what_lies_beside_the_data_and_is_not_read_is_no_trouble() -> None:
    beside = {"001.bin": "b2", "log.txt": "c3", ".cache/001.bin": "d4", "._002.bin": "e5"}

    assert findings_of(data({"000.bin": "a1", **beside})) == ()


@pytest.mark.parametrize(
    "make",
    [
        said("health/environment/TORCH_DIST_INIT_BARRIER", "0"),
        said("health/environment/XDG_DATA_DIRS", "/usr/share"),
        said("health/environment/DATA", "7"),
        said("health/environment/PYTHONIOENCODING", "utf-8:surrogateescape"),
        said("health/environment/PYTHONIOENCODING", "ascii:replace"),
        said("health/untold", {"wireless": "no answer in 2.5 s", "names": "OSError(5)"}),
        said("health/untold", {"folders": "no answer in 2.5 s"}),
        said("health/processors/nice", 10),
        said("torch/silent_s", 3.0),
        # A person's ^Z; a clock that is turned towards its right time; a laptop far away.
        said("torch/stops", {"times": 1, "lost_s": 3.0}),
        watched(monotonic_s=3.45, real_s=3.45),
        watched(error_s=1.0, monotonic_s=2.1, real_s=2.1),
        said("health/processors/of_init", 12),
        said("health/environment/PYTHONDONTWRITEBYTECODE", "1"),
        lambda: everywhere("health/basics", {"/sys": "empty: no sysfs is mounted there"}),
        lambda: listed_as({"attic": ("0", "1"), "garage": ("1", "0")}, unsorted=()),
        lambda: replace(in_zones(garage=("Asia/Kolkata", 19_800)), controller=home().controller),
        lambda: in_zones(
            garage=("Europe/Paris", 3600), attic=("Europe/Berlin", 3600), study=("CET", 3600)
        ),
        lambda: modules(
            attic={**MODULE, "digest": "aa", "version": "1"},
            garage={**MODULE, "digest": "aa", "path": "/w/rowscale.py"},
        ),
        lambda: modules(attic=MODULE, garage={**MODULE, "digest": "aa"}),
        lambda: modules(attic=None, garage=None, study=None),
        lambda: plain(attic=None, garage=None, study=None),
        # A newer Python may compile it.
        lambda: here(broken=["common.py:12: invalid syntax"], python="3.11.9"),
        # What all have is meant; what was not looked at is not known.
        lambda: taken(**{n: {"starts": [START], "altered": [FLAW]} for n in NAMES}),
        lambda: taken(
            attic={"torch_settings": {"x": "1"}},
            garage={"torch_settings": {"x": "1"}},
            study={"torch_settings": {"x": "1"}},
        ),
    ],
)
def test_what_is_unusual_and_does_no_harm_is_no_trouble(make: Make) -> None:
    assert findings_of(make()) == ()


def test_a_folder_of_data_that_is_named_on_every_host_may_lie_elsewhere() -> None:
    seen = home()
    for name in NAMES:
        seen = told(seen, name, "health/environment/DATA_DIR", f"/mnt/{name}")

    assert findings_of(seen) == ()


@pytest.mark.parametrize(
    ("beside", "quick", "severity"),
    [
        ({"need": Need(code={"queue.py": "a1"})}, False, "error"),
        ({"programs": ["/home/ada/mine/train.py"]}, False, "error"),
        # What is launched may be another program.
        ({"programs": ["/home/ada/mine/train.py"]}, True, "warning"),
    ],
)
def test_a_file_beside_the_program_is_an_error_where_that_program_is_meant(
    beside: dict[str, Any], quick: bool, severity: Severity
) -> None:
    need = beside.get("need", Need())
    controller = {**home().controller, "shadows": ["/home/ada/mine/queue.py"],
                  "programs": beside.get("programs", [])}  # fmt: skip
    seen = replace(home(), quick=quick, need=need, controller=controller)

    assert [(each.check, each.severity) for each in findings_of(seen)] == [
        ("torch-shadowed", severity)
    ]


def test_a_world_that_fails_has_the_variables_that_are_not_alike(
    snapshot: SnapshotAssertion,
) -> None:
    failed = World(ok=False, took_s=5.0, said={"garage": "timed out"}, reason="no world")
    seen = replace(said("health/environment/OPENSSL_OF_TOMORROW", "1")(), world=failed)

    (found,) = findings_of(seen)

    assert found.check == "world-failed"
    assert found.saw == snapshot


def test_the_name_of_an_address_that_no_rank_comes_from_may_take_its_time() -> None:
    assert findings_of(told(home(), "garage", "health/names/reverse", {"100.64.0.11": SLOW})) == ()


def test_one_host_alone_needs_no_network() -> None:
    seen = told(home(("garage",)), "garage", "wanted/interface", None)
    alone = change(seen, "garage", interfaces=(interface("lo", "127.0.0.1", 8, "loopback"),))

    assert findings_of(replace(alone, world=World(ok=None, reason="one host alone"))) == ()


def test_a_dial_that_came_through_closes_no_port_whatever_error_a_report_gives_it() -> None:
    seen = home()
    odd = tuple(
        replace(each, error="ETIMEDOUT") if each.purpose == "rendezvous" else each
        for each in seen.dials
    )

    assert findings_of(replace(seen, dials=odd)) == ()


def test_a_firewall_that_is_on_is_no_trouble_by_itself() -> None:
    assert findings_of(told(home(), "garage", "health/firewall", firewall("ufw"))) == ()


@pytest.mark.parametrize(("launch", "left"), [("a1b2", ""), (None, "only a person can do it")])
def test_only_ranks_of_yoked_are_ended_without_a_person(launch: str | None, left: str) -> None:
    seen = said("health/processes/stale", [{**RANK, "launch": launch}])()

    (plan,) = plan_fixes(findings_of(seen), seen, sudo=True, only=("stale-ranks",))

    assert plan.left == left


@pytest.mark.parametrize(
    "make",
    [
        no_agent("host-key", "Offending ED25519 key in known_hosts:3"),
        no_agent("host-key", "Host key verification failed."),
        said("health/folders/tmp", SCRATCH),
        said("health/folders/cache", {**SCRATCH, "path": "/home/ada/../bob"}),
        said("health/folders/state", {**SCRATCH, "path": "/home/ada"}),
    ],
)
def test_keys_and_folders_that_may_be_others_are_left_to_a_person(
    make: Make, snapshot: SnapshotAssertion
) -> None:
    seen = make()

    (plan,) = plan_fixes(findings_of(seen), seen, sudo=True)

    assert plan.left == snapshot
    assert not any("chown" in fix.command for fix in plan.finding.fix)


@pytest.mark.parametrize(
    "make",
    [
        lambda: in_container("192.168.1.12"),
        lambda: in_container("10.90.0.5"),
        lambda: in_container(manager="kubernetes"),
        in_windows("mirrored", inbound="Allow"),
        in_windows("bridged"),
    ],
    ids=[
        "a container with an address of the home",
        "an office in podman's networks",
        "a pod",
        "Windows lets in",
        "bridged",
    ],
)
def test_a_host_inside_of_another_that_can_be_reached_is_not_blamed_for_that(make: Make) -> None:
    found = {each.check for each in findings_of(make())}

    assert found
    assert not found & {"container-bridge", "nat", "wsl-firewall"}


def test_a_vpn_that_is_named_for_every_host_is_meant() -> None:
    assert findings_of(vpn_meant()) == ()
    assert [each.check for each in findings_of(on_vpn())] == ["slow-interface"]
