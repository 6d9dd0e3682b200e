"""Changes of yoked.toml, on the controller."""

from __future__ import annotations

import re
import zlib

from yoked.doctor.checks.query import at
from yoked.doctor.repairs.base import repair
from yoked.doctor.repairs.files import change_file, rewrite_file
from yoked.records.examination import Examination, Fix
from yoked.records.rules import CONTROL
from yoked.records.shell import Line, command_line, quoted


@repair
def choose_again(seen: Examination) -> Fix:
    """Find out anew, by traffic, which interface each host can use."""
    words = ["yoked", "init", "--force", *fleet_flag(seen)]
    return rewrite_file("", fleet_file(seen), "chosen", command_line(*words))


@repair
def drop_host(seen: Examination, name: str) -> Fix:
    """Write yoked.toml anew without one of the names."""
    path = str(at(seen.controller, "fleet") or "yoked.toml")
    kept = [host.name for host in seen.hosts if host.name != name]
    words = ["yoked", "init", "--force", *kept, "--fleet", path]
    return rewrite_file("", fleet_file(seen), "one-name", command_line(*words))


@repair
def set_ranks(seen: Examination, host: str, ranks: int) -> Fix:
    """Write another number of ranks into a host's entry of yoked.toml."""
    return edit_entry(seen, host, f"s/^ranks *=.*/ranks = {ranks}/")


def fleet_file(seen: Examination) -> Line:
    """The fleet's file, as a word of the controller's shell."""
    return quoted(at(seen.controller, "fleet") or "yoked.toml")


def fleet_flag(seen: Examination) -> list[str]:
    """`--fleet FILE` for a line of the controller, where it is not the file of its folder."""
    path = at(seen.controller, "fleet")
    return ["--fleet", str(path)] if path else []


@repair
def edit_entry(seen: Examination, host: str, script: str) -> Fix:
    """Change a host's entry of yoked.toml. script: for sed, of the lines below its name."""
    change = f'/^name *= *"{for_sed(host)}"/,/^\\[/{{{script};}}'
    # Each change has a copy of its own.
    mark = f"{zlib.crc32(change.encode()):08x}"
    return change_file("", fleet_file(seen), mark, lambda old: command_line("sed", change, old))


def for_sed(text: str) -> str:
    """A text as a regular expression of sed's, between slashes, and nothing but that text."""
    return re.sub(r"([][\\./*^$])", r"\\\1", CONTROL.sub("", text))
