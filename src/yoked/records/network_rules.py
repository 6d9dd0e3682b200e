"""What a host may tell of how its network is asked and carried."""

from __future__ import annotations

from yoked.records.rules import (
    complete,
    each,
    fields,
    flag,
    interface,
    line,
    optional,
    path,
    pid,
    ssh_name,
    text,
)

# Of the call `broadcast`: whose words to all came to a program, and to the card; None: it could not
# be heard.
BROADCAST = fields(
    {"sent": flag, "heard": optional(each(ssh_name)), "card": optional(each(ssh_name))}
)
# Programs that carry a tunnel's packets, and what peers may send.
TUNNELS = fields(
    {
        "owners": each(
            complete(
                {
                    "pid": pid,
                    "command": text,
                    "interface": optional(interface),
                    "stopped": flag,
                    "config": optional(path),
                }
            )
        ),
        "allows": each(line),
    }
)
