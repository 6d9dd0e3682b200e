"""Works of a coalescing manager; what they move between two ranks: tests/distributed."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Work

from yoked.launch.bootstrap.coalescing import Kept


class Sent(Work):
    """Counts who waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self.waited += 1
        return True

    def is_completed(self) -> bool:
        return self.waited > 0


def test_nothing_waits_for_a_work_until_its_manager_is_closed() -> None:
    work = Sent()
    kept = Kept(work)

    assert kept.wait()
    assert (work.waited, kept.is_completed()) == (0, False)

    kept.closed = True
    assert kept.wait()
    assert (work.waited, kept.is_completed()) == (1, True)
