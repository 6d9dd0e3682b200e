"""How each fault is brought about, at a host, while a run goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from classes import FaultClass
from stage import STUCK, TRIGGER, Run, Stage

from yoked.lab import faults, tools

# What a rank may still allocate before its host has no memory left.
_SPARE_BYTES = 64 << 20
_SLOW_RATE, _LOST_PERCENT, _CPU_FRACTION = "100mbit", "5", "0.5"
SSH_PORT = 22
# A run, the rank with the fault, and dice for what is left to chance; returns what was done.
Act = Callable[[Stage, Run, int, Random], str]


def before(own: Stage, one: FaultClass, rank: int) -> None:
    """What a fault needs that must not be seen to begin with it."""
    if one.act == "read":
        serve = str(Path(__file__).with_name("stuck_mount.py"))
        own.help([sys.executable, serve, str(own.host(own.hosts[rank]).pid), STUCK])


def inject(own: Stage, one: FaultClass, run: Run, rank: int, dice: Random) -> str:
    """Bring it about now; returns what was done, in words."""
    return _ACTS[one.name](own, run, rank, dice)


def _kill_rank(own: Stage, run: Run, rank: int, dice: Random) -> str:
    run.ranks[rank].signal(signal.SIGKILL)
    return "SIGKILL"


def _kill_host(own: Stage, run: Run, rank: int, dice: Random) -> str:
    own.lab.stop_host(own.hosts[rank])
    return "power off"


def _stop_rank(own: Stage, run: Run, rank: int, dice: Random) -> str:
    run.ranks[rank].signal(signal.SIGSTOP)
    return "SIGSTOP"


def _freeze(own: Stage, run: Run, rank: int, dice: Random) -> str:
    group = own.host(own.hosts[rank]).group
    assert group is not None
    group.freeze()
    return "all processes frozen"


def _lab_fault(own: Stage, *words: str) -> str:
    return faults.apply(own.lab, words[0], words[1:], seed=1).text


def _cut(own: Stage, run: Run, rank: int, dice: Random) -> str:
    return _lab_fault(own, "cut", own.hosts[rank])


def _one_way(own: Stage, run: Run, rank: int, dice: Random) -> str:
    return _lab_fault(own, "one-way", own.hosts[rank], own.hosts[1 - rank])


def _firewall(own: Stage, run: Run, rank: int, dice: Random) -> str:
    """Closed to all but ssh and the launchers, also for connections that are there."""
    control = run.read(own.hosts[0], "job.json")["control_port"]
    ports = f"{{ {SSH_PORT}, {control} }}"
    chain = "inet bench input"
    lines = [
        "add table inet bench",
        f"add chain {chain} {{ type filter hook input priority filter; policy accept; }}",
        f'add rule {chain} iifname "lo" accept',
        f"add rule {chain} tcp dport {ports} accept",
        f"add rule {chain} tcp sport {ports} accept",
        f"add rule {chain} meta l4proto tcp drop",
    ]
    tools.run_nft(own.host(own.hosts[rank]), lines)
    return f"{own.hosts[rank]} drops TCP but of ports {SSH_PORT} and {control}"


def _slow_link(own: Stage, run: Run, rank: int, dice: Random) -> str:
    return _lab_fault(own, "slow-link", own.hosts[rank], _SLOW_RATE)


def _lose(own: Stage, run: Run, rank: int, dice: Random) -> str:
    return _lab_fault(own, "lossy", own.hosts[rank], _LOST_PERCENT)


def _slow_cpu(own: Stage, run: Run, rank: int, dice: Random) -> str:
    """Half of its core: by a limit, or beside somebody's program."""
    if dice.random() < 0.5:
        return _lab_fault(own, "slow-cpu", own.hosts[rank], _CPU_FRACTION)
    return _lab_fault(own, "busy-cpu", own.hosts[rank])


def _fill_memory(own: Stage, run: Run, rank: int, dice: Random) -> str:
    group = own.host(own.hosts[rank]).group
    assert group is not None
    limit_bytes = _memory_in_use(group.folders) + _SPARE_BYTES
    group.set_memory(limit_bytes)
    return f"{limit_bytes >> 20} MiB of memory; {trigger(own, rank, 'leak')}"


def _memory_in_use(folders: tuple[Path, ...]) -> int:
    """Bytes of a host's control group, of either version."""
    for folder in folders:
        for name in ("memory.current", "memory.usage_in_bytes"):
            if (folder / name).exists():
                return int((folder / name).read_text())
    raise RuntimeError("no control group with memory")


def _fill_disk(own: Stage, run: Run, rank: int, dice: Random) -> str:
    return _lab_fault(own, "disk-full", own.hosts[rank])


def trigger(own: Stage, rank: int, act: str) -> str:
    """Have the program do an act at its next step; returns what was done."""
    # By another name first: the program must not read a file that is half written.
    root = f"/proc/{own.host(own.hosts[rank]).pid}/root"
    written = Path(f"{root}{TRIGGER}.new")
    written.write_text(act)
    written.rename(f"{root}{TRIGGER}")
    return f"the program: {act}"


def _by_program(act: str) -> Act:
    return lambda own, _run, rank, _dice: trigger(own, rank, act)


_ACTS: dict[str, Act] = {
    "rank-killed": _kill_rank,
    "host-killed": _kill_host,
    "rank-stopped": _stop_rank,
    "host-suspended": _freeze,
    "link-cut": _cut,
    "one-way": _one_way,
    "firewall": _firewall,
    "link-slow": _slow_link,
    "packets-lost": _lose,
    "cpu-slow": _slow_cpu,
    "out-of-memory": _fill_memory,
    "disk-full": _fill_disk,
    "exception": _by_program("raise"),
    "skipped-unequal": _by_program("skip"),
    "skipped-equal": _by_program("skip-equal"),
    "shapes": _by_program("shapes"),
    "data-ran-out": _by_program("out"),
    "disk-stands": _by_program("read"),
    "deadlock": _by_program("lock"),
}
