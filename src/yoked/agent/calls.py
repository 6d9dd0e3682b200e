"""The calls that an agent answers, by name: an explicit list.

Call `x` is answered by `answer_x` of a module here, which is imported when it is first asked for:
a command waits for each agent's start, and needs few of them.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from yoked.agent.server import Call, Handler

MODULES = {
    "facts": "facts",
    "interfaces": "interfaces",
    "listen": "sockets",
    "dial": "sockets",
    "file_list": "fetch",
    "file_read": "fetch",
    "file_lines": "fetch",
    "blobs_missing": "files",
    "blobs_put": "files",
    "blob_append": "files",
    "folder_contents": "folders",
    "folder_use": "folders",
    "folder_here": "folders",
    "folder_put": "folders",
    "pushed": "pushed",
    "pushed_put": "pushed",
    "pushed_remove": "pushed",
    "pushed_sweep": "pushed",
    "kernels_here": "folders",
    "compiled_here": "compiled",
    "compiled_list": "compiled",
    "compiled_put": "compiled",
    "compiled_remove": "compiled",
    "run": "programs",
    "environment": "environments",
    "environment_base": "environments",
    "environment_make": "environments",
    "environment_remove": "environments",
    "job_start": "jobs",
    "job_go": "jobs",
    "job_list": "jobstatus",
    "job_status": "jobstatus",
    "job_stacks": "stacks",
    "job_stop": "jobs",
    "job_trace": "tracing",
    "job_traced": "tracing",
    "job_save": "jobs",
    "job_failed": "jobs",
    "job_doctor": "jobs",
    "job_remove": "jobs",
    "job_logs": "logs",
    "job_reap": "reap",
    "job_sweep": "reap",
    "job_listeners": "listeners",
    "job_others": "others",
    "half_open": "listeners",
    "broadcast": "broadcasts",
    "health": "health",
    "culprits": "culprits",
    "start_files": "startfiles",
    "small_launch": "smalllaunch",
    "left_alone": "leftalone",
    "trial": "trials",
    "trial_go": "trials",
    "watch": "watch",
}


def _answer(name: str, call: Call) -> Any:
    module = importlib.import_module(f"yoked.agent.{MODULES[name]}")
    return getattr(module, f"answer_{name}")(call)


HANDLERS: dict[str, Handler] = {name: partial(_answer, name) for name in MODULES}
