"""What passes two lab hosts' interfaces while a program trains, and the step it is at.

The hosts' kernel counters and files are read from outside, so that the hosts run what they would
run anywhere.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yoked.lab.host import LabHost

EVERY_S = 0.2
INTERFACE = "eth0"
# Ethernet 14, IPv4 20, TCP with timestamps 32: what each further segment of a frame that the
# kernel hands over as one ("segmentation offload") has in front of it.
HEADERS_BYTES = 14 + 20 + 32


@dataclass(frozen=True)
class Sent:
    """Counters of one host since it came up. frames: as the interface counts them, up to 64 kB
    each; segments: TCP packets as they are on the wire.
    """

    counted_bytes: int
    frames: int
    segments: int

    @property
    def wire_bytes(self) -> int:
        """All that is sent, with the headers of every segment."""
        return self.counted_bytes + max(0, self.segments - self.frames) * HEADERS_BYTES


def read_sent(host: LabHost) -> Sent:
    """A host's counters now."""
    folder = Path(f"/proc/{host.pid}/net")
    fields: list[str] = []
    for line in (folder / "dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == INTERFACE:
            fields = rest.split()
    names, values = [
        line.split() for line in (folder / "snmp").read_text().splitlines() if line[:4] == "Tcp:"
    ]
    return Sent(int(fields[8]), int(fields[9]), int(values[names.index("OutSegs")]))


class LineCount:
    """Whole lines of a growing file that begin with a prefix; 0 while it is not there."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        self.path, self.prefix = path, prefix
        self._lines, self._read, self._rest = 0, 0, b""

    def __call__(self) -> int:
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > self._read:
                self._read_on()
        return self._lines

    def _read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        self._lines += sum(line.startswith(self.prefix) for line in whole)


@dataclass
class Watch:
    """Samples, one whenever a step has ended: counters and finished steps by host.

    In between only a file's size is asked for: who measures shares the hosts' cores.
    """

    hosts: Mapping[str, LabHost]
    steps: Mapping[str, Callable[[], int]]
    samples: list[tuple[dict[str, Sent], dict[str, int]]] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        before: dict[str, int] = {}
        while not self._end.is_set():
            began_s = time.monotonic()
            # The steps first: what is sent while we look belongs to a later one.
            done = {name: count() for name, count in self.steps.items()}
            if done != before:
                sent = {name: read_sent(host) for name, host in self.hosts.items()}
                self.samples.append((sent, done))
                before = done
            self._end.wait(max(0.0, began_s + EVERY_S - time.monotonic()))

    @property
    def steps_done(self) -> list[dict[str, int]]:
        """Finished steps by host, sample by sample."""
        return [done for _, done in self.samples]

    def bytes_a_step(self, follow: str, first: int, last: int) -> dict[str, dict[str, float]]:
        """What each host sent from the end of step `first` to that of step `last` of `follow`,
        for each step of them, in bytes; empty where they were not both seen.
        """
        ends = {}
        for number in (first, last):
            found = (sent for sent, done in self.samples if done[follow] >= number)
            if (sent := next(found, None)) is None or first >= last:
                return {}
            ends[number] = sent
        return {
            name: {
                "counted": (ends[last][name].counted_bytes - ends[first][name].counted_bytes)
                / (last - first),
                "wire": (ends[last][name].wire_bytes - ends[first][name].wire_bytes)
                / (last - first),
            }
            for name in self.hosts
        }
