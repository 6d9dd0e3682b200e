"""What this host's part of a launch waits for, in a file for whoever looks on meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from yoked.agent.jobfolder import JobFolder
from yoked.diagnosis.activity import activity_of
from yoked.diagnosis.vitals import Frame, RankVitals, Vitals
from yoked.launch.bootstrap.job import Job

STAGE_NAME = "stage.json"
# A program that never says how many steps it took goes on being looked at, and is no launch then.
_OFTEN_S, _RARELY_S, _LAUNCH_S = 0.5, 15.0, 300.0
_MEETS = ("init_process_group", "rendezvous", "_store_based_barrier", "meet")


class Stage:
    """Written when it changes, until each rank of this host has taken a step."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: object = None
        self._since_s: dict[tuple[int, str], float] = {}
        self._began_s = time.monotonic()
        self._due_s = 0.0

    def gathers(self, hosts: Sequence[str]) -> None:
        """This host waits for the launchers of others."""
        self._write({"attempt": 0, "begun": False, "hosts": list(hosts), "ranks": []})

    def runs(self, seen: Vitals) -> None:
        """This host's ranks run."""
        begun = bool(seen.ranks) and all(
            each.recorded and each.recorded.steps for each in seen.ranks
        )
        left = () if begun else seen.ranks
        doing = [(each.rank, self._doing(seen.attempt, each)) for each in left]
        now_s = time.time()
        self._since_s = {key: self._since_s.get(key, now_s) for key in doing}
        ranks = [
            {"rank": rank, "doing": what, "since_s": self._since_s[rank, what]}
            for rank, what in doing
        ]
        self._write({"attempt": seen.attempt, "begun": begun, "hosts": [], "ranks": ranks})

    def _doing(self, attempt: int, rank: RankVitals) -> str:
        if rank.recorded is None:
            return "starting"
        frames = rank.recorded.frames
        if self._job.meeting_mark(attempt, rank.rank).exists() or any(map(_meets, frames)):
            return "meeting"
        doing = activity_of(rank)
        if doing == "importing" and any("/torch/" in frame.file for frame in frames):
            return "importing torch"
        return doing

    def _write(self, said: dict[str, Any]) -> None:
        now_s = time.monotonic()
        if said == self._said or now_s < self._due_s:
            return
        self._due_s = now_s + (_OFTEN_S if now_s - self._began_s < _LAUNCH_S else _RARELY_S)
        self._said = said
        # A full disk must not end the run.
        with contextlib.suppress(OSError):
            JobFolder(self._job.folder).write(STAGE_NAME, {**said, "since_s": time.time()})


def _meets(frame: Frame) -> bool:
    return frame.function in _MEETS and (
        "/torch/distributed/" in frame.file or frame.file.endswith("yoked/ranks/meeting.py")
    )
