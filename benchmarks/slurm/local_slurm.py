"""A Slurm of two nodes, n1 and n2, on this machine, for as long as somebody wants it.

    python local_slurm.py FOLDER

brings it up, with everything that it writes in FOLDER, says `ready`, and takes it down when its
stdin ends. `LocalSlurm` starts it as the first process of a PID namespace: whatever becomes of
the one who wanted it, the kernel ends all daemons and jobs with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare")
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
_UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
_CONFIGURATION = """
ClusterName=yoked
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=5
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1_port} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2_port} CPUs=1 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP
"""


def what_is_missing() -> str | None:
    """Why there can be no local Slurm here; None if there can."""
    if os.geteuid() != 0:
        return "a local Slurm needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"a local Slurm needs {', '.join(missing)}: slurmctld slurmd slurm-client munge"
    if (
        subprocess.run([*_own_namespace(), "true"], check=False, capture_output=True).returncode
        != 0
    ):
        return "a local Slurm needs a PID namespace, which this machine does not give"
    return None


def _own_namespace() -> list[str]:
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


class LocalSlurm:
    """The cluster as a context manager; `run` is for sbatch, scontrol and the like."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._keeper: subprocess.Popen[str] | None = None

    def __enter__(self) -> LocalSlurm:
        self._keeper = subprocess.Popen(
            [*_own_namespace(), sys.executable, __file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "ready\n":
            self.__exit__()
            raise RuntimeError(f"Slurm did not come up:\n{self.logs()}")
        return self

    def __exit__(self, *problem: object) -> None:
        assert self._keeper is not None
        try:
            self._keeper.communicate(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.communicate()

    def environment(self) -> dict[str, str]:
        """What makes Slurm's programs speak to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(
        self, *argv: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs and wait for it."""
        return subprocess.run(
            argv,
            check=False,
            cwd=cwd,
            env={**os.environ, **(environment or {}), **self.environment()},
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
        )

    def submit(self, script: Path, *, environment: Mapping[str, str]) -> str:
        """Hand a script to sbatch, in its own folder; returns the job's number."""
        # The nodes are one machine, and neither n1 nor n2 leads anywhere.
        here = {**environment, "YOKED_MASTER_ADDR": "127.0.0.1"}
        sent = self.run("sbatch", "--parsable", script.name, cwd=script.parent, environment=here)
        if sent.returncode != 0:
            raise RuntimeError(f"sbatch refused {script}: {sent.stderr}")
        return sent.stdout.strip()

    def state(self, job: str) -> str:
        """The job's state, such as RUNNING or COMPLETED."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        return fields.get("JobState", "UNKNOWN")

    def wait(self, job: str, limit_s: float) -> str:
        """Wait until a job has ended; returns its state, or the one that it is left in."""
        deadline_s = time.monotonic() + limit_s
        while (state := self.state(job)) in _UNFINISHED and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return state

    def logs(self) -> str:
        """The last lines of each daemon's log."""
        texts = [
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(texts)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _write_configuration(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    controller_port, n1_port, n2_port = _free_ports(3)
    text = _CONFIGURATION.format(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        controller_port=controller_port,
        n1_port=n1_port,
        n2_port=n2_port,
    )
    (folder / "slurm.conf").write_text(text)


def _daemons(folder: Path) -> list[list[str]]:
    munged = ["munged", "--foreground", "--force"]
    munged += [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "seed")]
    return [
        [*munged, f"--socket={folder}/munge.socket", f"--log-file={folder}/munged.log"],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "n1"],
        ["slurmd", "-D", "-N", "n2"],
    ]


def _until_ready(daemons: list[subprocess.Popen[bytes]]) -> bool:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        asked = subprocess.run(
            ["sinfo", "-h", "-o", "%D %t"], check=False, capture_output=True, text=True
        )
        if asked.stdout.strip() == "2 idle":
            return True
        if any(daemon.poll() is not None for daemon in daemons):
            return False
        time.sleep(0.1)
    return False


def keep(folder: Path, wanted: IO[str]) -> int:
    """Bring the cluster up, wait for the end of `wanted`, take it down."""
    _write_configuration(folder)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    daemons: list[subprocess.Popen[bytes]] = []
    with (folder / "output.log").open("wb") as output:
        for argv in _daemons(folder):
            daemons.append(subprocess.Popen(argv, stdout=output, stderr=output))
            while argv[0] == "munged" and not (folder / "munge.socket").exists():
                if daemons[0].poll() is not None:
                    return 1
                time.sleep(0.02)
    if not _until_ready(daemons):
        return 1
    print("ready", flush=True)
    wanted.read()
    # Nothing is worth saving; the kernel ends the jobs with this namespace's first process.
    for daemon in daemons:
        daemon.send_signal(signal.SIGTERM)
    return 0


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), sys.stdin))
