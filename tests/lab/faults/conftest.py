"""A lab of three hosts for the tests of a module, and what is done in it to see a fault."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from yoked.lab import faults
from yoked.lab.faults import ActiveFault
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab
from yoked.lab.topology_load import load

THREE_HOSTS = """
description = "three equal hosts"
[[network]]
name = "lan"
subnet = "192.168.77.0/24"
rate = "1gbit"
[[host]]
name = "alpha"
[[host]]
name = "beta"
[[host]]
name = "gamma"
"""
RENDEZVOUS, HIGH, OTHER = 29500, 40213, 8000
# How long to wait for what is not to come, and for what is.
SOON_S, PATIENT_S = 0.7, 15.0

# Lives in each host. It answers on TCP: takes "COUNT\n" and so many bytes, answers "COUNT\n". It
# calls others when told to by a line of JSON, and answers with one.
RESIDENT = """
import json, select, socket, sys, threading
def serve(connection):
    with connection, connection.makefile("rwb") as file:
        count = int(file.readline() or 0)
        file.write(b"%d\\n" % len(file.read(count)))
def accept(listeners):
    while True:
        for listener in select.select(listeners, [], [])[0]:
            threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
def call(address, port, count, patience_s):
    try:
        connection = socket.create_connection((address, port), patience_s)
    except OSError as problem:
        return "timeout" if problem.errno is None else f"errno {problem.errno}"
    with connection:
        try:
            connection.sendall(b"%d\\n" % count + bytes(count))
            return "passed" if connection.makefile("rb").readline() else "closed"
        except TimeoutError:
            return "stalled"
def name(of):
    return socket.gethostname() if of is None else of
def resolve(of):
    try:
        found = socket.getaddrinfo(name(of), 80, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [each[4][0] for each in found]
def datagrams(address, count):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(count):
        sender.sendto(b"x", (address, 5005))
def hear(most, patience_s):
    inbox.settimeout(patience_s)
    heard = 0
    try:
        while heard < most:
            heard += len(inbox.recv(64))
    except TimeoutError:
        pass
    return heard
inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inbox.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
inbox.bind(("", 5005))
listeners = [socket.create_server(("", int(port)), backlog=64) for port in sys.argv[1:]]
threading.Thread(target=accept, args=[listeners], daemon=True).start()
print("ready", flush=True)
acts = {"call": call, "resolve": resolve, "datagrams": datagrams, "hear": hear}
for line in sys.stdin:
    act, *words = json.loads(line)
    print(json.dumps(acts[act](*words)), flush=True)
"""


class Acts:
    """What a program in a host meets when it does the usual things."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._residents: dict[str, subprocess.Popen[str]] = {}
        # Past whatever finds the right Python, which may take longer than Python itself.
        first = lab.topology.hosts[0].name
        find = ["python3", "-c", "import sys; print(sys.executable)"]
        self._python = lab.host(first).run(find).stdout.strip()

    def resident(self, *names: str) -> None:
        """Have hosts answer at the ports above, unless they do."""
        starting = [name for name in names if not self._is_resident(name)]
        for name in starting:
            ports = [str(port) for port in (RENDEZVOUS, HIGH, OTHER)]
            self._residents[name] = self.lab.host(name).popen(
                [self._python, "-I", "-S", "-c", RESIDENT, *ports],
                stdin=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        for name in starting:
            output = self._residents[name].stdout
            assert output is not None
            assert output.readline() == "ready\n"

    def _is_resident(self, name: str) -> bool:
        if name in self._residents and self._residents[name].poll() is not None:
            self._end(self._residents.pop(name))
        return name in self._residents

    def end(self) -> None:
        for resident in self._residents.values():
            self._end(resident)

    def _end(self, resident: subprocess.Popen[str]) -> None:
        # By the end of its input: a killed one waits for the machine's first process to reap it.
        assert resident.stdin is not None
        with resident:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                resident.stdin.close()
                resident.wait(5)
            resident.kill()

    def ask(self, host: str, act: str, *words: object) -> Any:
        """Have a host's resident do something."""
        self.resident(host)
        resident = self._residents[host]
        assert resident.stdin is not None
        assert resident.stdout is not None
        resident.stdin.write(json.dumps([act, *words]) + "\n")
        resident.stdin.flush()
        return json.loads(resident.stdout.readline())

    def python(self, host: str, program: str, *arguments: object, **how: Any) -> str:
        """What a new program prints, which ends well."""
        words = [self._python, "-c", program, *map(str, arguments)]
        return self.lab.host(host).run(words, **how).stdout.strip()

    @contextlib.contextmanager
    def program(self, host: str, program: str) -> Iterator[subprocess.Popen[str]]:
        """A program in a host until the block ends, however it does."""
        with self.lab.host(host).popen([self._python, "-c", program]) as running:
            try:
                yield running
            finally:
                running.kill()

    def call(
        self,
        source: str,
        target: str,
        port: int = HIGH,
        *,
        count: int = 4,
        patience_s: float = PATIENT_S,
    ) -> str:
        """Connect and send: "passed", "timeout", "errno N" (of connect), or "stalled"."""
        if self.lab.host(target).alive:
            self.resident(target)
        answer: str = self.ask(source, "call", self.address(target), port, count, patience_s)
        return answer

    def address(self, host: str) -> str:
        return self.lab.host(host).spec.address

    def resolve(self, host: str, name: str | None = None) -> list[str]:
        """The addresses of a name, or of the host's own, in the resolver's order."""
        found: list[str] = self.ask(host, "resolve", name)
        return found

    def arrived(self, source: str, target: str, count: int) -> int:
        """How many of so many datagrams came."""
        self.resident(target)
        self.ask(source, "datagrams", self.address(target), count)
        heard: int = self.ask(target, "hear", count, SOON_S)
        return heard

    def fault(self, kind: str, *args: object, seed: int | None = None) -> ActiveFault:
        """Bring a fault about; where this machine cannot, the test is skipped."""
        if reason := faults.kind_named(kind).unsupported(self.lab):
            pytest.skip(f"{kind}: {reason}")
        return faults.apply(self.lab, kind, [str(arg) for arg in args], seed=seed)

    def heal(self, *which: str) -> list[ActiveFault]:
        return faults.heal(self.lab, which or None)

    def link(self, host: str) -> list[str]:
        """The flags of a host's cable, as the host sees them."""
        shown = self.lab.host(host).tool(["ip", "-j", "link", "show", "dev", "eth0"]).stdout
        flags: list[str] = json.loads(shown)[0]["flags"]
        return flags


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acts]:
    path: Path = tmp_path_factory.mktemp("topology") / "three.toml"
    path.write_text(THREE_HOSTS)
    with new_lab(load(str(path))) as lab:
        acts = Acts(lab)
        try:
            yield acts
        finally:
            acts.end()


@pytest.fixture
def acts(three: Acts) -> Iterator[Acts]:
    """Acts in a lab without faults; what a test left is healed."""
    yield three
    faults.heal(three.lab)
    assert faults.active(three.lab) == []
