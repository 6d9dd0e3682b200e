"""Start the ranks of a run on this machine, under torchrun, and see them to their end.

The configuration travels as a JSON file in a folder of this launch, where each rank also
leaves its error, and rank 0 the result:

    runs/<run>/launch-<id>/config.json, error.<rank>.json, result.json
    runs/<run>/logs/<host>.<rank>.log

torchrun runs in a session of its own, so Ctrl-C in the terminal reaches this process alone,
which passes it on once: the first asks the ranks to save and stop, the second terminates
them, the third kills. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from yoked.console import TERMINAL_VARIABLE
from yoked.errors import YokedError
from yoked.launch.failure import first_failure

# The ranks read these; see yoked.train.__main__.
LAUNCH_DIR_VARIABLE = "YOKED_LAUNCH_DIR"
LAUNCH_ID_VARIABLE = "YOKED_LAUNCH_ID"
LAUNCHER_NAME = "launcher.json"


@dataclass(frozen=True)
class LocalLaunch:
    """What to start. config: the run's configuration as plain data; module: what a rank runs."""

    run_dir: Path
    ranks: int
    config: Mapping[str, Any]
    threads: int | None = None
    module: str = "yoked.train"
    python: str = sys.executable


def torchrun_argv(launch: LocalLaunch, config_file: Path) -> list[str]:
    """The command that starts the ranks, as one could type it."""
    return [
        launch.python,
        *("-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(launch.ranks)),
        # A free port of the loopback device: two runs at once do not meet, and a hostname
        # that resolves to somewhere else does no harm.
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1"),
        *("-m", launch.module),
        *("--config-file", str(config_file)),
    ]


def rank_environment(
    launch: LocalLaunch, base: Mapping[str, str], launch_id: str, folder: Path
) -> dict[str, str]:
    """The environment of torchrun, which its ranks inherit."""
    env = dict(base)
    env[LAUNCH_ID_VARIABLE] = launch_id
    env[LAUNCH_DIR_VARIABLE] = str(folder)
    if launch.threads is not None:
        env["OMP_NUM_THREADS"] = str(launch.threads)
    # torchrun would set 1 and warn of it; the ranks choose their threads themselves.
    env.setdefault("OMP_NUM_THREADS", "1")
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback is not None:
        # Gloo picks the hostname's interface; ranks of one machine need no other than this.
        env["GLOO_SOCKET_IFNAME"] = loopback
    env["PYTHONUNBUFFERED"] = "1"
    if sys.stderr.isatty():
        env[TERMINAL_VARIABLE] = "1"
        env["COLUMNS"] = str(shutil.get_terminal_size().columns)
    return env


def run_ranks(launch: LocalLaunch) -> dict[str, Any]:
    """Run to the end and return rank 0's result. Call it from the main thread.

    Raises the YokedError of the rank that failed first, RankCrash if that was a bug, and
    KeyboardInterrupt if the ranks were stopped before they could leave a result.
    """
    launch_id = uuid.uuid4().hex[:12]
    folder = (launch.run_dir / f"launch-{launch_id}").absolute()
    is_new = not launch.run_dir.exists()
    _sweep(launch.run_dir)
    folder.mkdir(parents=True)
    launcher = psutil.Process()
    whose = {"pid": launcher.pid, "create_time": launcher.create_time()}
    (folder / LAUNCHER_NAME).write_text(json.dumps(whose), encoding="utf-8")
    try:
        return _run(launch, launch_id, folder)
    except YokedError:
        # A rank has said all there is to say, before there was a run: leave no trace of one.
        if is_new and any(folder.glob("error.*")) and not (launch.run_dir / "run.json").exists():
            shutil.rmtree(launch.run_dir)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(run_dir: Path) -> None:
    """Remove the folders of launches whose launcher was killed."""
    for folder in run_dir.glob("launch-*"):
        try:
            whose = json.loads((folder / LAUNCHER_NAME).read_text(encoding="utf-8"))
            # A process id alone may have gone to another process since.
            alive = psutil.Process(whose["pid"]).create_time() == whose["create_time"]
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
            alive = False
        if not alive:
            shutil.rmtree(folder, ignore_errors=True)


def _run(launch: LocalLaunch, launch_id: str, folder: Path) -> dict[str, Any]:
    config_file = folder / "config.json"
    config_file.write_text(json.dumps(dict(launch.config)), encoding="utf-8")
    log = launch.run_dir / "logs" / f"{socket.gethostname()}.0.log"
    log.parent.mkdir(exist_ok=True)
    # The tether makes the kernel end torchrun with us; each rank ties itself to torchrun.
    tether = [launch.python, "-m", "yoked.tether", str(os.getpid())]
    with log.open("ab") as log_file:
        torchrun = subprocess.Popen(
            [*tether, *torchrun_argv(launch, config_file)],
            env=rank_environment(launch, os.environ, launch_id, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        relay = _Relay(torchrun, log_file)
        stopper = _Stopper(torchrun, launch_id)
        try:
            with stopper.listening():
                status = torchrun.wait()
        finally:
            stopper.kill()
            torchrun.wait()
            held_back = relay.finish()
    result = folder / "result.json"
    if status == 0 and result.is_file():
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found
    if stopper.interrupts:
        raise KeyboardInterrupt
    raise first_failure(folder, launch.run_dir / "logs", status, held_back)


class _Relay:
    """Passes on what the ranks print, and keeps torchrun's own report of a failure back.

    Rank 0 writes to the terminal through here, the others to their own files. torchrun
    says of a failed rank only that it failed; what it failed of is in the rank's error file.
    """

    def __init__(self, torchrun: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._log = log
        self._held = bytearray()
        assert torchrun.stdout is not None
        self._source: IO[bytes] = torchrun.stdout
        self._thread = threading.Thread(target=self._pump, name="relay", daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Wait for the end of the output; returns what was held back."""
        # A grandchild that holds the pipe open must not hold us.
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._source.close()
        return self._held.decode(errors="replace")

    def _pump(self) -> None:
        descriptor = self._source.fileno()
        at_line_start = True
        while chunk := os.read(descriptor, 65_536):
            self._log.write(chunk)
            self._log.flush()
            if not self._held:
                shown, held = _split_at_report(chunk, at_line_start)
                self._held += held
                if shown:
                    _show(shown)
                    at_line_start = shown.endswith((b"\n", b"\r"))
            else:
                self._held += chunk


def _split_at_report(chunk: bytes, at_line_start: bool) -> tuple[bytes, bytes]:
    """(what to show, from where torchrun's report of a failure begins)."""
    offset = 0
    for line in chunk.splitlines(keepends=True):
        begins = (offset > 0 or at_line_start) and (
            line.startswith(b"Traceback (most recent call last)")
            or b"torch/distributed/elastic/" in line
        )
        if begins:
            return chunk[:offset], chunk[offset:]
        offset += len(line)
    return chunk, b""


def _show(data: bytes) -> None:
    try:
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
    except (BrokenPipeError, ValueError, AttributeError):
        # Nobody reads any more, or stderr was replaced by one without bytes: the log has it.
        return


class _Stopper:
    """Turns the signals that this process gets into the ranks' orderly end."""

    def __init__(self, torchrun: subprocess.Popen[bytes], launch_id: str) -> None:
        self.interrupts = 0
        self._torchrun = torchrun
        self._launch_id = launch_id
        self._seen: dict[int, psutil.Process] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM here for the time of the block."""
        before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        number: int
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.interrupts += 1
        ranks = self._ranks()
        if self.interrupts == 1 and ranks:
            # To the ranks alone: torchrun would answer by terminating them.
            for rank in ranks:
                _send(rank, signal.SIGINT)
        elif self.interrupts <= 2:
            for process in [*ranks, *self._agent()]:
                _send(process, signal.SIGTERM)
        else:
            self.kill()

    def kill(self) -> None:
        """SIGKILL whatever of this launch is still there, and nothing else."""
        for process in [*self._agent(), *self._ranks(), *self._seen.values()]:
            _send(process, signal.SIGKILL)

    def _agent(self) -> list[psutil.Process]:
        if self._torchrun.poll() is not None:
            return []
        try:
            return [psutil.Process(self._torchrun.pid)]
        except psutil.Error:
            return []

    def _ranks(self) -> list[psutil.Process]:
        """Children of torchrun that carry this launch's id; psutil compares start times."""
        ranks = []
        for agent in self._agent():
            for child in _children(agent):
                if self._is_ours(child):
                    ranks.append(child)
                    self._seen[child.pid] = child
        return ranks

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(LAUNCH_ID_VARIABLE) == self._launch_id)
        except (psutil.Error, OSError):
            return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        # It ended by itself.
        return
