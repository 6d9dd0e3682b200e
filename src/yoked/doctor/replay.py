"""An examination as JSON, and back: checks give the same findings of either.

Keys are the fields of `yoked.records.examination`; `version` is that of this layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from yoked.core.schema import decode
from yoked.errors import YokedError
from yoked.records.examination import Dial, Examination, HostSeen
from yoked.records.host_rules import FACTS, HEALTH, STOOD
from yoked.records.network_rules import INTERFACES
from yoked.records.rules import (
    address,
    count,
    each,
    fields,
    flag,
    interface,
    label,
    line,
    mac,
    named,
    number,
    optional,
    path,
    port,
    program,
    reread,
    ssh_name,
    symbol,
    text,
    user,
    variable,
    version,
    word,
)
from yoked.records.torch_rules import TORCH

VERSION = 1
# An entry of yoked.toml.
_WANTED = fields(
    {
        "name": ssh_name,
        "ranks": count,
        "device": word,
        "interface": interface,
        "address": address,
        "python": program,
        "console": each(text),
    }
)
_LINES = ("unsorted", "file_times", "local_time", "own", "left", "named", "left_named",
          "left_folders", "broken", "special", "links", "misnamed", "pointers", "extensions",
          "remarks", "growing", "dead_links", "sent_links")  # fmt: skip
_CONTROLLER = fields(
    {
        "hostname": label,
        "python": version,
        "yoked": version,
        "torch": version,
        "ssh": label,
        "ssh_path": path,
        "ssh_prints": text,
        "ssh_settings_s": number,
        "state": path,
        "fleet": path,
        "ssh_config": path,
        "openssl": path,
        "certificates": text,
        "shadows": each(path),
        "programs": each(path),
        "modules": each(variable),
        "plain": each(variable),
        **dict.fromkeys(_LINES, each(line)),
        "asks": named(word, named(line, line)),
        "beside": each(
            fields(
                {
                    "module": label,
                    "file": line,
                    "kind": word,
                    "python": version,
                    "arch": word,
                    "foreign": flag,
                    "older": flag,
                },
                needed=("module", "file", "kind"),
            )
        ),
        "left_beside": each(line),
        "miscased": named(variable, line),
        "refused": each(text),
        "set_here": each(variable),
        "damaged": named(line, line),
        "lost": named(ssh_name, each(address)),
        "met": named(ssh_name, mac),
        "stood": STOOD,
        "time_s": number,
    }
)
_DIALLED = fields(
    {
        "source": ssh_name,
        "target": ssh_name,
        "interface": interface,
        "address": address,
        "port": port,
        "answered_by": line,
        "error": symbol,
        "error_text": line,
        "source_address": address,
        "arrived_from": address,
    },
    needed=("source", "target", "interface", "address", "port"),
    strict=("answered_by", "error"),
    more=True,
)
_VERSIONS = named(word, version)
_FOLDERS = named(word, path)
_DAMAGED = named(line, line)


def to_json(examination: Examination) -> dict[str, Any]:
    """An examination as plain data for `json.dumps`."""
    return {"version": VERSION, **_plain(dataclasses.asdict(examination))}


def from_json(content: Any, *, where: str = "the examination") -> Examination:
    """The examination in what `json.loads` gave. where: the file, for the error.

    Fields that this version does not know are passed over, and those that are missing have their
    defaults. Raises YokedError for what is no examination, or one of another version.
    """
    fix = "yoked doctor --bundle FILE    writes one"
    version = content.get("version") if isinstance(content, Mapping) else None
    if version != VERSION:
        raise YokedError(
            f"{where} has version {version!r}; this yoked reads version {VERSION}", fix=fix
        )
    try:
        examination: Examination = decode(Examination, content)
        return _read_words(examination)
    except (ValueError, OverflowError) as problem:
        raise YokedError(f"{where} is damaged: {problem}", fix=fix) from problem


def _read_words(seen: Examination) -> Examination:
    """The same with what hosts have said as a look would have taken it: others may have written it.

    Raises OddError for a host's name that is none.
    """
    odd: dict[str, list[str]] = {host.name: [] for host in seen.hosts}
    dials = tuple(each for each in seen.dials if _is_dial(each, odd))
    return dataclasses.replace(
        seen,
        hosts=tuple(_read_host(host, odd[host.name]) for host in seen.hosts),
        dials=dials,
        need=dataclasses.replace(
            seen.need,
            versions=reread(_VERSIONS, "need", seen.need.versions, [], {}),
            damaged=reread(_DAMAGED, "need", seen.need.damaged, [], {}),
            folders=reread(_FOLDERS, "need", seen.need.folders, [], {}),
        ),
        controller=reread(_CONTROLLER, "controller", seen.controller, [], {}),
    )


def _is_dial(dial: Dial, odd: Mapping[str, list[str]]) -> bool:
    """Whether a dial is one between these hosts, in words that can be."""
    if not {dial.source, dial.target} <= odd.keys():
        return False
    places: list[str] = []
    found = reread(_DIALLED, "dial", dataclasses.asdict(dial), places, None)
    odd[dial.source].extend(places)
    return found is not None and not places


def _read_host(host: HostSeen, odd: list[str]) -> HostSeen:
    odd += host.odd
    failure = host.failure
    return dataclasses.replace(
        host,
        name=ssh_name(host.name, "name", odd),
        wanted=reread(_WANTED, "wanted", host.wanted, odd, {}),
        # Lines to paste are made anew of what was seen, and not taken from a file.
        failure=failure
        and dataclasses.replace(
            failure,
            fix=(),
            user=reread(optional(user), "failure.user", failure.user, odd, None),
            about=reread(line, "failure.about", failure.about, odd, ""),
        ),
        facts=reread(FACTS, "facts", host.facts, odd, {}),
        interfaces=tuple(reread(INTERFACES, "interfaces", host.interfaces, odd, ())),
        interfaces_later=tuple(
            reread(INTERFACES, "interfaces_later", host.interfaces_later, odd, ())
        ),
        health=reread(HEALTH, "health", host.health, odd, {}),
        torch=host.torch and reread(TORCH, "torch", host.torch, odd, None),
        odd=tuple(dict.fromkeys(odd)),
    )


def _plain(value: Any) -> Any:
    """Lists for tuples, and texts for keys: what JSON makes of them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
