"""How an agent comes to run on a host: by the system's ssh, or as a child of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from yoked.agent.protocol import GREETING
from yoked.core.faults import fault
from yoked.core.packages import install_line, this_distribution
from yoked.errors import HostError, NoPythonError, YokedError
from yoked.remote.client import AgentClient, close_streams
from yoked.remote.ssh import (
    CONNECT_TIMEOUT_S,
    NoAgentError,
    config_flags,
    explain_end,
    python_word,
    ssh_argv,
)
from yoked.remote.zipapp import agent_file, boot_script

# What a Python says that was started there, and gets something else than it was sent.
NO_INPUT = "Python started there, and what was sent to it did not come"
# Single quotes mean the same to sh, csh and fish; nothing inside needs any of their characters.
BOOT = (
    # A start file may have left the input such that nobody waits for it; Python 2 cannot tell.
    'import os,sys;getattr(os,"set_blocking",max)(0,True);'
    'b=getattr(sys.stdin,"buffer",sys.stdin);TOKEN=b.readline().decode("ascii","replace").strip();'
    f'n=b.readline().strip();n.isdigit()or sys.exit("{NO_INPUT}: "+'
    '("other bytes came"if n else"its input ended at once"));exec(b.read(int(n)))'
)
# Neither the person's PYTHONPATH nor site-packages: the agent brings all it needs. Python 2 knows
# these too, and can say that it is too old.
FLAGS = ("-E", "-s", "-S")
GREETING_DEADLINE_S = 20.0
# Once ssh is through, the shell and Python may take as long again.
_DEADLINE_PATIENCES = 2
_REFUSED = "yoked-refused"
_LONGEST_LINE_BYTES = 65_536
_LONGEST_GREETING = 1000


def connect_here(host: str = ".", python: str = sys.executable) -> AgentClient:
    """An agent as a child of this process. host: its name in messages."""
    return start_agent(host, [python, *FLAGS, "-c", BOOT])


def connect_ssh(
    host: str,
    config: str | None = None,
    python: str = "python3",
    patience_s: int = CONNECT_TIMEOUT_S,
    *,
    shared: bool = True,
) -> AgentClient:
    """An agent on a host by the system's ssh.

    host: what ssh understands; config: a file instead of ~/.ssh/config; python: the interpreter
    there that runs the agent, which may begin with ~/; patience_s: how long ssh waits for an
    answer, and the agent may take twice that in all; shared: see ssh_argv.
    """
    command = f"exec {python_word(python)} {' '.join(FLAGS)} -c '{BOOT}'"
    ssh = ssh_argv(host, config, patience_s=patience_s, shared=shared)
    deadline_s = _DEADLINE_PATIENCES * patience_s
    return start_agent(host, [*ssh, command], ssh=True, config=config, deadline_s=deadline_s)


def start_agent(
    host: str,
    argv: Sequence[str],
    *,
    ssh: bool = False,
    config: str | None = None,
    deadline_s: float = GREETING_DEADLINE_S,
) -> AgentClient:
    """Start the command that leads to a Python, make it the agent, and return its client.

    Raises HostError with the way's own reason when no agent greets in deadline_s.
    """
    token = os.urandom(8).hex()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is the controller's own matter, and ssh must not ask at its terminal.
            start_new_session=True,
        )
    except OSError as problem:
        raise HostError(
            f"{host}: {argv[0]} cannot be started: {problem.strerror}",
            fix=install_line("ssh", this_distribution()) if ssh else (),
        ) from problem
    connection = _Connection(host, process, ssh=ssh, config=config, deadline_s=deadline_s)
    late = threading.Timer(deadline_s, connection.give_up)
    late.start()
    # Beside the reading: a login shell that prints more than a pipe holds reads nothing until then.
    sending = threading.Thread(target=_send_agent, args=(process, token), name="send", daemon=True)
    sending.start()
    try:
        noise = _await_greeting(host, process, token, connection.explain)
    except BaseException:
        kill_way(process)
        process.wait()
        sending.join()
        close_streams(process)
        raise
    finally:
        late.cancel()
    sending.join()
    return AgentClient(host, process, connection.explain, noise=noise)


class _Connection:
    """The process that leads to an agent, and why it ended."""

    def __init__(
        self,
        host: str,
        process: subprocess.Popen[bytes],
        *,
        ssh: bool,
        config: str | None,
        deadline_s: float,
    ) -> None:
        self._host, self._process = host, process
        self._ssh, self._config, self._deadline_s = ssh, config, deadline_s
        self._said = _Stderr(process)
        self._overdue = False

    def give_up(self) -> None:
        """End it, because no agent came in time."""
        self._overdue = True
        kill_way(self._process)

    def explain(self, noise: str = "") -> YokedError:
        """Why there is no agent, or no longer. noise: the shell's last words beside stderr."""
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return fault("agent-ended", host=self._host)
        if self._overdue:
            ssh = f"ssh{config_flags(self._config)} {self._host}"
            return NoAgentError(
                f"{self._host}: no agent answered in {self._deadline_s:g} s",
                fix=(
                    f"is it on, awake and in this network? `ping {self._host}`",
                    f"{ssh} true    as slow? a start-up file there, ~/.bashrc, may wait",
                    "yoked doctor    tells whether ssh or the shell is what waits",
                ),
                kind="timeout",
            )
        said = self._said.text()
        return explain_end(
            self._host,
            status,
            said if said.strip() else noise,
            ssh=self._ssh,
            config=self._config,
        )


def kill_way(process: subprocess.Popen[bytes]) -> None:
    """Kill a way to a host that was started in a session of its own, with what helps it.

    ssh's ProxyCommand, and the connection that it leaves behind to be shared, hold its pipes.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _send_agent(process: subprocess.Popen[bytes], token: str) -> None:
    script, agent = boot_script(), agent_file()
    assert process.stdin is not None
    try:
        process.stdin.write(b"%s\n%d\n%s" % (token.encode(), len(script), script))
        process.stdin.write(b"%s %d\n" % (agent.digest.encode(), len(agent.content)))
        process.stdin.write(agent.content)
        process.stdin.flush()
    except OSError:
        # The way ended; the greeting that does not come tells why.
        return


def _await_greeting(
    host: str, process: subprocess.Popen[bytes], token: str, explain: Callable[[str], YokedError]
) -> str:
    """Pass over what the login shell's start-up files print, up to the agent's own words; returns
    the last line of that.

    The last line of theirs may have no end, as that of `printf`: then the agent's words follow it.
    """
    assert process.stdout is not None
    noise = begun = ""
    # A line that does not end must not fill this machine's memory.
    while line := process.stdout.readline(_LONGEST_LINE_BYTES):
        text = line.decode(errors="replace")
        said = begun + text
        if not text.endswith("\n"):
            noise, begun = text.strip() or noise, said[-_LONGEST_GREETING:]
            continue
        before, greeted, _ = said.partition(f"{GREETING} {token}")
        if greeted:
            return before.strip() or noise
        _, refused, why = said.partition(f"{_REFUSED} {token}")
        if refused:
            raise NoPythonError(
                f"{host}: {why.strip() or 'its Python does not run the agent'}",
                fix=f'in yoked.toml, for {host}: python = "~/venv/bin/python", 3.9 or newer',
            )
        noise, begun = text.strip() or noise, ""
    raise explain(noise)


class _Stderr:
    """Keeps the end of what the way says, as it comes: a full pipe would stop it."""

    KEPT_BYTES = 20_000

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._source = process.stderr
        self._kept = b""
        self._thread = threading.Thread(target=self._pump, name="stderr", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """What came so far. A shared ssh connection holds the pipe open: its end never comes."""
        self._thread.join(timeout=0.3)
        return self._kept.decode(errors="replace")

    def _pump(self) -> None:
        try:
            while chunk := os.read(self._source.fileno(), 65_536):
                self._kept = (self._kept + chunk)[-self.KEPT_BYTES :]
        except (OSError, ValueError):
            # It was closed with its client.
            return
