"""Print each socket that listens in this network namespace, once, until standard input ends.

Quick enough for those that live for a second. Source: proc(5) for /proc/net/tcp.
"""

from __future__ import annotations

import ipaddress
import select
import sys
from pathlib import Path

LISTEN = "0A"


def listening() -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == LISTEN:
                address, _, port = local.partition(":")
                found.add(f"{readable(address)} {int(port, 16)}")
    return found


def readable(hexadecimal: str) -> str:
    # Words of 32 bits, each in the order of this processor.
    words = [hexadecimal[i : i + 8] for i in range(0, len(hexadecimal), 8)]
    raw = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    return str(ipaddress.ip_address(raw))


def main() -> None:
    told: set[str] = set()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for each in sorted(listening() - told):
            sys.stdout.write(each + "\n")
            sys.stdout.flush()
            told.add(each)


if __name__ == "__main__":
    main()
