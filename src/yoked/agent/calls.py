"""The calls that an agent answers, by name: an explicit list.

Call `x` is answered by `answer_x` of a module here, which is imported when it is first asked for:
a command waits for each agent's start, and needs few of them.
"""

from __future__ import annotations

import importlib
from typing import Any

from yoked.agent.server import Call, Handler

MODULES = {
    "facts": "facts",
    "interfaces": "interfaces",
    "listen": "sockets",
    "dial": "sockets",
    "file_list": "fetch",
    "file_read": "fetch",
    "blobs_missing": "files",
    "blobs_put": "files",
    "blob_append": "files",
    "folder_contents": "folders",
    "folder_here": "folders",
    "folder_put": "folders",
    "tree_checkout": "folders",
    "kernels_here": "artefacts",
    "run": "programs",
    "environment": "environments",
    "environment_base": "environments",
    "environment_make": "environments",
    "job_start": "jobs",
    "job_go": "jobs",
    "job_list": "jobstatus",
    "job_status": "jobstatus",
    "job_stop": "jobs",
    "job_remove": "jobs",
    "job_logs": "logs",
    "job_reap": "reap",
    "job_sweep": "reap",
    "job_listeners": "listeners",
    "listener_owner": "listeners",
    "health": "health",
    "trial": "trials",
    "trial_go": "trials",
}


def _handler(name: str, module: str) -> Handler:
    def answer(call: Call) -> Any:
        found: Handler = getattr(importlib.import_module(f"yoked.agent.{module}"), f"answer_{name}")
        return found(call)

    return answer


HANDLERS: dict[str, Handler] = {name: _handler(name, module) for name, module in MODULES.items()}
