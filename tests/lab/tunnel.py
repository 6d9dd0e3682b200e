"""A tunnel of one host to another, in user space: packets of a tun device as datagrams of UDP.

It stands for Tailscale and the like, without their encryption: addresses, MTU and the way packets
take are theirs. Arguments: the PID of a host of a lab, the device's name, the own and the peer's
address, a port. It prints a line once the device is there.

Source: the kernel's Documentation/networking/tuntap.rst.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
from pathlib import Path

from yoked.lab import syscalls

_TUNSETIFF = 0x400454CA
_TUN, _NO_PACKET_INFO = 0x0001, 0x1000
_LARGEST_BYTES = 65_536


def main(pid: str, device: str, own: str, peer: str, port: str) -> None:
    """Carry packets both ways until the process is ended."""
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        syscalls.setns(namespace.fileno())
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", device.encode(), _TUN | _NO_PACKET_INFO))
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.bind((own, int(port)))
    wire.connect((peer, int(port)))
    print("up", flush=True)
    while True:
        ready, _, _ = select.select([tun, wire], [], [])
        try:
            if tun in ready:
                wire.send(os.read(tun, _LARGEST_BYTES))
            if wire in ready:
                os.write(tun, wire.recv(_LARGEST_BYTES))
        except OSError:
            # The peer's end is not there yet, or the device is not set up.
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
