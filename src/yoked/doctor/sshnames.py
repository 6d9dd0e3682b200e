"""Who takes a name for which address, where a jump host gets no way on to a host: what stands as
HostName in ssh's settings here is looked up there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from yoked.doctor.console import addresses_of, told_by
from yoked.doctor.sshinside import run_here
from yoked.doctor.sshway import Way
from yoked.records.examination import SshFailure
from yoked.records.shell import shell_line
from yoked.remote.ssh import ssh_argv
from yoked.text import one_line
from yoked.units import listed

_TRY_S, _LIMIT_S = 3, 6.0
_MARK = "yoked-hosts"
_LINE = re.compile(r"(\d{1,6}):[ \t]*([0-9A-Fa-f.:]+)[ \t]")
_WHY = re.compile(r"open failed: (?:connect failed: )?([A-Za-z ]{3,60})")


@dataclass(frozen=True)
class Known:
    """What a jump host takes a name for. place: the line of /etc/hosts that says so, 0: none."""

    addresses: tuple[str, ...]
    place: int = 0


def of_names(
    told: SshFailure,
    way: Way,
    config: Path | None,
    *,
    words: str = "",
    address: str | None = None,
    console: Sequence[str] = (),
) -> SshFailure:
    """The same failure, with what its jump host takes the name for. It is to blame where that is
    known to be another address than the host's, or where it does not know the name at all.

    words: of ssh; address: the host's, as the fleet's file has it; console: starts a root's shell
    on the host by another way.
    """
    hop, name = told.about, way.address
    if not name or _is_address(name):
        return told
    known = asked(hop, name, config)
    if known is None:
        return told
    why = _WHY.search(f"{words}\n{told.text}")
    said = f": {why[1].strip()}" if why else ""
    if not known.addresses:
        text = f"the jump host {hop} does not know the name {name}, by which it is to lead on{said}"
        return replace(told, text=text, cause="jump-name")
    where = f" (/etc/hosts there, line {known.place})" if known.place else ""
    text = (
        f"the jump host {hop} takes {name} for {listed(known.addresses)}{where}, and gets no way "
        f"there{said}"
    )
    found = replace(told, text=text)
    if address and _is_address(address) and address not in known.addresses:
        text = f"{text}; it is {address} by the fleet's file"
        return replace(found, text=text, cause="jump-name")
    if console:
        seen = told_by(console, found, "", way.port, known.addresses[0])
        if seen.link is not None and seen.link.code == "new-address":
            return replace(seen, cause="jump-name")
        if seen.link is not None:
            return seen
    own = [each for each in addresses_of(name) if each != name]
    if own and not {*own} & {*known.addresses}:
        # It may be another network that is meant there.
        text = f"{text}; this machine takes it for {listed(own)}"
    return replace(found, text=text)


def asked(hop: str, name: str, config: Path | None) -> Known | None:
    """What a jump host takes a name for; None: it did not tell."""
    line = shell_line(
        "getent ahosts {name}; echo {mark}; grep -nwF -e {name} /etc/hosts", name=name, mark=_MARK
    )
    own = None if config is None else str(config)
    argv = ssh_argv(hop, own, patience_s=_TRY_S, shared=False)
    done = run_here(*argv, line, limit_s=_LIMIT_S)
    before, found, behind = (done.stdout if done else "").partition(f"{_MARK}\n")
    # A shell without getent says nothing of names.
    if not found or done is None or "not found" in done.stderr:
        return None
    first = (line.partition(" ")[0] for line in before.splitlines())
    addresses = tuple(dict.fromkeys(one_line(each) for each in first if _is_address(each)))
    lines = (_LINE.match(each) for each in behind.splitlines())
    places = (int(each[1]) for each in lines if each and each[2] in addresses)
    return Known(addresses, next(places, 0))


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(text.partition("%")[0]) is not None
    return False
