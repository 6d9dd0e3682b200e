"""What a host may tell of a job: its state, its end, why it stands and where its time goes."""

from __future__ import annotations

from yoked.records.rules import (
    address,
    all_of,
    complete,
    count,
    each,
    fields,
    flag,
    label,
    launch_id,
    line,
    moment,
    number,
    one_of,
    optional,
    path,
    pattern,
    run_name,
    text,
)

# yoked.diagnosis.gate.Shares
_SHARES = complete(
    {
        "step_s": optional(number),
        "ranks": all_of(
            complete(
                {
                    "rank": count,
                    "computes": optional(number),
                    "waits_for_core": number,
                    "waits": optional(number),
                    "loads_data": number,
                    "gpu": flag,
                }
            )
        ),
        "gate": optional(one_of("rank", "data", "network", "nobody")),
        "gating": all_of(count),
        "ahead": optional(number),
        "since_s": number,
        "why": text,
        "fix": each(text),
    }
)
_FAILURE = fields(
    {
        "host": text,
        "what": text,
        "rank": optional(count),
        "cause": optional(line),
        "hosts": each(text),
        "at": optional(text),
        "fix": each(text),
        "last_lines": each(text),
    },
    needed=("host", "what"),
    strict=("host", "what"),
    more=True,
)
_CAUSE = fields(
    {
        "cause": line,
        "hosts": each(line),
        "rank": optional(count),
        "certainty": one_of("sure", "likely"),
        "since_s": number,
        "what": text,
        "fix": each(text),
    },
    needed=("cause", "hosts", "what"),
    more=True,
)
STATE = one_of("prepared", "running", "finished", "failed", "stopped", "interrupted", "lost")
JOB = fields(
    {
        "run": run_name,
        "launch_id": launch_id,
        "state": STATE,
        "folder": path,
        "node_rank": count,
        "nodes": all_of(
            fields(
                {"host": line, "address": address, "ranks": count},
                needed=("host", "ranks"),
                more=True,
            )
        ),
        "trains": run_name,
        "outputs": each(pattern),
        "run_dir": optional(path),
        "by": optional(label),  # who started it, and where
        "started_s": optional(moment),
        "ended_s": optional(moment),
        "now_s": moment,  # by the same clock as the two before
        "attempt": count,
        "earlier": each(
            fields({"attempt": count, "failure": _FAILURE}, needed=("attempt", "failure"))
        ),
        "failure": optional(_FAILURE),
        "can_resume": flag,
        "progress": optional(
            complete({"step": optional(count), "loss": optional(number)}, more=True)
        ),
        "diagnosis": optional(
            fields(
                {
                    "attempt": count,
                    "time_s": moment,
                    "shares": optional(_SHARES),
                    "busy": all_of(
                        complete(
                            {
                                "rank": count,
                                "doing": line,
                                "for_s": number,
                                "at": text,
                                "waits_in": line,
                            }
                        )
                    ),
                    # By node.
                    "links": all_of(
                        complete(
                            {
                                "sender": count,
                                "receiver": count,
                                "bytes_per_s": number,
                                "lost": number,
                                "rtt_s": number,
                            }
                        )
                    ),
                    "memory": all_of(complete({"rank": count, "bytes": count})),
                    "causes": all_of(_CAUSE),
                    "warnings": all_of(_CAUSE),
                    "nccl": optional(complete({"what": text, "as_planned": flag})),
                },
                needed=("causes",),
                more=True,
            )
        ),
        "stage": optional(
            fields(
                {
                    "attempt": count,
                    "begun": flag,
                    "since_s": moment,
                    "hosts": each(line),
                    "ranks": all_of(
                        complete({"rank": count, "doing": line, "since_s": moment}, more=True)
                    ),
                },
                needed=("begun", "since_s", "hosts", "ranks"),
                more=True,
            )
        ),
        "refused": optional(fields({"connections": count, "last": text}, more=True)),
        "size_bytes": optional(count),
        "outputs_there": optional(complete({"files": count, "size_bytes": count})),
    },
    needed=(
        "run",
        "launch_id",
        "state",
        "folder",
        "node_rank",
        "nodes",
        "started_s",
        "ended_s",
        "now_s",
        "attempt",
        "failure",
        "progress",
    ),
    strict=("trains",),
    more=True,
)
