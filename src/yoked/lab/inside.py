"""The machine's own programs (ip, tc, nft, ss) in the network namespace of a process."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab import syscalls

# Where the tools are, also for people whose PATH lacks these.
TOOL_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
TOOL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Inside:
    """The namespaces of a process of the lab."""

    process: ProcessId
    user_namespace: bool = False

    def tool(
        self, argv: Sequence[str], *, input: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the machine with the files of the machine, but this network.

        Raises LabError when the process is gone, the program is missing or, with check, fails.
        """
        handles: list[int] = []

        def enter() -> None:
            for handle in handles:
                syscalls.setns(handle)

        try:
            handles += syscalls.open_namespaces(
                self.process.pid, ["net"], user_namespace=self.user_namespace
            )
            if not self.process.alive:
                raise ProcessLookupError(self.process.pid)
            done = subprocess.run(
                list(argv),
                input=input,
                capture_output=True,
                text=True,
                check=False,
                timeout=TOOL_TIMEOUT_S,
                env={**os.environ, "PATH": TOOL_PATH, "LC_ALL": "C"},
                preexec_fn=enter,
                pass_fds=handles,
            )
        except FileNotFoundError as problem:
            if self.process.alive:
                raise LabError(
                    f"{argv[0]} is not installed: {problem}", fix="yoked lab list"
                ) from None
            raise LabError("that host is not up", fix="yoked lab status") from None
        except ProcessLookupError:
            raise LabError("that host is not up", fix="yoked lab status") from None
        finally:
            for handle in handles:
                os.close(handle)
        if check and done.returncode:
            problem_text = done.stderr.strip() or done.stdout.strip()
            raise LabError(f"`{shlex.join(argv)}` failed in the lab: {problem_text}")
        return done
