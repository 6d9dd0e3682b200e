"""The kernel's settings, services, users, packages and processes of a host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from yoked.doctor.repairs.base import as_root, repair
from yoked.doctor.repairs.files import is_free
from yoked.records.examination import Fix
from yoked.records.shell import Line, joined, shell_line

_CPUS = shell_line("/sys/devices/system/cpu/cpu*/cpufreq")
_LINGER = "/var/lib/systemd/linger"
# The variable of a rank that names its launch.
_LAUNCH = "YOKED_LAUNCH_ID"


@repair
def sysctl(host: str, key: str, to: object, was: object) -> Fix:
    """Set a value of the kernel, until the next start."""
    return as_root(host, "sysctl -w {key}={to}", "sysctl -w {key}={was}", key=key, to=to, was=was)


@repair
def mask_sleep(host: str) -> Fix:
    """Have nothing put a host to sleep."""
    targets = shell_line("sleep.target suspend.target hibernate.target hybrid-sleep.target")
    return as_root(host, "systemctl mask {targets}", "systemctl unmask {targets}", targets=targets)


@repair
def let_linger(host: str, user: str) -> Fix:
    """Have a user's processes go on when he logs out."""
    return as_root(
        host,
        "loginctl enable-linger {user} || {{ mkdir -p {folder} && touch {file}; }}",
        "loginctl disable-linger {user} || rm -f {file}",
        user=user,
        folder=_LINGER,
        file=f"{_LINGER}/{user}",
    )


@repair
def unlock_cpu_speed(host: str) -> Fix:
    """Take the limits of the CPUs away; what each had is kept until the next start, as they are."""
    before = shell_line("/run/limits.yoked-cpus")
    fix = as_root(
        host,
        "{free} && grep . {cpus}/scaling_max_freq {cpus}/scaling_governor > {before} && "
        "cpupower frequency-set -g performance -u 100GHz",
        "[ ! -e {before} ] || {{ while IFS=: read -r file value; do "
        'echo "$value" > "$file"; done < {before} && rm {before}; }}',
        free=is_free(before),
        cpus=_CPUS,
        before=before,
    )
    return replace(fix, kept=".yoked-cpus")


@repair
def set_clock(host: str, service: str | None) -> Fix:
    """Have a host ask a time server. service: which program keeps its clock; None: none."""
    if service == "chrony":
        return as_root(host, "chronyc makestep")
    if service:
        # It is on already, and stays so.
        return as_root(host, "timedatectl set-ntp true")
    return as_root(host, "timedatectl set-ntp true", "timedatectl set-ntp false")


@repair
def let_go_on(host: str, pid: int) -> Fix:
    """Have a stopped program go on."""
    return as_root(host, "kill -CONT {pid}", "kill -STOP {pid}", pid=pid)


@repair
def start_ssh_server(host: str) -> Fix:
    """Start the ssh server, now and at each start of the host."""
    return as_root(
        host,
        "systemctl enable --now ssh || systemctl enable --now sshd || service ssh start",
        "systemctl stop ssh || systemctl stop sshd",
    )


@repair
def give_login_shell(host: str, user: str) -> Fix:
    """Give a user bash, where his shell lets nobody in."""
    return as_root(
        host,
        'case "$(getent passwd {user} | cut -d : -f 7)" in */nologin|*/false) '
        "usermod -s /bin/bash {user} ;; esac",
        user=user,
    )


@repair
def join_gpu_groups(host: str, user: object) -> Fix:
    """Give a user the groups that may use the GPU."""
    return as_root(host, "usermod -a -G video,render {user}", user=user)


@repair
def install_python(host: str) -> Fix:
    """Install the system's Python."""
    return as_root(
        host,
        "apt-get install -y python3 || dnf install -y python3 || pacman -S --noconfirm python || "
        "apk add python3",
    )


@repair
def install_compiler(host: str) -> Fix:
    """Install the system's compilers."""
    return as_root(
        host,
        "apt-get install -y build-essential || dnf install -y gcc gcc-c++ || "
        "pacman -S --noconfirm base-devel",
    )


@repair
def install_headers(host: str, version: str) -> Fix:
    """Install what C programs need of the system's Python. version: its own, "3.12.3"."""
    minor = ".".join(version.split(".")[:2])
    return as_root(
        host,
        "apt-get install -y {debian} || dnf install -y {fedora} || dnf install -y python3-devel || "
        "zypper install -y python3-devel",
        debian=f"python{minor}-dev",
        fedora=f"python{minor}-devel",
    )


@repair
def end_processes(host: str, processes: Sequence[Mapping[str, Any]], *, root: bool = False) -> Fix:
    """End processes, by what the agent says of each."""
    return Fix(host, kill_line(processes), root=root)


def kill_line(processes: Sequence[Mapping[str, Any]]) -> Line:
    """End processes, each if it began when it did and is of that launch: a number may be another's
    by then.

    Source: proc_pid_stat(5); the name, in parentheses, may hold anything.
    """
    words = joined(" ", (f"{each['pid']}:{each['start_ticks']}" for each in processes))
    launches = {
        re.sub(r"[^\w-]", "", str(each["launch"])) for each in processes if each.get("launch")
    }
    is_ours = shell_line(
        " || ! tr '\\0' '\\n' < /proc/${{p%:*}}/environ | grep -qxE {of}",
        of=f"{_LAUNCH}=({'|'.join(sorted(launches))})",
    )
    return shell_line(
        "for p in {words}; do "
        "[ \"$(sed 's/.*) //' /proc/${{p%:*}}/stat 2>/dev/null | cut -d ' ' -f 20)\" != ${{p#*:}} ]"
        "{is_ours} || kill -9 ${{p%:*}}; done",
        words=words,
        is_ours=is_ours if launches else shell_line(""),
    )
