"""What was said of a run, from its hosts to the run's folder here, beside what it learned or wrote.

    diagnosis.jsonl   what the diagnosis said, and when: as one host saw it
    doctor.json       what the doctor's quick form said at its start

A program of `yoked run` has run.json and result.json beside them, which are made here: rank 0's
host has no folder of the run.

Each start of a run is a job, whose folder on each host has a diagnosis.jsonl of its own. Here
their lines follow each other; those of a job begin at the first "begin" with its launch_id. What
hosts tell is anybody's: sizes are bounded, and whoever reads lines looks at each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.agent.jobfolder import DOCTOR_NAME, PROGRAM_NAME, TIMELINE_NAME
from yoked.agent.verdict import RESULT_NAME
from yoked.core.fs import write_bytes
from yoked.diagnosis.timeline import MOST_BYTES
from yoked.errors import HostError, YokedError
from yoked.launch.listing import TAKEN, is_taken
from yoked.launch.mirror import fetch_json, pieces
from yoked.launch.outputs import require_same_program
from yoked.launch.registry import Record
from yoked.paths import private_folder
from yoked.remote.client import AgentClient, RemoteBug, host_wrote
from yoked.runs import MARK, is_program
from yoked.shape import amount, anything, quantity, require

if TYPE_CHECKING:
    from yoked.launch.start import JobRequest, NodePlan

Reach = Callable[[str], AbstractContextManager[AgentClient]]

# Where attempts begin and end is written to a full journal too.
_MOST_BYTES = MOST_BYTES + (1 << 20)
_FINDING = {
    "check": str,
    "severity": lambda value: value in ("error", "warning"),
    "hosts": [str],
    "saw": str,
    "why": str,
    "fix": [{"host": (str, None), "command": str}],
    "follows": [anything],
}
_PROGRAM = {
    "run": str,
    "trains": lambda value: value is False,
    "program": {"argv": [str], "folder": str},
    "hosts": [
        {
            "rank": amount,
            "name": str,
            "address": str,
            "interface": str,
            "device": str,
            "python": str,
            "versions": {str: (str, None)},
        }
    ],
}
_DOCTOR = {
    "launch_id": str,
    "time_s": quantity,
    "asked": bool,
    "why": (str, None),
    "took_s?": quantity,
    "findings": [_FINDING],
}


def keep_doctor(client: AgentClient, run: str, launch_id: str, said: Mapping[str, Any]) -> None:
    """Have node 0 keep what the doctor said at the start of a job. said: without launch and time.

    The run goes on where that cannot be: its disk is full, or the job has ended already.
    """
    told = {"launch_id": launch_id, "time_s": time.time(), **said}
    with suppress(YokedError, RemoteBug):
        client.call("job_doctor", run=run, launch_id=launch_id, said=told)


def not_asked(why: str) -> dict[str, Any]:
    """What there is to keep where the doctor was not asked."""
    return {"asked": False, "why": why, "findings": []}


def bring_said(record: Record, here: Path, reach: Reach, note: Callable[[str], None]) -> None:
    """Copy what was said of a job into its run's folder, which is there.

    From the host of node 0, else from the first that answers. reach: a connection to a host. What
    cannot be had is told to note: how the run went matters more.
    """
    problem: YokedError | OSError | None = None
    folders = {host: told["folder"] for host, told in record.hosts.items()}
    for host in sorted(record.hosts, key=lambda host: int(record.hosts[host]["node_rank"])):
        try:
            with reach(host) as client:
                _bring_timeline(client, f"{folders[host]}/{TIMELINE_NAME}", here, record.launch_id)
                if record.hosts[host]["node_rank"] == 0:
                    _bring_doctor(client, f"{folders[host]}/{DOCTOR_NAME}", here, note)
            return
        except HostError as silent:
            problem = problem or silent
        except (YokedError, OSError) as found:
            problem = found
            break
    if problem is not None:
        why = problem.what if isinstance(problem, YokedError) else problem
        note(f"what the diagnosis said of run {record.name} is still on its hosts: {why}")


def program_file(request: JobRequest, nodes: Sequence[NodePlan]) -> dict[str, str]:
    """run.json of a person's program, by its name: a file of the job on each host."""
    folder = request.program.folder
    if folder is None or not request.program.is_limited:
        # What yoked trains or measures has a record of its own.
        return {}
    places = [node for node in nodes for _ in range(node.ranks)]
    content = {
        "run": request.run,
        "trains": False,
        "program": {"argv": request.program.argv, "folder": folder.resolve().name},
        "hosts": [
            {
                "rank": rank,
                "name": node.host.name,
                "address": node.address,
                "interface": node.interface,
                "device": node.device_type,
                "python": node.python,
                "versions": dict(node.versions),
            }
            for rank, node in enumerate(places)
        ],
    }
    return {PROGRAM_NAME: json.dumps(content)}


def bring_program(
    record: Record,
    here: Path,
    reach: Reach,
    note: Callable[[str], None],
    result: Mapping[str, Any] | None,
) -> None:
    """Make the record of a program of `yoked run`: run.json, result.json and what was said of it.

    here: its folder, which is made if it is not there. result: what `yoked run --json` prints;
    None: it goes on. Raises UsageError where that folder is something else, and YokedError where
    no host tells what the program is.
    """
    require_same_program(record, here)
    program = _program_of(record, reach)
    if program is None:
        return
    had = is_program(here)
    private_folder(here)
    (here / MARK).touch()
    start = {"launch_id": record.launch_id, "attempt": record.attempt + 1}
    _write(here / PROGRAM_NAME, {**program, **start, "started_s": record.started_s})
    # Who followed it from its start knows more of it than who looks at its end.
    if result is not None and not (had and (here / RESULT_NAME).is_file()):
        _write(here / RESULT_NAME, record.verdict or result)
    bring_said(record, here, reach, note)


def _program_of(record: Record, reach: Reach) -> Mapping[str, Any] | None:
    """run.json as a host of the job has it; None: it is no person's program."""
    problem: YokedError | None = None
    for host, told in record.hosts.items():
        try:
            with reach(host) as client, host_wrote(host, f"{PROGRAM_NAME} of the job"):
                found = fetch_json(client, f"{told['folder']}/{PROGRAM_NAME}")
                require(found, (_PROGRAM, None))
            return found
        except HostError as silent:
            problem = problem or silent
    if problem is not None:
        raise problem
    return None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_bytes(path, text.encode(), mode=0o600, durable=False)


def _bring_doctor(
    client: AgentClient, remote: str, here: Path, note: Callable[[str], None]
) -> None:
    """Copy what the doctor said at the start of a job. What is none stays there, and is told."""
    _require_place(here, DOCTOR_NAME)
    try:
        with host_wrote(client.host, "what the doctor said"):
            doctor = fetch_json(client, remote)
            require(doctor, (_DOCTOR, None))
    except HostError as odd:
        note(odd.what)
        return
    if doctor is not None:
        _write(here / DOCTOR_NAME, doctor)


def _require_place(here: Path, name: str) -> None:
    """Raise YokedError where a file cannot be written."""
    if is_taken(here, name):
        raise YokedError(f"{here / name}: {TAKEN}", fix="move it away")


def _bring_timeline(client: AgentClient, remote: str, here: Path, launch_id: str) -> None:
    """Have the lines of a job here grow by what is new of them there."""
    _require_place(here, TIMELINE_NAME)
    path = here / TIMELINE_NAME
    parts = _by_launch(path.read_bytes()) if path.is_file() else {}
    ours = parts.get(launch_id, b"")
    begun = ours[: ours.find(b"\n") + 1]
    # What another host wrote begins with other words.
    is_same = begun == b"".join(pieces(client, remote, 0, len(begun), cut=True)) if begun else True
    offset = len(ours) if is_same else 0
    came = b"".join(pieces(client, remote, offset, _MOST_BYTES - offset, cut=True))
    # The last line may be in the making.
    whole = ours[:offset] + came[: came.rfind(b"\n") + 1]
    # Of two hosts that of which more is known.
    if len(whole) <= len(ours):
        return
    parts[launch_id] = whole
    write_bytes(path, b"".join(parts.values()), mode=0o600, durable=False)


def _by_launch(content: bytes) -> dict[str, bytes]:
    """The lines of each job, in their order; "": those before the first that begins one."""
    parts: dict[str, list[bytes]] = {}
    launch_id = ""
    for line in content.splitlines(keepends=True):
        launch_id = _begun_by(line) or launch_id
        parts.setdefault(launch_id, []).append(line)
    return {launch_id: b"".join(lines) for launch_id, lines in parts.items()}


def _begun_by(line: bytes) -> str | None:
    """The launch of which a line is the first; None: of none."""
    if b'"begin"' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    told = found.get("launch_id") if isinstance(found, dict) else None
    is_begin = isinstance(told, str) and found.get("event") == "begin"
    return told if is_begin else None
