"""Why a host lets no login in, as its own console tells: login_links.sh, which root runs there.

The host is reached by whatever is left: its keyboard, another account, `docker exec`. Sentences and
lines stand here, for the script and for findings alike: of a host's answer only codes, names of
files and a few words are taken.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from yoked.agent.settings import EACH, SETTINGS
from yoked.agent.tables import UNITS
from yoked.doctor.login_causes import LINKS, WORKS
from yoked.doctor.repairs.base import repair
from yoked.doctor.repairs.startfiles import leave_out_line
from yoked.doctor.sshinside import run_here
from yoked.records.examination import BrokenLink, Fix, SshFailure
from yoked.records.rules import CONTROL
from yoked.records.shell import as_made, path_word, quoted

_SCRIPT = Path(__file__).with_name("login_links.sh")
_LIMIT_S, _LONGEST = 60.0, 200
# Of the kernel's settings those that matter to a login.
_HOLDS_BACK = frozenset({"silent", "large", "breaks"})
_PRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_VALUES = ("user", "about", "file", "line")


def script(
    user: str,
    key: str = "",
    port: int | None = None,
    mark: str = "",
    addresses: Sequence[str] = (),
    shown: str = "",
) -> str:
    """login_links.sh for an account. key: the fingerprint of the key that is to let in, "" where
    that is not known; port, addresses: where ssh goes to. mark: begins the line for programs, if
    any is wanted. shown: the fingerprint of the host's key that ssh was shown and does not know.
    """
    bounds = ",".join(
        f"{each.name} {_bound(each.least)} {_bound(each.most)} {each.usual}"
        for each in SETTINGS
        if _HOLDS_BACK.intersection(each.harms) and EACH not in each.name and " " not in each.usual
    )
    known = {
        "user": user,
        "key": key,
        "port": port or "",
        "dialled": " ".join(addresses),
        "shown": shown,
        "mark": mark,
        "bounds": bounds,
        "units": " ".join(UNITS),
    }
    head = "\n".join(f"{name}={quoted(value)}" for name, value in known.items())
    return f"{head}\n{_say()}\n{_SCRIPT.read_text(encoding='utf-8')}"


def _bound(number: int | None) -> str:
    return "-" if number is None else str(number)


def _say() -> str:
    """The function by which the script has a cause and its fix in words."""
    named = {name: as_made(f"@{name}@") for name in _VALUES}
    places = {"host": as_made("this host"), "config": as_made("ssh's settings, where one logs in")}
    cases = [
        f"        {code}) cause={_word(link.cause.format(**named))} "
        f"fix={_word(link.fix(**named, **places))} ;;"
        for code, link in LINKS.items()
    ]
    return "\n".join(["say() {", '    case "$1" in', *cases, "    esac", "}"])


def _word(text: str) -> str:
    """A text as one word of a shell, in which @name@ stands for the value of a variable."""
    parts = re.split(r"@(user|about|file|line)@", text)
    return "".join(
        f'"${part}"' if number % 2 else quoted(part) for number, part in enumerate(parts) if part
    )


def sentence(failure: SshFailure) -> str:
    """The cause, in words, where a console told it."""
    return "" if failure.link is None else LINKS[failure.link.code].cause.format(**_of(failure))


@repair
def mend_link(host: str, failure: SshFailure, config: str = "~/.ssh/config") -> Fix:
    """The line for root's shell there, by another way than ssh; or for this machine, whose ssh has
    its hosts in the file config.
    """
    assert failure.link is not None
    link = LINKS[failure.link.code]
    if failure.link.code == "start-file":
        # It may be a part of a longer command.
        return replace(leave_out_line(host, failure.link.file, failure.link.line), root=True)
    # All values stand outside of quotes: none ends a program of sed's that is in them.
    words = link.fix(**_of(failure), host=host, config=path_word(config))
    return Fix("" if link.here else host, words, root=not link.here, by_hand=link.by_hand)


def _of(failure: SshFailure) -> dict[str, str]:
    link = failure.link
    assert link is not None
    about, file, line = link.about, link.file, str(link.line)
    return {"user": failure.user or "USER", "about": about, "file": file, "line": line}


def told_by(
    console: Sequence[str],
    told: SshFailure,
    key: str = "",
    port: int | None = None,
    address: str = "",
) -> SshFailure:
    """The same failure, with what a host's console says. console: starts a root's shell there; key
    and port: as of `script`; address: what ssh dials, or a name.
    """
    mark = f"yoked-{secrets.token_hex(8)}"
    shown = _PRINT.search(told.text) if told.kind == "host-key" else None
    told_script = script(
        told.user or "root", key, port, mark, addresses_of(address), shown[0] if shown else ""
    )
    done = run_here(*console, limit_s=_LIMIT_S, given=told_script)
    link = read(done.stdout, mark) if done else None
    if link is None:
        return told
    found = replace(told, link=link)
    if link.code != WORKS:
        return found
    text = f"{told.text.rstrip('.')}; as its console says, {sentence(found)}"
    is_kept_out = told.kind in ("timeout", "refused") and not told.cause
    return replace(told, text=text, cause="filtered" if is_kept_out else told.cause)


def addresses_of(name: str) -> tuple[str, ...]:
    """The addresses of a name, by this machine's resolver; empty where no program tells."""
    done = run_here("getent", "ahosts", name) if name else None
    lines = done.stdout.splitlines() if done else []
    found = []
    for each in (name, *(line.partition(" ")[0] for line in lines)):
        with contextlib.suppress(ValueError):
            found.append(str(ip_address(each.partition("%")[0])))
    return tuple(dict.fromkeys(found))


def read(printed: str, mark: str) -> BrokenLink | None:
    """What the script found. printed: foreign words."""
    for each in printed.splitlines():
        begin, *parts = each.split("\t")
        if begin == mark and len(parts) == 4 and parts[0] in LINKS:
            code, about, file, number = (CONTROL.sub("", part)[:_LONGEST] for part in parts)
            return BrokenLink(code, about, file, int(number) if number.isdecimal() else 0)
    return None
