"""The machine's own programs (ip, tc, nft, ss) in the network namespace of a process."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
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

    @contextlib.contextmanager
    def _network(self) -> Iterator[list[int]]:
        handles = syscalls.open_namespaces(
            self.process.pid, ["net"], user_namespace=self.user_namespace
        )
        try:
            if not self.process.alive:
                raise ProcessLookupError(self.process.pid)
            yield handles
        finally:
            for handle in handles:
                os.close(handle)

    def tool(
        self, argv: Sequence[str], *, input: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the machine with the files of the machine, but this network.

        Raises LabError when the process is gone, the program is missing or, with check, fails.
        """
        try:
            with self._network() as handles:

                def enter() -> None:
                    for handle in handles:
                        syscalls.setns(handle)

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
            if not self.process.alive:
                raise LabError("that host is not up", fix="yoked lab status") from None
            raise LabError(f"{argv[0]} is not installed: {problem}", fix="yoked lab list") from None
        except ProcessLookupError:
            raise LabError("that host is not up", fix="yoked lab status") from None
        if check and done.returncode:
            problem_text = done.stderr.strip() or done.stdout.strip()
            raise LabError(f"`{shlex.join(argv)}` failed in the lab: {problem_text}")
        return done
