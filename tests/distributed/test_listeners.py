"""Nothing of a run on this machine listens where a stranger could reach it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.distributed.conftest import UNDRAWN, YOKED, until

pytestmark = pytest.mark.distributed

WITHOUT_PROC = "from yoked.launch import here; here.has_proc = lambda: False; "
_LISTEN = "0A"  # TCP_LISTEN, Linux include/net/tcp_states.h


def listening(token: str) -> dict[str, str]:
    """Address and command by socket, of all processes with this token in their environment."""
    sockets = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get("TEST_TOKEN") != token:
                continue
            command = " ".join(process.cmdline())
            files = list(Path(f"/proc/{process.pid}/fd").iterdir())
        except (psutil.Error, OSError):
            continue
        for file in files:
            # One may have been closed since.
            with contextlib.suppress(OSError):
                sockets[str(file.readlink())] = command
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            name = f"socket:[{fields[9]}]"
            if fields[3] == _LISTEN and name in sockets:
                found[f"{address(fields[1])} {name}"] = sockets[name]
    return found


def address(field: str) -> str:
    """Of a line of /proc/net/tcp; the kernel prints words of four bytes in its own order."""
    digits = field.partition(":")[0]
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    return str(ipaddress.ip_address(packed))


def is_loopback(text: str) -> bool:
    found = ipaddress.ip_address(text)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def test_a_socket_on_all_addresses_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of this process, as it is: an environment is that of the start.
    monkeypatch.setattr(psutil.Process, "environ", lambda process: {"TEST_TOKEN": str(process.pid)})
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("127.0.0.1", 0)):
        found = {name.split()[0] for name in listening(str(os.getpid()))}

    assert {"0.0.0.0", "127.0.0.1"} <= found
    assert [each for each in sorted(found) if not is_loopback(each)] == ["0.0.0.0"]


@pytest.mark.parametrize("way", ["as a job", "without /proc"])
def test_every_socket_of_a_run_on_this_machine_listens_on_loopback(lab: Any, way: str) -> None:
    token = secrets.token_hex(8)
    program = (WITHOUT_PROC if way == "without /proc" else "") + UNDRAWN + YOKED
    flags = lab.flags(num_iterations=5000, save_every=-1, eval_every=-1)
    argv = ["-c", program, "train", f"--runs-dir={lab.runs}", "--run=open", "--ranks=2", *flags]
    started = lab.start(argv, {"TEST_TOKEN": token})
    until(lambda: lab.lines("open") >= 3, started)

    found = listening(token)

    assert found, "Gloo's own sockets were not seen"
    assert {name: who for name, who in found.items() if not is_loopback(name.split()[0])} == {}
