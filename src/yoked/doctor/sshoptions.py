"""Which setting of ssh here keeps an agent from coming: tried, by leaving it out.

Whatever a setting does, it is known by this: with a copy of ssh's configuration that lacks its
lines, a command runs on the host, and with the configuration as it is, none does. So no list is
needed of settings that do harm. Source: ssh_config(5).
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from yoked.agent.ask import named_values
from yoked.core.parallel import at_once
from yoked.doctor.bundle import without_secrets
from yoked.doctor.sshinside import run_here
from yoked.records.examination import SshFailure, SshKind
from yoked.remote.ssh import ssh_argv
from yoked.remote.transport import kill_way
from yoked.text import one_line, shortened
from yoked.units import listed

# They lead to a host and let somebody in: without them no try would come there.
_LEADS = frozenset({
    "host", "match", "include", "hostname", "port", "user", "proxycommand", "proxyjump",
    "proxyusefdpass", "identityfile", "certificatefile", "identityagent", "identitiesonly",
    "pkcs11provider", "securitykeyprovider", "userknownhostsfile", "globalknownhostsfile",
    "knownhostscommand", "hostkeyalias", "stricthostkeychecking", "ignoreunknown",
})  # fmt: skip
# What yoked sets itself decides already.
_SET_HERE = frozenset({
    "batchmode", "connecttimeout", "serveraliveinterval", "serveralivecountmax", "localforward",
    "remoteforward", "dynamicforward", "clearallforwardings", "permitlocalcommand", "localcommand",
    "tunnel", "forwardagent", "forwardx11", "forwardx11trusted", "gssapidelegatecredentials",
    "remotecommand", "controlmaster", "controlpath", "controlpersist", "requesttty",
})  # fmt: skip
# By how far ssh came, what can be why; a kind that is not named: any.
_OF_WAY = frozenset({
    "addressfamily", "bindaddress", "bindinterface", "ipqos", "tcpkeepalive", "compression",
    "kexalgorithms", "ciphers", "macs", "rekeylimit", "canonicalizehostname",
})  # fmt: skip
_OF_LOGIN = frozenset({
    "preferredauthentications", "pubkeyauthentication", "pubkeyacceptedalgorithms",
    "pubkeyacceptedkeytypes", "gssapiauthentication", "hostbasedauthentication",
    "requiredrsasize", "kbdinteractiveauthentication", "numberofpasswordprompts",
})  # fmt: skip
_ONLY: Mapping[SshKind, frozenset[str]] = {
    **dict.fromkeys(("timeout", "refused", "unreachable", "unresolved"), _OF_WAY),
    "denied": _OF_LOGIN,
}
# Other names of the same setting: ssh takes both, and tells the first.
_SAME = {"pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms"}
_KEYWORD = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(\S.*?)\s*")
_TRY_S, LIMIT_S = 3, 5.0
_LEAST_S, _PATIENCE = 1.0, 4
# An sshd turns away who comes as one of more than ten at once.
_AT_ONCE = 6
# All that an agent may send has to come back as it was.
_SENT = bytes(range(256)) * 16 + b"\n"
_LAST = b"yoked-is-in\n"
_MOST_FILES = 60


@dataclass(frozen=True)
class Line:
    """A line of ssh's configuration. path: its file; number: counted from 1."""

    path: Path
    number: int
    name: str
    words: str


class Copies:
    """Copies of ssh's configuration, in a folder, that lack some of its lines."""

    def __init__(self, folder: Path, config: Path | None) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        user, system = Path("~/.ssh").expanduser(), Path("/etc/ssh")
        self._roots = [(config, user)] if config else [
            (user / "config", user), (system / "ssh_config", system)
        ]  # fmt: skip
        self._texts: dict[Path, list[str]] = {}
        for path, base in self._roots:
            self._read(path, base)

    def _read(self, path: Path, base: Path) -> None:
        if path in self._texts or len(self._texts) >= _MOST_FILES:
            return
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return
        self._texts[path] = text.splitlines()
        for line in self._texts[path]:
            for each in _included(line, base):
                self._read(each, base)

    def lines(self) -> Iterator[Line]:
        """All that set something."""
        for path, text in self._texts.items():
            for number, line in enumerate(text, start=1):
                if found := _KEYWORD.fullmatch(line):
                    name = found[1].lower()
                    yield Line(path, number, _SAME.get(name, name), line.strip())

    def without(self, left_out: Sequence[Line]) -> Path:
        """The copy that lacks these lines."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        places = {path: folder / str(number) for number, path in enumerate(self._texts)}
        gone = {(each.path, each.number) for each in left_out}
        for path, text in self._texts.items():
            base = self._base_of(path)
            kept = [
                _with_copies(line, base, places)
                for number, line in enumerate(text, start=1)
                if (path, number) not in gone
            ]
            said = "\n".join((*kept, ""))
            places[path].write_text(said, encoding="utf-8", errors="surrogateescape")
        whole = folder / "whole"
        roots = [places[path] for path, _ in self._roots if path in places]
        whole.write_text("".join(f'Include "{each}"\n' for each in roots), encoding="utf-8")
        return whole

    def _base_of(self, path: Path) -> Path:
        """Where files that another includes lie, if no folder is named."""
        is_system = len(self._roots) > 1 and path.is_relative_to(self._roots[1][1])
        return self._roots[-1 if is_system else 0][1]


def _included(line: str, base: Path) -> list[Path]:
    """The files that a line of ssh's configuration includes."""
    found = _KEYWORD.fullmatch(line)
    if found is None or found[1].lower() != "include":
        return []
    paths = []
    for word in found[2].split():
        pattern = Path(word.strip('"')).expanduser()
        whole = pattern if pattern.is_absolute() else base / pattern
        with contextlib.suppress(OSError, ValueError):
            paths += sorted(whole.parent.glob(whole.name))
    return paths


def _with_copies(line: str, base: Path, places: Mapping[Path, Path]) -> str:
    """A line that includes files, with the copies in their place; any other as it is."""
    paths = _included(line, base)
    if not paths:
        return line
    return "Include " + " ".join(f'"{places[each]}"' for each in paths if each in places)


def of_options(told: SshFailure, host: str, config: Path | None) -> SshFailure:
    """The same failure, or the setting of ssh here without which a command runs on the host."""
    with tempfile.TemporaryDirectory(prefix="yoked-ssh-") as folder:
        copies = Copies(Path(folder), config)
        lines = _unusual(copies, host, told.kind)
        if not lines:
            return told
        began_s = time.monotonic()
        bare = [each for own in lines.values() for each in own]
        if not comes_in(host, copies.without(bare), LIMIT_S):
            return told
        # What works does so as soon as this; what hangs need not be waited for much longer.
        limit_s = min(LIMIT_S, _LEAST_S + _PATIENCE * (time.monotonic() - began_s))
        if comes_in(host, copies.without([]), limit_s):
            return told
        guilty = _guilty(copies, host, lines, limit_s)
    return _blamed(told, [each for name in guilty for each in lines[name]], config)


def _blamed(told: SshFailure, found: Sequence[Line], config: Path | None) -> SshFailure:
    named = listed(f"`{shortened(one_line(without_secrets(each.words)))}`"
                   f" ({_shown(each, config)}line {each.number})" for each in found)  # fmt: skip
    text = f"{told.text.rstrip('.')}; without {named} of ssh's settings here it comes in"
    first = found[0]
    numbers = ",".join(str(each.number) for each in found if each.path == first.path)
    # The configuration that ssh was given may be a copy.
    place = "" if first.path == config else str(first.path)
    return replace(told, kind="other", cause="option", text=text, about=f"{place}:{numbers}")


def _shown(line: Line, config: Path | None) -> str:
    return "" if line.path == config else f"{line.path}, "


def _unusual(copies: Copies, host: str, kind: SshKind) -> dict[str, list[Line]]:
    """By setting the lines that give it another value than ssh's own, for a host."""
    asked = copies.without([])
    own, usual = _told(host, str(asked)), _told(host, "none")
    names = [
        name
        for name, value in own.items()
        if value != usual.get(name)
        and name not in _LEADS | _SET_HERE
        and name in _ONLY.get(kind, {name})
    ]
    found: dict[str, list[Line]] = {}
    for name in names:
        lines = [each for each in copies.lines() if each.name == name]
        # One of a block that is not for this host changes nothing, also where no other is there.
        found[name] = [
            each
            for each in lines
            if _told(host, str(copies.without([line for line in lines if line != each]))).get(name)
            != usual.get(name)
        ]
    return {name: own_lines for name, own_lines in found.items() if own_lines}


def _told(host: str, config: str) -> dict[str, str]:
    """What ssh's settings are for a host; several values of one are told as one."""
    done = run_here("ssh", "-F", config, "-G", "--", host)
    found: dict[str, str] = {}
    for line in done.stdout.splitlines() if done and not done.returncode else ():
        for name, value in named_values(line.strip(), " ").items():
            found[name.lower()] = f"{found.get(name.lower(), '')} {value}".strip()
    return found


def _guilty(
    copies: Copies, host: str, lines: Mapping[str, Sequence[Line]], limit_s: float
) -> list[str]:
    """Of settings without which ssh comes in the one that has to go; or those, where no single one
    is enough.
    """
    names = list(lines)
    if len(names) == 1:
        return names

    def heals(left_out: Iterable[str]) -> bool:
        gone = [each for name in left_out for each in lines[name]]
        return comes_in(host, copies.without(gone), limit_s)

    def healing(parts: Sequence[Sequence[str]]) -> list[bool]:
        batches = (parts[start : start + _AT_ONCE] for start in range(0, len(parts), _AT_ONCE))
        return [each for batch in batches for each in at_once(heals, batch)]

    for name, is_so in zip(names, healing([[name] for name in names]), strict=True):
        if is_so:
            return [name]
    others = [[each for each in names if each != name] for name in names]
    needed = [name for name, is_so in zip(names, healing(others), strict=True) if not is_so]
    return needed if needed and heals(needed) else names


def comes_in(host: str, config: Path | None, limit_s: float, program: str | None = None) -> bool:
    """Whether a command runs there, and gets what is sent to it as it is. program: in the place of
    the ssh that PATH finds.
    """
    given = None if config is None else str(config)
    ssh, *rest = ssh_argv(host, given, patience_s=_TRY_S, shared=False)
    argv = [program or ssh, *rest]
    try:
        process = subprocess.Popen(
            [*argv, f"cat; echo {_LAST.decode().strip()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    with process:
        try:
            printed, _ = process.communicate(_SENT, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            kill_way(process)
    # What a start file prints comes first.
    return printed.endswith(_SENT + _LAST)
