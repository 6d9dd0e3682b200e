"""Values of a yoked.toml that run a program: a person agrees to each once, as with direnv.

`yoked runs` in a cloned repository reads that repository's yoked.toml. A ProxyCommand of its
ssh_config runs here, and its `python` on the hosts. What was agreed to is kept by the file's
path, in <state>/trusted/, one file each; other keys may change without a question.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import secrets
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from yoked.errors import FleetError
from yoked.fleet.model import Fleet
from yoked.paths import state_root
from yoked.text import one_line

Values = Mapping[str, str]


def values_of(fleet: Fleet) -> Values:
    """What a fleet's file has run, by its key. The one list of such keys: new ones belong here."""
    values = {}
    # ssh reads a person's own file anyway.
    own = Path.home() / ".ssh" / "config"
    if fleet.ssh_config is not None and fleet.ssh_config.resolve() != own.resolve():
        values["ssh_config"] = f"{fleet.ssh_config.resolve()} {_digest(fleet.ssh_config)}"
    for host in fleet.hosts:
        if host.python is not None:
            values[f"python of {host.name}"] = host.python
    return values


def require_trusted(fleet: Fleet) -> None:
    """Ask about values that nobody has agreed to yet.

    Raises FleetError when the answer is no, and where nobody is there to be asked.
    """
    values = values_of(fleet)
    known = _known(fleet.path)
    new = {key: value for key, value in values.items() if value not in known.get(key, ())}
    if not new:
        return
    lines = [f"{_owned(fleet.path)} names what yoked would run, and nobody has agreed to it yet:"]
    lines += [one_line(f"  {key} = {value}") for key, value in new.items()]
    # An answer that was piped in is nobody's, and a question that is not seen is none.
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write("\n".join([*lines, "Do you trust this file? [y/N] "]))
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            _keep(fleet.path, values)
            return
    raise FleetError(
        "\n".join(lines),
        fix=(
            f"look at {one_line(str(fleet.path))}, and at the ssh_config that it names",
            f"yoked trust {shlex.quote(one_line(str(fleet.path)))}    agrees to these values",
        ),
    )


def remember(fleet: Fleet) -> Values:
    """Agree to the values of a fleet's file, beside those of before; returns them.

    Raises FleetError when that cannot be kept.
    """
    values = values_of(fleet)
    if values:
        _keep(fleet.path, values)
    return values


def _keep(file: Path, values: Values) -> None:
    known = {key: list(before) for key, before in _known(file).items()}
    for key, value in values.items():
        if value not in known.setdefault(key, []):
            known[key].append(value)
    path = _entry(file)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _forget_files_that_are_gone(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as entry:
            json.dump({"path": str(file.resolve()), "values": known}, entry, indent=1)
        temporary.replace(path)
    except OSError as problem:
        raise FleetError(
            f"{path} cannot be written: {problem.strerror or problem}",
            fix=f"ls -ld {path.parent}    shows whose it is",
        ) from problem


def revoke(path: Path) -> bool:
    """Agree to nothing of a file any more; whether there was something."""
    entry = _entry(path)
    was_there = entry.is_file()
    entry.unlink(missing_ok=True)
    return was_there


def _known(path: Path) -> Mapping[str, list[str]]:
    """The values that were agreed to, by their key; nothing where that cannot be read."""
    entry = _read(_entry(path)) or {}
    values = entry.get("values")
    # Its name is a part of a hash, which another path may share.
    if entry.get("path") != str(path.resolve()) or not isinstance(values, dict):
        return {}
    return {
        key: [each for each in agreed if isinstance(each, str)]
        for key, agreed in values.items()
        if isinstance(agreed, list)
    }


def _read(entry: Path) -> dict[str, object] | None:
    try:
        # One that somebody else put there says nothing of what we agreed to.
        if entry.lstat().st_uid != os.geteuid():
            return None
        found = json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _entry(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return state_root() / "trusted" / f"{name[:32]}.json"


def _forget_files_that_are_gone(folder: Path) -> None:
    for entry in folder.glob("*.json"):
        said = (_read(entry) or {}).get("path")
        if not isinstance(said, str) or not Path(said).exists():
            with contextlib.suppress(OSError):
                entry.unlink()


def _digest(path: Path) -> str:
    try:
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return "(not there)"


def _owned(path: Path) -> str:
    """The path, with its owner where that is somebody else."""
    said = one_line(str(path))
    try:
        owner = path.stat().st_uid
    except OSError:
        return said
    if owner == os.geteuid():
        return said
    try:
        return f"{said}, a file of the user {pwd.getpwuid(owner).pw_name},"
    except KeyError:
        return f"{said}, a file of the user {owner},"
