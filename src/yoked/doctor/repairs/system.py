"""The kernel's settings, services, users, packages and processes of a host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from yoked.doctor.repairs.base import repair
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
    return Fix(
        host,
        shell_line("sysctl -w {key}={value}", key=key, value=to),
        root=True,
        undo=shell_line("sysctl -w {key}={value}", key=key, value=was),
    )


@repair
def mask_sleep(host: str) -> Fix:
    """Have nothing put a host to sleep."""
    targets = shell_line("sleep.target suspend.target hibernate.target hybrid-sleep.target")
    return Fix(
        host,
        shell_line("systemctl mask {targets}", targets=targets),
        root=True,
        undo=shell_line("systemctl unmask {targets}", targets=targets),
    )


@repair
def let_linger(host: str, user: str) -> Fix:
    """Have a user's processes go on when he logs out."""
    file = f"{_LINGER}/{user}"
    return Fix(
        host,
        shell_line(
            "loginctl enable-linger {user} || {{ mkdir -p {folder} && touch {file}; }}",
            user=user,
            folder=_LINGER,
            file=file,
        ),
        root=True,
        undo=shell_line("loginctl disable-linger {user} || rm -f {file}", user=user, file=file),
    )


@repair
def unlock_cpu_speed(host: str) -> Fix:
    """Take the limits of the CPUs away; what each had is kept until the next start, as they are."""
    before = shell_line("/run/limits.yoked-cpus")
    return Fix(
        host,
        shell_line(
            "{free} && grep . {cpus}/scaling_max_freq {cpus}/scaling_governor > {before} && "
            "cpupower frequency-set -g performance -u 100GHz",
            free=is_free(before),
            cpus=_CPUS,
            before=before,
        ),
        root=True,
        undo=shell_line(
            "[ ! -e {before} ] || {{ while IFS=: read -r file value; do "
            'echo "$value" > "$file"; done < {before} && rm {before}; }}',
            before=before,
        ),
        kept=".yoked-cpus",
    )


@repair
def set_clock(host: str, service: str | None) -> Fix:
    """Have a host ask a time server. service: which program keeps its clock; None: none."""
    if service == "chrony":
        return Fix(host, shell_line("chronyc makestep"), root=True)
    return Fix(
        host,
        shell_line("timedatectl set-ntp true"),
        root=True,
        # Where a service keeps the clock already, it is on, and stays so.
        undo=None if service else shell_line("timedatectl set-ntp false"),
    )


@repair
def start_ssh_server(host: str) -> Fix:
    """Start the ssh server, now and at each start of the host."""
    return Fix(
        host,
        shell_line(
            "systemctl enable --now ssh || systemctl enable --now sshd || service ssh start"
        ),
        root=True,
        undo=shell_line("systemctl stop ssh || systemctl stop sshd"),
    )


@repair
def give_login_shell(host: str, user: str) -> Fix:
    """Give a user bash, where his shell lets nobody in."""
    line = shell_line(
        'case "$(getent passwd {user} | cut -d : -f 7)" in */nologin|*/false) '
        "usermod -s /bin/bash {user} ;; esac",
        user=user,
    )
    return Fix(host, line, root=True)


@repair
def join_gpu_groups(host: str, user: object) -> Fix:
    """Give a user the groups that may use the GPU."""
    return Fix(host, shell_line("usermod -a -G video,render {user}", user=user), root=True)


@repair
def install_python(host: str) -> Fix:
    """Install the system's Python."""
    line = shell_line(
        "apt-get install -y python3 || dnf install -y python3 || pacman -S --noconfirm python || "
        "apk add python3"
    )
    return Fix(host, line, root=True)


@repair
def install_compiler(host: str) -> Fix:
    """Install the system's compilers."""
    line = shell_line(
        "apt-get install -y build-essential || dnf install -y gcc gcc-c++ || "
        "pacman -S --noconfirm base-devel"
    )
    return Fix(host, line, root=True)


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
