"""Of the causes of ssh_causes.py those behind a login: what its shell starts, and its Python."""

from __future__ import annotations

from collections.abc import Mapping

from yoked.doctor.checks.ssh_mends import (
    RUN_COMMANDS,
    Cause,
    give_shell,
    here,
    leave_line_out,
    let_pass,
    made,
    there,
    unless_home,
)
from yoked.doctor.repairs.files import make_executable, name_home
from yoked.doctor.repairs.system import install_python
from yoked.records.examination import SshKind

AFTER_LOGIN: Mapping[SshKind, Mapping[str, Cause]] = {
    "shell": {
        "": Cause(
            "something else than the agent starts there: a start file of the shell that prints or "
            "exits, a shell like nologin, ForceCommand, command= of the key, or ~/.ssh/rc; cannot "
            "tell which",
            *RUN_COMMANDS,
        ),
        "hangs": Cause(
            "the login is through, and what starts there waits: a start file of the shell, "
            "ForceCommand, ~/.ssh/rc or /etc/ssh/sshrc; cannot tell which",
            *RUN_COMMANDS,
        ),
        "no-input": Cause(
            "ssh here does not hand its input on, as with -n or -f, or something that the login "
            "starts there reads it first; cannot tell which",
            here("{ssh_g} | grep -iE 'stdinnull|forkafter'    has yes where a setting does it"),
            *RUN_COMMANDS,
        ),
        "start-file": Cause(
            "the shell runs that line for each program that comes in by ssh, the agent and the "
            "ranks among them",
            leave_line_out,
        ),
        "nologin": Cause("the login shell of that user lets nobody in", give_shell),
        "key-command": Cause(
            "authorized_keys there has a command= for our key, which runs instead of any other",
            there(
                "take `command=...` out of line {line} of {file}, or give {host} a key of its own "
                "there"
            ),
        ),
        "sftp-only": Cause(
            "its sshd gives this user or key nothing but sftp: ForceCommand, or command= of the "
            "key",
            there(
                "`ForceCommand internal-sftp` of /etc/ssh/sshd_config, or `command=` of "
                "~/.ssh/authorized_keys, must not be for this user and key; after a change: "
                "{reload}"
            ),
        ),
        "chroot": Cause(
            "sshd finds no login shell: it changes the root to a folder that has none "
            "(ChrootDirectory), or the shell was removed",
            there(
                "`ChrootDirectory` of /etc/ssh/sshd_config must not be for this user; after a "
                "change: {reload}. Where there is none, {about} is gone: sudo usermod -s /bin/sh "
                "{user}"
            ),
        ),
        "wrong-user": Cause(
            "that account is not for logins",
            here("put into {config}, for `Host {host}`: `User {about}`"),
        ),
        "restricted": Cause(
            "the login shell is a restricted one, which starts no program by its path",
            there("sudo usermod -s /bin/bash {user}"),
        ),
        "full": Cause(
            "no program can write there: a disk or a quota is full",
            there("df -h ~ /tmp; df -i ~ /tmp; quota    tell what is full"),
        ),
    },
    "python": {
        "": Cause(
            "the agent, and every rank, is a Python program",
            unless_home(made(install_python, "host")),
        ),
        "not-executable": Cause(
            "the system there may not execute that Python: its mode, or that of what it links to, "
            "or a file system that is mounted noexec",
            made(make_executable, "host", "about"),
        ),
        "barred": Cause(
            "that Python is there, and a folder on the way to it, or to what it links to, is "
            "closed to the user as whom ssh comes in",
            let_pass,
        ),
        "other-home": Cause(
            "that Python takes the library of another one, whose parts do not fit it",
            made(name_home, "host", "about"),
        ),
        "no-place": Cause(
            "the agent is unpacked into the cache, or else into /dev/shm: a disk that is full, a "
            "folder of somebody else's, or a program that empties the cache",
            there(
                "ls -ld ~/.cache/yoked; df -h ~ /dev/shm    show whether it is full, or somebody "
                "else's; where it is removed, `ps aux` has the cleaner, or the loop, that does it"
            ),
        ),
        "no-threads": Cause(
            "the agent starts a thread for each thing that it is asked, and torch many: neither "
            "can work there",
            there(
                "where {host} is a container: on the machine that has it, renew Docker (from "
                "20.10.10 on) or Podman, and libseccomp (from 2.5.2 on); until then, `docker run "
                "--security-opt seccomp=unconfined`",
                "grep -E 'Seccomp|NoNewPrivs' /proc/$$/status    shows the filter; where {host} is "
                "no container, SystemCallFilter= of the ssh server's unit sets it: systemctl cat "
                "ssh sshd",
            ),
        ),
        "host-exhausted": Cause(
            "the agent starts a thread for each thing that it is asked, and torch many: neither "
            "can work there",
            there(
                "`ulimit -a` has the limits of processes (-u) and of memory (-v); `cat "
                "/sys/fs/cgroup/pids.max` that of a container: lift what is low, in a start file, "
                "limits.conf or the container's settings"
            ),
        ),
        "died": Cause(
            "the shell there runs what it is told, and Python ends before it runs the agent",
            unless_home(
                there(
                    "{python} -E -s -S -c 'print(1)'    shows it; `sudo dmesg | tail` tells "
                    "whether the kernel ended it"
                )
            ),
        ),
    },
}
