"""What hosts tell of those who end programs and sessions, or take files away.

See yoked.agent.enders and yoked.agent.leftalone.
"""

from __future__ import annotations

from yoked.records.rules import (
    complete,
    count,
    each,
    fields,
    line,
    number,
    one_of,
    optional,
    path,
    pid,
    text,
    word,
)

_ENDER = fields(
    {
        "pid": optional(pid),  # null: cron or logrotate starts it
        "command": text,
        "file": optional(path),  # null: it stands in the command
        "line": count,
        "words": line,
        "about": each(
            one_of(
                "python",
                "sessions",
                "users",
                "orphans",
                "listeners",
                "memory",
                "shortage",
                "cores",
                "GPUs",
                "age",
            )
        ),
        "limit_bytes": optional(count),
    },
    needed=("file", "line", "words"),
)
ENDERS = fields(
    {
        "programs": each(_ENDER),
        "sessions": each(complete({"file": path, "line": count, "words": line, "after_s": number})),
    }
)
# What became of a program and of files that nobody looked after.
LEFT_ALONE = fields(
    {
        "killed": complete({"after_s": number}),
        "signals": each(
            complete({"name": word, "sender": complete({"pid": count, "commands": each(text)})})
        ),
        "taken": each(
            complete({"path": path, "how": one_of("gone", "empty", "altered", "barred")})
        ),
        "takers": each(_ENDER),
        "programs": each(_ENDER),
    }
)
