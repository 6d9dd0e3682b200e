"""yoked.toml: find it, read it, check it, write it.

What is wrong in it is told with its line and the key that was probably meant.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from yoked.core.faults import fault
from yoked.core.fs import backup_name, write_bytes
from yoked.core.names import path_word
from yoked.core.patterns import MOST_PATTERNS, pattern_flaw
from yoked.errors import FleetError
from yoked.fleet.model import HERE, LEAST_PRIORITY, Device, Fleet, Host, Notify
from yoked.fleet.trust import require_trusted
from yoked.records.rules import CONTROL, INTERFACE, SSH_NAME

FILE_NAME = "yoked.toml"
# More than any machine has cores.
_MOST_RANKS = 4096
# Where in the file: ("host", 1, "rank").
_Place = tuple[str | int, ...]


# What is wrong with a value, as it goes on behind the name of its key; None: nothing.
_Check = Callable[[object], str | None]
_Flaw = tuple[_Place, str]


def _filled(value: object) -> str | None:
    if not isinstance(value, str):
        return f" must be a string, not {value!r}"
    if CONTROL.search(value):
        return f": {value!r} has a control character"
    return None if value.strip() else ": must not be empty"


def _path(value: object) -> str | None:
    flaw = _filled(value)
    try:
        Path(str(value)).expanduser()
    except RuntimeError:
        return flaw or f": there is no such home as that of {value!r}"
    return flaw


def _text(fits: Callable[[str], object], what: str) -> _Check:
    """A check of a string. what: is said of one that does not fit."""

    def check(value: object) -> str | None:
        if not isinstance(value, str):
            return _filled(value)
        return None if fits(value) else f": {value!r} {what}"

    return check


def _is_address(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def _ranks(value: object) -> str | None:
    # In Python True is a number too.
    if not isinstance(value, int) or isinstance(value, bool):
        return f" must be a whole number, not {value!r}"
    return (
        None if 1 <= value <= _MOST_RANKS else f" must be 1 to {_MOST_RANKS:,}, not {value!r:.40}"
    )


def _nice(value: object) -> str | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LEAST_PRIORITY
    return None if fits else f" must be 0 to {LEAST_PRIORITY}, not {value!r:.40}"


def _device(value: object) -> str | None:
    *others, last = map(repr, get_args(Device))
    if value in get_args(Device):
        return None
    return f" must be {', '.join(others)} or {last}, not {value!r}"


def _url(value: object) -> str | None:
    """It does not repeat the value, which may be a secret."""
    if not isinstance(value, str):
        return " must be a string"
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not value.isascii() or not value.isprintable() or " " in value:
        return ": no URL that begins with https:// or http://"
    if parts.username is not None:
        return ": a user or password in it is not sent; a command can do that"
    return None


def _command(value: object) -> str | None:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        return ' must be a list of words, as in ["notify-send", "yoked"]'
    return next((flaw for word in value[:1] if (flaw := _filled(word)) is not None), None)


def _patterns(value: object) -> str | None:
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if not isinstance(value, list) or not is_list or len(value) > MOST_PATTERNS:
        return f' must be a list of at most {MOST_PATTERNS} patterns, as in ["weights/*.bin"]'
    told = ((pattern, pattern_flaw(pattern)) for pattern in value)
    return next((f": {pattern!r} {flaw}" for pattern, flaw in told if flaw), None)


_FLEET: Mapping[str, _Check] = {"name": _filled, "ssh_config": _path}
_HOST: Mapping[str, _Check] = {
    # ssh would take a leading hyphen for an option.
    "name": _text(
        SSH_NAME.fullmatch,
        "is no name for ssh: it is empty, begins with -, or has a blank or a sign that shells take "
        "for their own",
    ),
    "ranks": _ranks,
    "device": _device,
    "interface": _text(
        INTERFACE.fullmatch, "is no interface's name: 1 to 15 letters, digits and any of ._:@-"
    ),
    "address": _text(_is_address, "is no IP address"),
    "python": _filled,
    "nice": _nice,
    "console": _command,
}
_NOTIFY: Mapping[str, _Check] = {"url": _url, "command": _command}
_FILES: Mapping[str, _Check] = {"include": _patterns}
_TABLES = ("fleet", "notify", "files", "host")


def find_fleet(named: Path | None) -> Path | None:
    """The fleet's file: the one that is named, else yoked.toml of this folder, else None.

    A dot is this machine, which needs no file, as it is a host's name in one.

    Raises FleetError when the named one is not there.
    """
    if named == Path(HERE):
        return None
    if named is None:
        named = Path(FILE_NAME)
        # One that leads nowhere, or is a folder, is no wish for this machine alone.
        if not os.path.lexists(named):
            return None
    if named.is_dir():
        if not (named / FILE_NAME).is_file():
            raise fault("fleet-missing", path=named / FILE_NAME)
        raise FleetError(
            f"{named} is a folder, and no fleet's file",
            fix=f"name the file in it: {named / FILE_NAME}",
        )
    if not named.is_file():
        raise fault("fleet-missing", path=named.resolve() if named.is_symlink() else named)
    return named


def open_fleet(named: Path | None) -> Fleet:
    """The fleet of a file, or this machine alone where none is named and none is here."""
    path = find_fleet(named)
    if path is None:
        # A dot was named although a file is here: that is of other hosts.
        return Fleet("here", (Host(HERE),), named or Path.cwd() / FILE_NAME)
    return load_fleet(path)


def load_fleet(path: Path) -> Fleet:
    """The fleet in a file, once a person trusts what it has run. Raises FleetError."""
    fleet = read_fleet(path)
    return replace(fleet, agreed=require_trusted(fleet))


def read_fleet(path: Path) -> Fleet:
    """The fleet in a file. Raises FleetError with all that is wrong, each with its line.

    Nothing of it is to be run before `require_trusted` or `remember`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
        flaws = list(_flaws(raw))
    except OSError as problem:
        raise fault("fleet-unreadable", path=path, reason=problem.strerror) from problem
    except UnicodeDecodeError as problem:
        raise FleetError(f"{path} is not UTF-8 text", fix=f"file {path_word(path)}") from problem
    except (ValueError, RecursionError) as problem:
        # The library has no error of its own for numbers of 5,000 digits or 1,000 brackets.
        raise FleetError(f"{path} is not TOML: {problem}", fix="see https://toml.io") from problem
    if flaws:
        lines = [f"{path}:{_line(text, place)}: {what}" for place, what in flaws]
        raise FleetError("\n".join(lines), fix=f"mend {path}")
    return _fleet(raw, path)


def _fleet(raw: Mapping[str, Any], path: Path) -> Fleet:
    table = raw.get("fleet", {})
    config = table.get("ssh_config")
    return Fleet(
        name=table.get("name") or path.stem,
        hosts=tuple(_host(entry) for entry in raw["host"]),
        path=path,
        ssh_config=None if config is None else path.parent / Path(config).expanduser(),
        notify=_notify(raw.get("notify")),
        include=tuple(raw.get("files", {}).get("include", ())),
    )


def _notify(table: Mapping[str, Any] | None) -> Notify | None:
    if table is None:
        return None
    return Notify(url=table.get("url"), command=tuple(table.get("command", ())))


def _host(entry: Mapping[str, Any]) -> Host:
    address = entry.get("address")
    return Host(
        **{
            **entry,
            "address": None if address is None else str(ip_address(address)),
            "console": tuple(entry.get("console", ())),
        }
    )


def _flaws(raw: Mapping[str, Any]) -> Iterator[_Flaw]:
    """All that is wrong in the file, each with its place."""
    for key in raw:
        if key not in _TABLES:
            yield (key,), f"unknown key {key!r}; {_nearest(key, _TABLES)}"
    hosts = raw.get("host")
    for name, checks in (("fleet", _FLEET), ("notify", _NOTIFY), ("files", _FILES)):
        table = raw.get(name, {})
        if isinstance(table, dict):
            where = "" if name == "fleet" else f" of {name}"
            yield from _table_flaws(table, checks, (name,), where)
        else:
            yield (name,), f"{name} must be written as [{name}]"
    notify = raw.get("notify")
    if isinstance(notify, dict) and len(notify.keys() & _NOTIFY.keys()) != 1:
        yield ("notify",), "notify has one of two keys: url or command"
    if hosts is None:
        yield ("host",), 'there is no host: write [[host]], and below it name = "..."'
    elif not isinstance(hosts, list) or not all(isinstance(each, dict) for each in hosts):
        yield ("host",), "host must be written as [[host]]"
    elif not hosts:
        yield ("host",), "a fleet needs at least one [[host]]"
    else:
        yield from _host_flaws(hosts)


def _host_flaws(hosts: list[dict[str, Any]]) -> Iterator[_Flaw]:
    seen: list[object] = []
    for number, host in enumerate(hosts):
        name = host.get("name")
        where = f" of host {name if isinstance(name, str) else f'number {number + 1}'}"
        place = ("host", number)
        yield from _table_flaws(host, _HOST, place, where)
        if name is None:
            yield (*place, "name"), f'there is no name{where}: write name = "..."'
        elif name in seen:
            what = f"there are two hosts {name}; for more ranks on one, write `ranks = 2`"
            yield (*place, "name"), what
        seen.append(name)


def _table_flaws(
    table: Mapping[str, Any], checks: Mapping[str, _Check], place: _Place, where: str
) -> Iterator[_Flaw]:
    for key, value in table.items():
        if key not in checks:
            yield (*place, key), f"unknown key {key!r}{where}; {_nearest(key, checks)}"
        elif (what := checks[key](value)) is not None:
            yield (*place, key), f"{key}{where}{what}"


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"


_HEADER = re.compile(r"\s*\[\[?\s*([\w-]+)\s*\]\]?")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")


def _line(text: str, place: _Place) -> int:
    """The line that has the key, else that where its table begins, else the first."""
    found, table, hosts = 1, (), -1  # type: int, _Place, int
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            hosts += header[1] == "host"
            table = (header[1], hosts) if header[1] == "host" else (header[1],)
            if place[: len(table)] == table:
                found = number
        elif (key := _KEY.match(line)) and (*table, key[1]) == place[: len(table) + 1]:
            return number
    return found


def _from(folder: Path, path: Path) -> Path:
    """A path as it is read from a file in a folder: relative where it lies there."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path.absolute()


def format_fleet(fleet: Fleet, comments: Mapping[str, str]) -> str:
    """A fleet as yoked.toml. comments: about each host, by its name; hosts' own words, which stay
    within a line of comment.
    """
    lines = ["# The hosts that train together, in the order of their ranks.", "[fleet]"]
    lines.append(f"name = {_toml(fleet.name)}")
    if fleet.ssh_config is not None:
        lines.append(f"ssh_config = {_toml(str(_from(fleet.path.parent, fleet.ssh_config)))}")
    if fleet.notify is not None:
        lines += ["", "[notify]"]
        if fleet.notify.url is not None:
            lines.append(f"url = {_toml(fleet.notify.url)}")
        else:
            lines.append(f"command = {_toml(fleet.notify.command)}")
    if fleet.include:
        lines += ["", "[files]", f"include = {_toml(fleet.include)}"]
    for host in fleet.hosts:
        lines.append("")
        if host.name in comments:
            lines.append(f"# {CONTROL.sub(' ', comments[host.name])}")
        lines.append("[[host]]")
        values = {
            "name": host.name,
            "ranks": host.ranks,
            "device": None if host.device == "auto" else host.device,
            "interface": host.interface,
            "address": host.address,
            "python": host.python,
            "nice": host.nice or None,
            "console": host.console or None,
        }
        lines += [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: str | int | tuple[str, ...]) -> str:
    # A JSON string is a TOML string, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_fleet(path: Path, text: str, *, force: bool = False) -> Path | None:
    """Write the file, whole or not at all.

    A file that is there is left alone, unless forced: then it is kept beside the new one, and its
    new name returned. Raises FleetError.
    """
    require_free(path, force=force)
    kept, mode = None, 0o644
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            # Who closed it to others may have a reason: its [notify] can hold a secret.
            mode &= path.stat().st_mode | 0o600
            kept = Path(shutil.copy2(path, backup_name(path)))
        write_bytes(path, text.encode(), mode=mode)
    except UnicodeEncodeError as problem:
        raise FleetError(
            f"{path} cannot be written: it would name a file whose name is no UTF-8 text",
            fix="give that file another name",
        ) from problem
    except OSError as problem:
        raise fault("fleet-unwritable", path=path, reason=problem.strerror) from problem
    return kept


def require_free(path: Path, *, force: bool) -> None:
    """Raise FleetError when there is a file that must not be replaced, or a folder."""
    require_no_folder(path)
    if path.exists() and not force:
        raise fault("fleet-exists", path=path, kept=backup_name(path).name)


def require_no_folder(path: Path) -> None:
    """Raise FleetError when the file that is to be written is a folder."""
    if path.is_dir():
        raise FleetError(
            f"{path} is a folder, and no fleet's file", fix=f"--fleet {path_word(path / FILE_NAME)}"
        )
