"""What `yoked diagnose --pid` says of a program that yoked did not start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from yoked.agent.verdict import held_up_by, verdict_of
from yoked.diagnosis.cause import Cause
from yoked.diagnosis.outside import Outside, process_of, words_outside


def outside_payload(pid: int, seen: Outside, found: Sequence[Cause]) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        **verdict_of(
            seen.run, "hung" if found else "healthy", [_fault(cause, seen) for cause in found]
        ),
        "pid": pid,
        "processes": [
            {
                "pid": one.vitals.pid,
                "command": one.command,
                "rank": one.rank,
                "world_size": one.world_size,
                "meets_at": one.meets_at or None,
                "role": "launcher" if one.launches else "worker" if one.worker else "rank",
                "state": one.vitals.state,
                "waits_in": one.vitals.waits_in or None,
                "cores": round(one.cores, 3),
                "resident_bytes": one.resident_bytes,
                "peers": [
                    {
                        "address": peer.address,
                        "connecting": peer.connecting,
                        "window_shut": peer.window_shut,
                        "bytes_per_s": round(peer.bytes_per_s),
                        **{key: value for key, value in asdict(peer.link).items() if key != "node"},
                    }
                    for peer in one.peers
                ],
            }
            for one in seen.processes
        ],
    }


def _fault(cause: Cause, seen: Outside) -> dict[str, Any]:
    words, process = words_outside(cause, seen), process_of(cause, seen)
    return held_up_by(
        {
            "cause": cause.code,
            "hosts": [seen.host],
            "rank": None if process is None else process.rank,
            "certainty": cause.certainty,
            "since_s": round(cause.since_s, 2),
            "what": words.what,
            "fix": words.fix,
        }
    )


def outside_verdict(pid: int, seen: Outside, found: Sequence[Cause]) -> str:
    """What it comes to, a line for each cause."""
    if not found:
        return f"process {pid} goes on: nothing holds it up that this machine can see"
    said = []
    for cause in found:
        process, what = process_of(cause, seen), words_outside(cause, seen).what
        said.append(what if process is None else f"{process.name}: {what}")
    if found[0].code == "cannot-tell":
        return f"process {pid} waits, and nothing here tells why: {said[0]}"
    return "\nand: ".join([f"process {pid} is hung: {said[0]}", *said[1:]])
