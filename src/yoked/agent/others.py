"""Runs of other users on this host: their jobs are not ours to read, their command lines are.

Source: proc(5). Who hides processes from other users (hidepid) hides their runs too.
"""

from __future__ import annotations

import os
import re
from typing import Any

from yoked.agent.ask import user_name
from yoked.agent.server import Call
from yoked.core.names import RUN_NAME
from yoked.core.proc import all_processes

# The program that each host of a run has, and the file that names the run (launch/start.py).
_PROGRAM = re.compile(r" -m yoked\.launch\.bootstrap\.host /.*/jobs/([^/]+)/job\.json$")


def answer_job_others(call: Call) -> list[dict[str, Any]]:
    """Runs of other users: [{run, user, pid, age_s}]."""
    del call
    return runs_of_others()


def runs_of_others() -> list[dict[str, Any]]:
    """The same; age_s: for how long it has run. Anybody can write such a command line."""
    found = []
    for process in all_processes():
        uid = process.uid
        if uid is None or uid == os.getuid():
            continue
        named = _PROGRAM.search(process.command())
        if named and RUN_NAME.fullmatch(named[1]):
            user = user_name(uid)
            told = {"run": named[1], "user": user, "pid": process.pid, "age_s": process.age_s}
            found.append(told)
    return found
