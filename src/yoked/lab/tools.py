"""Handing lines to `ip`, `tc` and `nft`, as a person would type them behind the tool's name.

Each tool gets its lines in one go, and the line that it refused is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from subprocess import CompletedProcess
from typing import Protocol

from yoked.errors import LabError


class Namespace(Protocol):
    """Where tools run: `yoked.lab.inside.Inside`, or a fake."""

    def tool(
        self,
        argv: Sequence[str],
        *,
        input: str = "",
        check: bool = True,
    ) -> CompletedProcess[str]:
        """Run a program of the machine in this network namespace."""


def run_ip(where: Namespace, lines: Iterable[str]) -> None:
    """Run lines behind `ip` in a network namespace. Raises LabError with the refused line."""
    _run(where, ["ip", "-batch", "-"], list(lines))


def run_tc(where: Namespace, lines: Iterable[str]) -> None:
    """Run lines behind `tc` in a network namespace. Raises LabError with the refused line."""
    _run(where, ["tc", "-batch", "-"], list(lines))


def run_nft(where: Namespace, lines: Iterable[str]) -> None:
    """Run lines behind `nft` as one: all or none. Raises LabError with the refused line."""
    _run(where, ["nft", "-f", "-"], list(lines))


def text_of(lines: Iterable[str]) -> str:
    """Lines as tools read them from their input, and files have them."""
    return "".join(f"{line}\n" for line in lines)


def _run(where: Namespace, argv: list[str], lines: list[str]) -> None:
    if not lines:
        return
    result = where.tool(argv, input=text_of(lines), check=False)
    if result.returncode == 0:
        return
    said = (result.stderr or result.stdout).strip()
    what = f"`{argv[0]}` failed with status {result.returncode}: {_verdict(said)}"
    if line := _refused(said, lines):
        what = f"`{argv[0]} {line}` was refused: {_verdict(said)}"
    raise LabError(what, fix=_advice(argv[0], said))


def _refused(said: str, lines: Sequence[str]) -> str | None:
    """The line that the tool says it stopped at: `-:3` (ip, tc), `/dev/stdin:3:1-9` (nft)."""
    match = re.search(r"(?:^|\s)(?:-|/dev/stdin):(\d+)(?=[:\s]|$)", said)
    number = int(match[1]) if match else 0
    return lines[number - 1] if 0 < number <= len(lines) else None


def _verdict(said: str) -> str:
    """The tool's own reason, without the place."""
    reasons = [
        re.sub(r"^(?:(?:-|/dev/stdin):[\d:-]+ )?(?:Error: |RTNETLINK answers: )?", "", line)
        for line in said.splitlines()
        if not line.startswith("Command failed")
    ]
    return reasons[0].strip() if reasons else "it gave no reason"


def _advice(tool: str, said: str) -> str | tuple[()]:
    if "kind is unknown" in said or "Unknown device type" in said:
        return "the kernel lacks a module: try `sudo modprobe -a veth bridge sch_tbf sch_netem`"
    if "not permitted" in said or "Permission denied" in said:
        return "start the lab as root, or allow user namespaces: see `yoked lab list`"
    if tool == "nft" and "not supported" in said:
        return "the kernel may lack nftables for bridges: try `sudo modprobe nf_tables`"
    return ()
