"""What the ranks of a test do; the act is the first argument."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["YOKED_ATTEMPT"])


def mark(text: str) -> None:
    """Leave a word where the test finds it: whole, or not at all."""
    unfinished = Path(f"{RANK}.{ATTEMPT}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(f"{RANK}.{ATTEMPT}.mark")


def all_reduce() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    numbers = torch.tensor([2.0**RANK])
    dist.all_reduce(numbers)
    mark(f"{os.environ['WORLD_SIZE']} {os.environ['LOCAL_RANK']} {numbers.item():.0f}")
    dist.destroy_process_group()


def collectives(trouble: int | None = None) -> None:
    """One all-reduce after another; rank `trouble` divides by zero while the others wait."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    mark(str(os.getpid()))
    if trouble == RANK:
        print("about to divide", file=sys.stderr)
        print(1 / (RANK - RANK))
    while True:
        dist.all_reduce(torch.zeros(1))
        time.sleep(0.05)


def collectives_beside_a_worker() -> None:
    """A child that would outlive its rank, as those that load data may."""
    subprocess.Popen(["sleep", "90"])
    collectives()


def first_attempt_fails() -> None:
    """Rank 1 ends after all have met; in the next attempt the others wait for rank 0."""
    import torch.distributed as dist

    mark(" ".join(sys.argv[1:]) + " " + os.environ["TORCHELASTIC_RESTART_COUNT"])
    if ATTEMPT > 0 and RANK == 0:
        time.sleep(2)
    dist.init_process_group("gloo")
    dist.barrier()
    if ATTEMPT == 0 and RANK == 1:
        sys.exit(7)
    dist.barrier()
    dist.destroy_process_group()


def a_stranger_at_first() -> None:
    """In the first attempt rank 2 has another secret than the others."""
    import torch.distributed as dist

    from yoked.ranks.meeting import meet

    mark(" ".join(sys.argv[1:]) + " " + os.environ["TORCHELASTIC_RESTART_COUNT"])
    strange = RANK == 2 and ATTEMPT == 0
    os.environ["YOKED_SECRET"] = "of a stranger who dialled" if strange else "of this launch alone"
    meet(lambda: dist.init_process_group("gloo"))
    dist.destroy_process_group()


def abort_in_the_first_meeting() -> None:
    """As Gloo does when a stranger in a rank's seat sends what it does not expect."""
    import torch.distributed as dist

    from yoked.ranks.meeting import marked

    with marked():
        dist.init_process_group("gloo")
        if ATTEMPT == 0 and RANK == 1:
            os.abort()
        dist.barrier()
    dist.destroy_process_group()


def takes_more_and_more() -> None:
    """Rank 1 takes 64 MB more at each turn, until it is refused."""
    kept = []
    for _ in range(8 if RANK == 1 else 600):
        if RANK == 1:
            kept.append(bytearray(b"x") * (64 << 20))
        time.sleep(0.25)
    raise MemoryError(f"{len(kept)} are enough")


def deaf() -> None:
    """Heeds no signal that can be ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    mark(str(os.getpid()))
    time.sleep(90)


def deaf_beside_a_worker() -> None:
    """As deaf as a child of its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "90"])
    deaf()


def leaves_a_daemon() -> None:
    """Forked twice, in a session of its own, without a variable of the launch; then it fails."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writes, str(os.getpid()).encode())
            os.closerange(3, 256)
            os.execve("/bin/sleep", ["sleep", "90"], {})
        os._exit(0)
    mark(os.read(reads, 20).decode())
    # A rank that fails has the others ended.
    while not all(Path(f"{rank}.{ATTEMPT}.mark").exists() for rank in range(3)):
        time.sleep(0.02)
    sys.exit(3 if ATTEMPT == 0 else 0)


def save_when_interrupted() -> None:
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    mark(str(os.getpid()))
    while not caught:
        time.sleep(0.02)
    # One rank saves longer than another; it must be let.
    time.sleep(0.5 * RANK)
    mark(f"saved {len(caught)}")


ACTS = {
    "all_reduce": all_reduce,
    "rank_0_divides": lambda: collectives(trouble=0),
    "collectives": collectives,
    "collectives_beside_a_worker": collectives_beside_a_worker,
    "leaves_a_daemon": leaves_a_daemon,
    "first_attempt_fails": first_attempt_fails,
    "a_stranger_at_first": a_stranger_at_first,
    "abort_in_the_first_meeting": abort_in_the_first_meeting,
    "takes_more_and_more": takes_more_and_more,
    "deaf": deaf,
    "deaf_beside_a_worker": deaf_beside_a_worker,
    "save_when_interrupted": save_when_interrupted,
}

if __name__ == "__main__":
    ACTS[sys.argv[1]]()
