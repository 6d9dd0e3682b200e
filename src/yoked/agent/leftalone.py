"""A program and files that are left alone on this host for the time of a look, as a launch leaves
its launcher and the copy of a program: what became of them, and who did it.

Source: sigwaitinfo(2), signal(7).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yoked
from yoked.agent.ask import text
from yoked.agent.detach import BECOME, detached_argv, scope_helps
from yoked.agent.enders import probe_enders, takers
from yoked.agent.server import Call
from yoked.agent.stale_processes import DOCTOR_VARIABLE
from yoked.core.fs import write_bytes
from yoked.paths import cache_root, state_root

# What others send to programs by their names; whoever is stopped is told otherwise.
_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU")
# By this its parent ends at once, as that of a launcher does.
_LEAVE = ("/bin/sh", "-c", '"$@" &', "sh")
_START_S, _END_S, _LONGEST, _MOST = 4.0, 0.5, 200, 8
# Of its folders; no look takes so long.
_PREFIX, _OLD_S = "yoked-look-", 3600.0


def answer_left_alone(call: Call) -> dict[str, Any]:
    """args: do, "begin" (with sources, {name: text}, files of the program here) or "end".

    "begin" gives an empty dict, and "end" what happened: killed {after_s}, where the program was
    ended; signals [{name, sender}], that it got, with the sender as `_sender` tells it; taken
    [{path, how}]: files that are "gone", "empty", "altered" or
    "barred", as by a scanner; takers: who may have taken them;
    programs, of probe_enders, where the program was ended or signalled.
    """
    if call.args["do"] == "begin":
        LEFT.begin(call.args.get("sources") or {})
        return {}
    return LEFT.end()


class LeftAlone:
    """One program and some files of this agent's."""

    def __init__(self) -> None:
        self._files: dict[Path, bytes] = {}
        self._made: list[Path] = []
        self._signals: list[dict[str, Any]] = []
        self._tether: int | None = None
        self._reader: threading.Thread | None = None
        self._began_s = self._ended_s = 0.0

    def begin(self, sources: dict[str, str]) -> None:
        """Leave them. Where that fails nothing is left: others tell why."""
        with contextlib.suppress(OSError):
            for root in (state_root(), cache_root()):
                _sweep(root)
                self._leave(root / f"{_PREFIX}{secrets.token_hex(6)}", sources)
        # Elsewhere nobody is told who sent a signal.
        if sys.platform.startswith("linux") and self._reader is None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self._start()

    def end(self) -> dict[str, Any]:
        """Tell what became of them, and remove them."""
        told: dict[str, Any] = {"signals": self._signals[:_MOST]}
        if self._reader is not None:
            if self._began_s and not self._reader.is_alive():
                told["killed"] = {"after_s": round(self._ended_s - self._began_s, 1)}
            self._release()
        if told["signals"] or "killed" in told:
            # Who came only since, too.
            told["programs"] = (probe_enders() or {}).get("programs")
        fates = {path: _fate(path, content) for path, content in self._files.items()}
        taken = [{"path": str(path), "how": how} for path, how in fates.items() if how]
        told["taken"] = taken[:_MOST]
        told["takers"] = takers({path.parent for path in self._files}) if taken else []
        self.clear()
        return {name: each for name, each in told.items() if each}

    def clear(self) -> None:
        """Remove what was left, and the folders that were made for it."""
        self._release()
        for path in self._files:
            with contextlib.suppress(OSError):
                path.unlink()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._files, self._made = {}, []

    def _leave(self, folder: Path, sources: dict[str, str]) -> None:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing if sources else []):
            each.mkdir()
            self._made.append(each)
        for name, content in sources.items():
            path = folder / os.path.basename(name)  # noqa: PTH119 - the controller's text
            self._files[path] = content.encode()
            write_bytes(path, self._files[path], durable=False)

    def _start(self) -> None:
        mine, self._tether = os.pipe()
        root = str(Path(yoked.__file__).parent.parent)
        stands = [sys.executable, "-E", "-s", "-S", "-c", BECOME, root, "stand", str(mine)]
        unit = f"{_PREFIX}{secrets.token_hex(6)}"
        # What comes while its Python starts waits for it: it has the mask of this thread alone.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _numbers())
        try:
            starter = subprocess.Popen(
                detached_argv([*_LEAVE, *stands], unit, scope=scope_helps()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[mine],
                cwd="/",
                env={**os.environ, DOCTOR_VARIABLE: "1"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(mine)
        self._reader = threading.Thread(target=self._read, args=[starter.stdout], daemon=True)
        self._reader.start()
        # Its own parent ends at once.
        starter.wait(_START_S)

    def _read(self, source: Any) -> None:
        with source:
            # Where it does not come up, nothing is told of its end.
            if source.readline():
                self._began_s = time.monotonic()
            for line in source:
                with contextlib.suppress(ValueError):
                    self._signals.append(json.loads(line))
        self._ended_s = time.monotonic()

    def _release(self) -> None:
        """Have the program end."""
        if self._tether is not None:
            os.close(self._tether)
            self._tether = None
        if self._reader is not None:
            self._reader.join(_END_S)


LEFT = LeftAlone()
atexit.register(LEFT.clear)


def _sweep(root: Path) -> None:
    """Remove the folders of agents that were killed."""
    for folder in root.glob(f"{_PREFIX}*/"):
        if time.time() - folder.lstat().st_mtime > _OLD_S:
            shutil.rmtree(folder, ignore_errors=True)


def _fate(path: Path, content: bytes) -> str | None:
    """The fate of a file, in a word; None: it is as it was, or nobody can tell."""
    try:
        now = path.read_bytes()
    except FileNotFoundError:
        return "gone"
    except PermissionError:
        # Whoever scans what is opened forbids that.
        return "barred"
    except OSError:
        return None
    return None if now == content else "altered" if now else "empty"


def stand(tether: int) -> int:
    """Be there as a rank is: by its Python's name, without a parent, listening; tell each signal
    with its sender, until the tether ends. Whoever starts it has blocked them.
    """
    wanted = _numbers()
    with contextlib.suppress(OSError):
        # Nobody is let in: it is never asked for a connection, and other hosts do not see it.
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_end_with, args=(tether, listener), daemon=True).start()
        _say({})
        while True:
            sent = signal.sigwaitinfo(wanted)
            name = signal.Signals(sent.si_signo).name
            _say({"name": name, "sender": _sender(sent.si_pid)})
    return 1


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _numbers() -> set[signal.Signals]:
    return {signal.Signals[name] for name in _SIGNALS}


def _end_with(tether: int, listener: socket.socket) -> None:
    with listener:
        os.read(tether, 1)
        os._exit(0)


def _sender(pid: int) -> dict[str, Any]:
    """pid, 0: from outside of this container; commands: its own, and those that started it, as far
    as they are still there.
    """
    return {"pid": pid, "commands": list(_line_of(pid))}


def _line_of(pid: int) -> Iterator[str]:
    for _ in range(4):
        if pid <= 1:
            return
        status = text(Path(f"/proc/{pid}/status"))
        command = " ".join(text(Path(f"/proc/{pid}/cmdline")).split("\0")).strip()
        if command:
            yield command[:_LONGEST]
        found = status.partition("\nPPid:\t")[2].partition("\n")[0]
        pid = int(found) if found.isdecimal() else 0
