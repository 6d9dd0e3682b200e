"""What a host may tell of what a program asks of it: see yoked.agent.asked."""

from __future__ import annotations

from yoked.records.rules import (
    complete,
    count,
    digest,
    fields,
    flag,
    line,
    named,
    one_of,
    optional,
    path,
    port_text,
    symbol,
    text,
    user,
    variable,
)

_FILE_RULES = {
    "kind": one_of("missing", "file", "folder", "other", "unreadable"),
    "problem": symbol,
    "size": count,
    "digest": digest,
    "begins": line,
    "count": count,
    "entries": named(line, line),
    "path": path,
}
_FILE = fields(_FILE_RULES, needed=("kind",))
_CACHED = complete(
    {
        "revision": optional(line),
        "folder": line,
        "files": named(line, count),
        "offline": flag,
    }
)
ASKED = fields(
    {
        "variables": named(variable, optional(text)),
        "files": named(line, _FILE),
        "writes": named(line, complete({"problem": optional(symbol), "owner": optional(user)})),
        "creates": named(line, _FILE),
        "above": named(line, _FILE),
        "programs": named(line, optional(path)),
        "libraries": named(line, optional(flag)),
        "ports": named(port_text, optional(symbol)),
        "hosts": named(line, flag),
        "hub": named(line, _CACHED),
        "torch_hub": named(line, _CACHED),
        "nltk": named(line, _CACHED),
    }
)
