"""Start a supervisor that outlives the ssh connection, the terminal and this agent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yoked
from yoked.agent.ask import lingers
from yoked.agent.jobfolder import JobFolder

# The code of this very agent, of which the words behind it name a part.
BECOME = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from yoked.agent.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


def supervisor_argv(folder: Path) -> list[str]:
    """This very agent's code, by the interpreter that runs it, as a supervisor."""
    root = str(Path(yoked.__file__).parent.parent)
    return [sys.executable, "-E", "-s", "-S", "-c", BECOME, root, "supervise", str(folder)]


def detached_argv(argv: Sequence[str], unit: str, *, scope: bool) -> list[str]:
    """The command that keeps argv out of the login session's reach.

    scope: in a unit of the user's own systemd. logind ends what is left of a session where
    KillUserProcesses=yes, whatever setsid says. Source: logind.conf(5), systemd-run(1).
    """
    if not scope:
        return list(argv)
    options = ["--user", "--scope", "--quiet", "--collect", f"--unit={unit}"]
    return ["systemd-run", *options, "--", *argv]


def scope_helps() -> bool:
    """Whether the user's systemd is there and stays when the last session ends (lingers)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (
        shutil.which("systemd-run") is not None
        and Path(runtime, "systemd/private").exists()
        and lingers()
    )


def start_supervisor(
    job: JobFolder, *, tether_fd: int | None = None, pass_fds: Sequence[int] = ()
) -> None:
    """Start a supervisor; returns when it is on its own. tether_fd: its standard input."""
    unit = f"yoked-{job.launch_id}-{os.getpid()}"
    argv = detached_argv(supervisor_argv(job.path), unit, scope=scope_helps())
    with (job.logs / "supervisor.err").open("ab") as log:
        starter = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if tether_fd is None else tether_fd,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=pass_fds,
            cwd="/",
        )
    starter.wait()
