"""Jobs of runs that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yoked.launch.bootstrap.job import Job, Node, Program

# Credentials of a job are made for it.
LAUNCH_ID = "0123456789ab"


def made_up_job(folder: Path, **changes: Any) -> Job:
    """A job of two hosts, one rank each, as the first host sees it; the program is there too."""
    fields: dict[str, Any] = {
        "run": "r",
        "launch_id": LAUNCH_ID,
        "folder": folder,
        "node_rank": 0,
        "nodes": (Node("alpha", "127.0.0.1", 1), Node("beta", "127.0.0.2", 1)),
        "control_port": 1,
        "control_fd": None,
        "restarts": 0,
        "resume_args": (),
        "program": Program("script", "x.py", ()),
        "cwd": folder,
        "bootstrap": False,
    }
    return Job(**{**fields, **changes})
