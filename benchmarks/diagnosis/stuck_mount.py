"""A file on a mount that does not answer: it can be opened, and reading it waits in state D.

usage: stuck_mount.py PID TARGET [SOURCES]    mounts over the file TARGET as process PID sees it

Serves until it is killed, after which the kernel lets the readers go. Standard library and
yoked.lab.syscalls alone. Source: fuse(4), linux/fuse.h, protocol 7.31.
"""

from __future__ import annotations

import os
import stat
import struct
import sys

from yoked.lab import syscalls

_IN, _OUT = struct.Struct("=IIQQIIIHH"), struct.Struct("=IiQ")
_INIT, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH = 26, 3, 14, 15, 17, 18, 25
# Without an answer: FORGET, INTERRUPT and BATCH_FORGET have none, and a READ does not get its own.
_SILENT = (2, 36, 42, _READ)
_MOST_WRITE_BYTES = 1 << 16
_SIZE_BYTES = 1 << 20
_VALID_S = 3600
# With it the reader waits for the page, in state D, and not for the answer, in state S.
_ASYNC_READ = 1
_ENOSYS = 38


def main(pid: int, target: str) -> None:
    syscalls.die_with_parent(9)
    device = os.open("/dev/fuse", os.O_RDWR)
    syscalls.enter_namespaces(syscalls.open_namespaces(pid, ["mnt"], user_namespace=False))
    mode = stat.S_IFREG | 0o444
    options = f"fd={device},rootmode={mode:o},user_id=0,group_id=0,allow_other"
    syscalls.mount("stuck", target, "fuse", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    print("ready", flush=True)
    while True:
        request = os.read(device, _MOST_WRITE_BYTES + 4096)
        _, opcode, number, *_ = _IN.unpack_from(request)
        if opcode in _SILENT:
            continue
        body = _answer(opcode, request, mode)
        error = 0 if body is not None else -_ENOSYS
        body = body or b""
        os.write(device, _OUT.pack(_OUT.size + len(body), error, number) + body)


def _answer(opcode: int, request: bytes, mode: int) -> bytes | None:
    """What the kernel is told; None: that there is no such call."""
    if opcode == _INIT:
        _, _, ahead_bytes, _ = struct.unpack_from("=IIII", request, _IN.size)
        head = struct.pack("=IIIIHHIIHH", 7, 31, ahead_bytes, _ASYNC_READ, 12, 9,
                           _MOST_WRITE_BYTES, 1, 0, 0)  # fmt: skip
        return head.ljust(64, b"\0")
    if opcode == _GETATTR:
        attributes = struct.pack("=6Q10I", 1, _SIZE_BYTES, _SIZE_BYTES // 512, 0, 0, 0,
                                 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)  # fmt: skip
        return struct.pack("=QII", _VALID_S, 0, 0) + attributes
    if opcode == _OPEN:
        return struct.pack("=QIi", 1, 0, 0)
    if opcode == _STATFS:
        return bytes(80)
    return b"" if opcode in (_RELEASE, _FLUSH) else None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
