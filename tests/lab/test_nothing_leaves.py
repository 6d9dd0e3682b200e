"""yoked speaks to the hosts of its fleet alone: counters on every host see no other packet, and
the name server is asked for nothing but the fleet's own names and addresses.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.lab.commands import SOURCES, YOKED

from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")

LIMIT_S = 240
NAME_SERVER, STRANGER = "203.0.113.53", "203.0.113.9"
# Whatever leaves for another address than the fleet's has a way out here, and is counted at it.
COUNTED = """
table inet outside {
    counter strangers { }
    chain out {
        type filter hook output priority 0; policy accept;
        ip daddr { 127.0.0.0/8, 192.168.77.0/24 } accept
        ip6 daddr { ::1, fe80::/10, ff02::/16 } accept
        ip daddr 203.0.113.53 accept
        counter name strangers reject
    }
}
"""
# Writes which names it is asked for, and knows none of them. Source: RFC 1035, 4.1.
KNOWS_NOTHING = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
print("ready", flush=True)
while True:
    asked, who = server.recvfrom(512)
    labels, at = [], 12
    while asked[at]:
        labels.append(asked[at + 1 : at + 1 + asked[at]].decode())
        at += 1 + asked[at]
    with open("asked", "a") as file:
        print(".".join(labels), file=file)
    server.sendto(asked[:2] + bytes([0x81, 0x83]) + asked[4:], who)
"""
FLEET = f"""
[[host]]
name = "."
interface = "eth0"

[[host]]
name = "beta"
interface = "eth0"
python = "{sys.executable}"
"""
SMALL = (
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512", "--total-batch-size=256"),
    *("--num-iterations=3", "--dtype=float32", "--run=quiet", "--json"),
)
OWN_NAMES = {
    "alpha", "beta", "1.77.168.192.in-addr.arpa", "2.77.168.192.in-addr.arpa",
    "1.0.0.127.in-addr.arpa",
}  # fmt: skip
GOES_OUT = """
import contextlib, socket, sys
for ask in (lambda: socket.getaddrinfo("example.org", 443),
            lambda: socket.create_connection((sys.argv[1], 443), 5)):
    with contextlib.suppress(OSError):
        ask()
"""
# Libraries by which a program speaks to the internet.
CLIENTS = {
    "aiohttp", "ftplib", "http", "httpx", "huggingface_hub", "requests", "smtplib", "telnetlib",
    "urllib3", "webbrowser", "xmlrpc",
}  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Hosts with a way to everywhere, and a name server that is not theirs."""
    with new_lab("two-hosts-1gbe") as lab, ExitStack() as servers:
        for host in map(lab.host, ("alpha", "beta")):
            host.tool(["ip", "route", "add", "default", "dev", "eth0"])
            host.tool(["nft", "-f", "-"], input=COUNTED)
            host.tool(["ip", "address", "add", f"{NAME_SERVER}/32", "dev", "lo"])
            host.run(["sh", "-c", f"echo nameserver {NAME_SERVER} > /etc/resolv.conf"])
            server = host.popen([sys.executable, "-c", KNOWS_NOTHING, NAME_SERVER])
            servers.enter_context(server)
            servers.callback(server.kill)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        yield lab


def strangers(host: LabHost) -> int:
    """How many packets have left a host for others than the fleet."""
    told = host.tool(["nft", "list", "counter", "inet", "outside", "strangers"]).stdout
    found = re.search(r"packets (\d+)", told)
    assert found, told
    return int(found[1])


def names_asked(host: LabHost) -> set[str]:
    """The names of which a host's name server was asked the address, or the other way round."""
    return set(host.run(["sh", "-c", "cat asked || true"]).stdout.split())


def yoked(host: LabHost, *words: str) -> str:
    """A command that is typed on a host of the lab."""
    done = host.run(
        [*YOKED, *words], env={"PYTHONPATH": str(SOURCES)}, check=False, timeout_s=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fleet_is_looked_at_trains_and_writes_without_a_packet_to_others(lab: Lab) -> None:
    alpha, beta = lab.host("alpha"), lab.host("beta")
    alpha.run(["tee", "yoked.toml"], input=FLEET)
    yoked(alpha, "trust", "yoked.toml")
    before = [strangers(alpha), strangers(beta)]

    yoked(alpha, "doctor", "--quick")
    result = json.loads(yoked(alpha, "train", *SMALL))
    yoked(alpha, "runs")
    yoked(alpha, "fetch", "quiet")
    yoked(alpha, "sample", "quiet", "--max-tokens=4")

    assert result["steps"] == 3
    assert len(result["hosts"]) == 2
    assert [strangers(alpha), strangers(beta)] == before
    assert names_asked(alpha) | names_asked(beta) <= OWN_NAMES


def test_a_packet_to_others_would_be_counted_and_a_name_be_seen(lab: Lab) -> None:
    alpha = lab.host("alpha")
    before = strangers(alpha)

    alpha.run([sys.executable, "-c", GOES_OUT, STRANGER])

    assert strangers(alpha) > before
    assert "example.org" in names_asked(alpha)


def test_only_what_a_person_asks_for_has_a_client_of_the_internet() -> None:
    found = {
        str(path.relative_to(SOURCES / "yoked"))
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
        if name.partition(".")[0] in CLIENTS or name == "urllib.request"
    }

    assert found == {
        # Sends to the `url` of [notify], where a person wrote and trusted one.
        "launch/bootstrap/notify.py",
        "launch/wheels.py",
        "train/data/download.py",
        "train/data/hub.py",
    }


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{each.name}" for each in node.names)
