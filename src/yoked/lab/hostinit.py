"""PID 1 of a host: makes its namespaces and file tree, starts its ssh server, and reaps.

Standard library only. Reads one JSON line from the socket that is its stdin, connects the
network from outside in between, and answers in JSON lines:

    {"here"}                 the kernel adds our PID, as the reader sees it (SCM_CREDENTIALS)
    {"ready", "notes"}       namespaces and files are there; "go" is awaited
    {"ssh": bool}            the ssh server was started
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import traceback
from pathlib import Path
from typing import Any

from yoked.lab import syscalls
from yoked.lab.filetree import FileTree
from yoked.lab.keeper import NAMESPACES, reap_for_ever

LAB_FOLDERS = "/run/hosts"
_SSH = "/run/yoked"
_USER_NAMESPACE = "/run/yoked/user_namespace"
# What bash, zsh and sh run for somebody who logs in, or whose command ssh brings.
_START_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".profile"),
    *(".zshenv", ".zprofile", ".zshrc", ".zlogin"),
)


def main() -> None:
    """Become the host that the configuration describes."""
    channel = socket.socket(fileno=0)
    reader = channel.makefile("r", encoding="utf-8")
    config: dict[str, Any] = json.loads(reader.readline())
    try:
        enter_lab(config["init"], config["user"] is not None)
        if child := os.fork():
            # Its parent is outside of the lab, whose end waits until this child is collected.
            os.waitpid(child, 0)
            os._exit(0)
        storage = _make_storage(config["name"], config["storage_bytes"])
        syscalls.unshare(NAMESPACES | syscalls.CLONE_NEWPID)
        if os.fork():
            os._exit(0)  # what follows belongs to the lab's first process
        os.setsid()
        # A host's first process starts no ranks, and takes over those that lose their parent.
        syscalls.name_process("hostinit")
        _send(channel, {"here": True})
        _live(config, storage, channel, reader)
    except BaseException as problem:  # noqa: BLE001 - whatever it is, the one who waits must hear it
        _send(channel, {"error": f"{type(problem).__name__}: {problem}"})
        traceback.print_exc()
        os._exit(1)


def enter_lab(init: int, user_namespace: bool) -> None:
    """Enter the namespaces of a lab's first process."""
    names = syscalls.NAMESPACES_OF_A_HOST
    syscalls.enter_namespaces(syscalls.open_namespaces(init, names, user_namespace=user_namespace))


def _make_storage(name: str, size_bytes: int) -> Path:
    """The host's own tmpfs, kept in the lab's mount namespace so that it outlives a reboot."""
    storage = Path(LAB_FOLDERS) / name
    if not storage.exists():
        storage.mkdir()
        syscalls.mount("tmpfs", str(storage), "tmpfs", syscalls.MS_NODEV, f"size={size_bytes}")
    return storage


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _live(config: dict[str, Any], storage: Path, channel: socket.socket, reader: Any) -> None:
    for path in config["procs_files"]:
        Path(path).write_text("0")
    os.sched_setaffinity(0, config["cpus"])
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    socket.sethostname(config["name"])
    mark = storage / "booted"
    first_time = not mark.exists()
    mark.touch()
    carried, apart = tuple(config["carried"]), tuple(config["apart"])
    tree = FileTree(storage, config["user"] is not None, config["home"], carried, apart)
    tree.build()
    tree.enter()
    _settle(config, first_time)
    if note := _make_client_folder(config):
        tree.notes.append(note)
    _send(channel, {"ready": True, "notes": tree.notes})
    if reader.readline().strip() != "go":
        os._exit(1)
    started = _start_ssh(config)
    if config["user"] is None:
        syscalls.drop_capabilities()
    _send(channel, {"ssh": started})
    syscalls.to_null(0, 1, 2)
    reader.close()
    channel.close()
    reap_for_ever()


def _settle(config: dict[str, Any], first_time: bool) -> None:
    """Write what makes this host this host."""
    for path, text in config["files"].items():
        # What was changed on the host stays so over a reboot.
        if not os.path.exists(path) or first_time:
            _replace(path, text)
    if first_time:
        _forget_start_files(Path(config["home"]))
    for path in config["hidden"]:
        if os.path.isdir(path):
            syscalls.mount("tmpfs", path, "tmpfs", syscalls.MS_NOSUID, "mode=700")
    os.makedirs(_SSH, mode=0o755)
    os.makedirs("/run/sshd", mode=0o755)  # where sshd locks its unprivileged half in
    for name, text in config["sshd_files"].items():
        _replace(f"{_SSH}/{name}", text, mode=0o600)
    if config["user"] is not None:
        _make_user_namespace(config["user"])
        # Port 22 and ping for programs that are no root; the settings are this network's own.
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
        Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 0")


def _forget_start_files(home: Path) -> None:
    """Take the start files of the person's shells out of the host: they may wait, print or fail.

    pyenv's waits a minute for a lock that a login which was cut off left behind.
    """
    for name in _START_FILES:
        # There is none, or an ordinary user's overlay takes no change here (EOVERFLOW).
        with contextlib.suppress(OSError):
            os.unlink(home / name)


def _make_user_namespace(user: list[int]) -> None:
    """The namespace of all programs of this host, kept as a mount: they can see each other.

    In it the ordinary user has his own number, and no capabilities. Source: namespaces(7).
    """
    made, tell = os.pipe()
    child = os.fork()
    if child == 0:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        syscalls.map_own_user(user[0], user[1], 0, 0)
        os.write(tell, b".")
        signal.pause()
    os.read(made, 1)
    Path(_USER_NAMESPACE).touch()
    syscalls.bind(f"/proc/{child}/ns/user", _USER_NAMESPACE)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(made)
    os.close(tell)


def _make_client_folder(config: dict[str, Any]) -> str | None:
    """~/.ssh of the lab's own, which also hides the user's; a note where that cannot be."""
    folder = Path(config["home"]) / ".ssh"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        # Below folders of other users, an ordinary user's overlay takes no new ones (EOVERFLOW).
        return f"hosts do not reach each other by ssh: {folder} cannot be made ({problem.strerror})"
    syscalls.mount("tmpfs", str(folder), "tmpfs", syscalls.MS_NOSUID, "mode=700")
    for name, text in config["ssh_files"].items():
        _replace(str(folder / name), text, mode=0o600)
    return None


def _replace(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file anew, whatever a link there points to and whoever owned the old one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    Path(path).write_text(text, encoding="utf-8")
    os.chmod(path, mode)


def _start_ssh(config: dict[str, Any]) -> bool:
    command = config["sshd"]
    if command is None or not shutil.which(command[0]):
        return False
    if os.fork() == 0:
        os.setsid()
        as_user(config["user"])
        restore_signals()
        syscalls.to_null(0, 1, 2)
        environment = config["sshd_environment"]
        os.execve(command[0], command, environment)  # noqa: S606 - an argument list, no shell
    return True


def restore_signals() -> None:
    """What Python ignores, its children would ignore too: `yes | head` would not end."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def as_user(user: list[int] | None) -> None:
    """What a host's programs may do: root with the host's capabilities, or the ordinary user."""
    if user is None:
        syscalls.drop_capabilities()
    else:
        syscalls.enter_namespaces([os.open(_USER_NAMESPACE, os.O_RDONLY)])
