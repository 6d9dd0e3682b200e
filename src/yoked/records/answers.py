"""What an agent may answer, call by call: its answers pass these rules.

What does not fit is left out, and its place is noted: it is unknown then, as if the host had not
told it. No word of a host's gets further, so no check or command meets one that it does not expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yoked.records.ender_rules import LEFT_ALONE
from yoked.records.host_rules import (
    FACTS,
    HEALTH,
    LAUNCH,
    LEFT,
    LIMITS,
    MOUNT,
    START_FILES,
)
from yoked.records.job_rules import JOB
from yoked.records.network_rules import BROADCAST, DIAL, INTERFACES
from yoked.records.rules import (
    OddError,
    Rule,
    address,
    all_of,
    any_of,
    complete,
    count,
    data_name,
    digest,
    each,
    fields,
    flag,
    label,
    libc,
    libc_version,
    line,
    mac_version,
    moment,
    named,
    nothing,
    number,
    one_of,
    optional,
    path,
    pid,
    port,
    python_minor,
    run_name,
    symbol,
    text,
    user,
    whole,
    word,
)
from yoked.records.torch_rules import CULPRITS

# How a program ended.
_OUTCOME = complete(
    {
        "exit_status": optional(whole),
        "signal": optional(whole),
        "late": flag,
        "stdout": text,
        "stderr": text,
    }
)

# What a call returns; whoever uses what another call returns looks at it himself.
RESULTS: Mapping[str, Rule] = {
    "facts": FACTS,
    "interfaces": INTERFACES,
    "health": HEALTH,
    "culprits": CULPRITS,
    "start_files": START_FILES,
    "small_launch": LAUNCH,
    "left_alone": LEFT_ALONE,
    "watch": complete(
        {
            "time_s": number,
            "monotonic_s": number,
            "limits": complete(LIMITS),
            "folders": named(word, complete(LEFT)),
        }
    ),
    "dial": all_of(DIAL),
    "file_list": all_of(all_of(text, count, whole)),
    "file_read": flag,
    "file_lines": flag,
    "blobs_missing": named(text, count, strict=True),
    "blob_append": count,
    "folder_contents": optional(named(text, text, strict=True)),
    "folder_use": fields(
        {"lock": optional(symbol), "map": optional(label), "mount": optional(MOUNT)}
    ),
    "folder_here": optional(text),
    "folder_put": text,
    "pushed": all_of(
        complete(
            {"name": data_name, "digest": digest, "path": path, "files": count, "size_bytes": count}
        )
    ),
    "pushed_put": path,
    "pushed_remove": flag,
    "pushed_sweep": all_of(complete({"folder": path, "size_bytes": count})),
    "kernels_here": complete({"cpu": text, "keys": all_of(text)}),
    "compiled_here": optional(named(text, count, strict=True)),
    "compiled_list": all_of(
        complete({"label": text, "folder": text, "size_bytes": count, "unused_s": number})
    ),
    "compiled_remove": flag,
    "run": _OUTCOME,
    "environment": fields(
        {
            "made": path,
            "configured": path,
            "system": path,
            "marker": optional(fields({"build": text}, needed=("build",), more=True)),
            "unusable": line,
        },
        strict=("made", "configured", "system", "marker"),
        more=True,
    ),
    # A part of it decides which files pip brings here.
    "environment_base": complete(
        {
            "python": path,
            "version": python_minor,
            "system": word,
            "machine": word,
            "libc": libc,
            "libc_version": libc_version,
            "mac_version": mac_version,
        }
    ),
    "environment_remove": each(
        complete({"path": path, "size_bytes": count, "removed": flag, "why": one_of("", "used")})
    ),
    "job_list": each(JOB),
    "job_status": JOB,
    "job_listeners": named(
        run_name,
        each(complete({"address": address, "port": port, "pid": pid, "command": text})),
    ),
    "job_others": each(complete({"run": run_name, "user": user, "pid": pid, "age_s": number})),
    "broadcast": BROADCAST,
    "half_open": optional(all_of(complete({"port": port, "address": address}))),
    # A rank that told something odd is left out by whoever reads it.
    "job_stacks": each(fields({}, more=True)),
    "job_start": count,
    "job_go": complete({"host_program": count}),
    "job_stop": all_of(count),
    "job_save": flag,
    "job_trace": flag,
    "job_traced": complete(
        {
            "active": flag,
            "traces": all_of(complete({"rank": count, "path": path, "size_bytes": count})),
        }
    ),
    "job_remove": flag,
    "job_doctor": flag,
    "job_reap": complete(
        {
            "processes": all_of(
                complete(
                    {
                        "pid": count,
                        "run": text,
                        "command": text,
                        "ports": all_of(port),
                        "killed": flag,
                    }
                )
            ),
            "shared_memory": all_of(complete({"name": text, "size_bytes": count, "removed": flag})),
        }
    ),
    "job_sweep": all_of(complete({"folder": text, "size_bytes": count})),
}
# The parts of an answer that comes in parts; a call that is not here has none.
PARTS: Mapping[str, Rule] = {
    "listen": complete({"port": port, "more": all_of(optional(port))}),
    "file_read": nothing,
    "file_lines": optional(complete({"size": count, "begins": all_of(count)})),
    "environment_make": any_of(
        *(complete({key: text}) for key in ("line", "made", "unreachable")),
        complete(
            {
                "stage": one_of("downloading", "unpacking"),
                "done": count,
                "total": optional(count),
            }
        ),
    ),
    "job_logs": any_of(
        complete({"begin": named(text, count, strict=True)}),
        complete(
            {
                "rank": count,
                "attempt": count,
                "stream": one_of("out", "err"),
                "time_s": moment,
                "offset": count,
            }
        ),
    ),
    "trial": fields({"line": text, "end": _OUTCOME}),
}
# Fields that a caller takes for granted: an agent tells all of them, if only by null.
_TOLD: Mapping[str, tuple[str, ...]] = {
    "facts": (
        "machine", "hostname", "cpu_model", "cores", "fast_cores", "usable_cores", "memory_bytes",
        "gpus", "free_bytes", "state", "path", "uid",
    ),
    "environment": ("made", "configured", "system", "marker"),
}  # fmt: skip
_TOLD_OF_EACH: Mapping[str, tuple[str, ...]] = {
    "interfaces": ("mtu_bytes", "gloo_address", "addresses"),
    "dial": (
        "answered_by", "error", "error_text", "rtt_s", "goodput_bytes_per_s", "path_mtu_bytes",
        "resent", "source_address", "took_s",
    ),
}  # fmt: skip


def understood(call: str, answer: Any, odd: list[str]) -> Any:
    """What an agent's call returned, as far as it fits. Calls without a rule answer as they do.

    odd: is given the places of what was left out. Raises OddError where nothing can be made of it.
    """
    rule = RESULTS.get(call)
    if rule is None:
        return answer
    found = rule(answer, call, odd)
    told, of_each = _TOLD.get(call, ()), _TOLD_OF_EACH.get(call, ())
    if missing := [name for name in told if name not in found]:
        raise OddError(f"{call}.{missing[0]}")
    for item in found if of_each else ():
        if missing := [name for name in of_each if name not in item]:
            raise OddError(f"{call}.{missing[0]}")
    return found
