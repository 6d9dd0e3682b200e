"""yoked.toml: find it, read it, check it, write it.

What is wrong in it is told with its line and the key that was probably meant.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from yoked.errors import FleetError
from yoked.fleet.model import HERE, Device, Fleet, Host

FILE_NAME = "yoked.toml"
# IFNAMSIZ - 1, Linux include/uapi/linux/if.h.
_DEVICE_LENGTH = 15
# Where in the file: ("host", 1, "rank").
_Place = tuple[str | int, ...]


def _refuse(what: str) -> PydanticCustomError:
    return PydanticCustomError("value", "{what}", {"what": what})


def _host_name(value: str) -> str:
    # ssh would take a leading hyphen for an option.
    if not value or value.startswith("-") or re.search(r"[\s\x00-\x1f]", value):
        raise _refuse(f"{value!r} is no name for ssh: it is empty, has a blank or begins with -")
    return value


def _interface(value: str) -> str:
    if not re.fullmatch(r"[^\s/]+", value) or len(value) > _DEVICE_LENGTH:
        raise _refuse(f"{value!r} is no interface's name: 1 to 15 characters, no blank, no slash")
    return value


def _address(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError as problem:
        raise _refuse(f"{value!r} is no IP address") from problem


def _filled(value: str) -> str:
    if not value.strip():
        raise _refuse("must not be empty")
    return value


_Filled = Annotated[str, AfterValidator(_filled)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Fleet(_Table):
    name: _Filled | None = None
    ssh_config: _Filled | None = None


class _Host(_Table):
    name: Annotated[str, AfterValidator(_host_name)]
    ranks: Annotated[int | None, Field(ge=1)] = None
    device: Device = "auto"
    interface: Annotated[str, AfterValidator(_interface)] | None = None
    address: Annotated[str, AfterValidator(_address)] | None = None
    python: _Filled | None = None


class _File(_Table):
    fleet: _Fleet = _Fleet()
    host: Annotated[list[_Host], Field(min_length=1)]


_TABLES: dict[str, type[BaseModel]] = {"fleet": _Fleet, "host": _Host}


def find_fleet(named: Path | None) -> Path | None:
    """The fleet's file: the one that is named, else yoked.toml of this folder, else None.

    A dot is this machine, which needs no file, as it is a host's name in one.

    Raises FleetError when the named one is not there.
    """
    if named is None:
        here = Path(FILE_NAME)
        return here if here.is_file() else None
    if named == Path(HERE):
        return None
    if not named.is_file():
        raise FleetError(
            f"there is no file {named}", fix=f"yoked init HOST... --fleet {named}    writes it"
        )
    return named


def open_fleet(named: Path | None) -> Fleet:
    """The fleet of a file, or this machine alone where none is named and none is here."""
    path = find_fleet(named)
    if path is None:
        return Fleet("here", (Host(HERE),), Path.cwd() / FILE_NAME)
    return load_fleet(path)


def load_fleet(path: Path) -> Fleet:
    """The fleet in a file. Raises FleetError with all that is wrong, each with its line."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except OSError as problem:
        raise FleetError(
            f"{path} cannot be read: {problem.strerror}", fix=f"ls -l {path}"
        ) from problem
    except UnicodeDecodeError as problem:
        raise FleetError(f"{path} is not UTF-8 text", fix=f"file {path}") from problem
    except tomllib.TOMLDecodeError as problem:
        raise FleetError(f"{path} is not TOML: {problem}", fix="see https://toml.io") from problem
    try:
        parsed = _File.model_validate(raw)
    except ValidationError as problem:
        flaws = [(each["loc"], _words(each, raw)) for each in problem.errors()]
        raise _flawed(path, text, flaws) from problem
    if doubles := _doubles(parsed.host):
        raise _flawed(path, text, doubles)
    return _fleet(parsed, path)


def _fleet(parsed: _File, path: Path) -> Fleet:
    config = parsed.fleet.ssh_config
    return Fleet(
        name=parsed.fleet.name or path.stem,
        hosts=tuple(Host(**host.model_dump()) for host in parsed.host),
        path=path,
        ssh_config=None if config is None else path.parent / Path(config).expanduser(),
    )


def _doubles(hosts: list[_Host]) -> list[tuple[_Place, str]]:
    seen: set[str] = set()
    flaws: list[tuple[_Place, str]] = []
    for number, host in enumerate(hosts):
        if host.name in seen:
            flaws.append(
                (
                    ("host", number, "name"),
                    f"there are two hosts {host.name}; for more ranks on one, write `ranks = 2`",
                )
            )
        seen.add(host.name)
    return flaws


def _flawed(path: Path, text: str, flaws: list[tuple[_Place, str]]) -> FleetError:
    lines = [f"{path}:{_line(text, place)}: {what}" for place, what in flaws]
    return FleetError("\n".join(lines), fix=f"mend {path}")


def _words(error: ErrorDetails, raw: Mapping[str, Any]) -> str:
    """What pydantic found, in words for people."""
    place, kind = error["loc"], error["type"]
    where = _owner(place, raw)
    # Of a union like `int | None`, the branch is the last part of the place.
    keys = [part for part in place if isinstance(part, str)]
    key = keys[0] if len(keys) == 1 else keys[1]
    if kind == "extra_forbidden":
        known = (_TABLES[keys[0]] if len(keys) > 1 else _File).model_fields
        return f"unknown key {key!r}{where}; {_nearest(key, list(known))}"
    if kind == "missing":
        example = '[[host]], and below it name = "..."' if key == "host" else f'{key} = "..."'
        return f"there is no {key}{where}: write {example}"
    if kind == "too_short":
        return "a fleet needs at least one [[host]]"
    if kind in ("list_type", "model_type", "model_attributes_type"):
        return f"{keys[0]} must be written as {'[[host]]' if keys[0] == 'host' else '[fleet]'}"
    if kind == "value":
        return f"{key}{where}: {error['msg']}"
    if kind == "greater_than_equal":
        return f"{key}{where} must be {error['ctx']['ge']} or more, not {error['input']!r}"
    wanted = error["msg"].replace("Input should be", "must be")
    return f"{key}{where} {wanted}, not {error['input']!r}"


def _owner(place: _Place, raw: Mapping[str, Any]) -> str:
    """` of host i9`, for what is wrong inside of a host."""
    if len(place) < 2 or not isinstance(place[1], int):
        return ""
    entry = raw["host"][place[1]]
    name = entry.get("name") if isinstance(entry, dict) else None
    return f" of host {name}" if isinstance(name, str) else f" of host number {place[1] + 1}"


def _nearest(key: str, known: list[str]) -> str:
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


def format_fleet(fleet: Fleet, comments: Mapping[str, str]) -> str:
    """A fleet as yoked.toml. comments: a line about each host, by its name."""
    lines = ["# The hosts that train together, in the order of their ranks.", "[fleet]"]
    lines.append(f"name = {_quoted(fleet.name)}")
    if fleet.ssh_config is not None:
        lines.append(f"ssh_config = {_quoted(str(fleet.ssh_config))}")
    for host in fleet.hosts:
        lines += ["", *([f"# {comments[host.name]}"] if host.name in comments else []), "[[host]]"]
        lines.append(f"name = {_quoted(host.name)}")
        if host.ranks is not None:
            lines.append(f"ranks = {host.ranks}")
        values = {
            "device": None if host.device == "auto" else host.device,
            "interface": host.interface,
            "address": host.address,
            "python": host.python,
        }
        lines += [f"{key} = {_quoted(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    # A JSON string is a TOML string, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_fleet(path: Path, text: str, *, force: bool = False) -> Path | None:
    """Write the file, whole or not at all.

    A file that is there is left alone, unless forced: then it is kept beside the new one, and its
    new name returned. Raises FleetError.
    """
    require_free(path, force=force)
    kept = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            if path.exists():
                kept = Path(shutil.copy2(path, path.with_name(f"{path.name}.old")))
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise FleetError(
            f"{path} cannot be written: {problem.strerror}", fix="name another with --fleet FILE"
        ) from problem
    return kept


def require_free(path: Path, *, force: bool) -> None:
    """Raise FleetError when there is a file that must not be replaced."""
    if path.exists() and not force:
        raise FleetError(
            f"{path} is there already, and may be somebody's work",
            fix=(
                f"yoked hosts --fleet {path}    shows its hosts",
                f"--force    keeps it as {path.name}.old, and takes over ranks, device and python",
            ),
        )
