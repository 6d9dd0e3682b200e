"""Values of a yoked.toml that run a program, or are told of runs: a person agrees to each once.

It is as with direnv. `yoked runs` in a cloned repository reads that repository's yoked.toml. A
ProxyCommand of its ssh_config and its `console` run here, and its `python` on the hosts. What was
agreed to is kept by the file's path, in <state>/trusted/, one file each; other keys may change
without a question.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from yoked.agent.ask import user_name
from yoked.core.faults import fault
from yoked.core.fs import read_json, write_bytes
from yoked.core.names import path_word
from yoked.errors import FleetError
from yoked.fleet.model import Fleet, Notify
from yoked.paths import home, private_folder, state_root
from yoked.text import one_line

Values = Mapping[str, str]
_MOST_CONFIG_BYTES = 1 << 20


def values_of(fleet: Fleet) -> Values:
    """What a fleet's file has run, by its key. The one list of such keys: new ones belong here."""
    return _values(fleet, _read_config(fleet))


def _values(fleet: Fleet, config: bytes | None) -> Values:
    values = {}
    if fleet.ssh_config is not None and not _is_own(fleet.ssh_config):
        digest = "(not there)" if config is None else f"sha256:{hashlib.sha256(config).hexdigest()}"
        values["ssh_config"] = f"{fleet.ssh_config.resolve()} {digest}"
    for host in fleet.hosts:
        if host.python is not None:
            values[f"python of {host.name}"] = host.python
        if host.console:
            values[f"console of {host.name}"] = shlex.join(host.console)
    if fleet.notify is not None:
        values |= _notify_values(fleet.notify)
    return values


def _notify_values(notify: Notify) -> Values:
    """A command runs on the host of rank 0; to a URL goes what became of a run.

    Of the URL its place alone is shown: who knows the rest may read along.
    """
    if notify.url is None:
        return {"command of notify": shlex.join(notify.command)}
    place = urlsplit(notify.url)
    digest = hashlib.sha256(notify.url.encode()).hexdigest()
    return {"url of notify": f"{place.scheme}://{place.netloc}/… sha256:{digest}"}


def require_trusted(fleet: Fleet) -> Path | None:
    """Ask about values that nobody has agreed to yet; returns the file that ssh is to read.

    It is a copy of what was agreed to: who may write into the folder of a yoked.toml could
    exchange its ssh_config between this look and ssh's. None: ssh's own.

    Raises FleetError when the answer is no, and where nobody is there to be asked.
    """
    config = _read_config(fleet)
    values = _values(fleet, config)
    known = _known(fleet.path)
    new = {key: value for key, value in values.items() if value not in known.get(key, ())}
    if new:
        _ask(fleet, new)
        _keep(fleet.path, values)
    if fleet.ssh_config is None:
        return None
    if _is_own(fleet.ssh_config):
        return own_config()
    return _copy(fleet, config)


def own_config() -> Path:
    """The person's own file, which ssh reads anyway."""
    return home() / ".ssh" / "config"


def _is_own(path: Path) -> bool:
    return path.resolve() == own_config().resolve()


def _ask(fleet: Fleet, new: Values) -> None:
    lines = [f"{_owned(fleet.path)} names what yoked would run, and nobody has agreed to it yet:"]
    lines += [one_line(f"  {key} = {value}") for key, value in new.items()]
    # An answer that was piped in is nobody's, and a question that is not seen is none.
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write("\n".join([*lines, "Do you trust this file? [y/N] "]))
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise FleetError(
        "\n".join(lines),
        fix=(
            f"look at {one_line(str(fleet.path))}, and at the ssh_config that it names",
            f"yoked trust {path_word(one_line(str(fleet.path)))}    agrees to these values",
        ),
    )


def _copy(fleet: Fleet, config: bytes | None) -> Path:
    """Where the ssh_config that was agreed to lies, by itself."""
    if config is None:
        raise fault("ssh-config-missing", path=fleet.path, ssh_config=fleet.ssh_config)
    path = _entry(fleet.path).with_suffix(".ssh_config")
    try:
        if path.read_bytes() == config:
            return path
    except OSError:
        pass
    _write(path, config)
    return path


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
    _forget_files_that_are_gone(_entry(file).parent)
    entry = {"path": str(file.resolve()), "values": known}
    _write(_entry(file), json.dumps(entry, indent=1).encode())


def _write(path: Path, content: bytes) -> None:
    try:
        private_folder(path.parent)
        write_bytes(path, content, mode=0o600)
    except OSError as problem:
        raise FleetError(
            f"{path} cannot be written: {problem.strerror or problem}",
            fix=f"ls -ld {path_word(path.parent)}    shows whose it is",
        ) from problem


def revoke(path: Path) -> bool:
    """Agree to nothing of a file any more; whether there was something."""
    entry = _entry(path)
    was_there = entry.is_file()
    for each in (entry, entry.with_suffix(".ssh_config")):
        each.unlink(missing_ok=True)
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
    except OSError:
        return None
    return read_json(entry)


def _entry(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return state_root() / "trusted" / f"{name[:32]}.json"


def _forget_files_that_are_gone(folder: Path) -> None:
    for entry in folder.glob("*.json"):
        said = (_read(entry) or {}).get("path")
        if not isinstance(said, str) or not Path(said).exists():
            for each in (entry, entry.with_suffix(".ssh_config")):
                with contextlib.suppress(OSError):
                    each.unlink()


def _read_config(fleet: Fleet) -> bytes | None:
    """The ssh_config that a fleet's file names, read once; None: none is named, or there.

    Nobody has agreed to it yet: /dev/zero has no end, and a pipe may have no writer. Raises
    FleetError for what is larger than any such file.
    """
    path = fleet.ssh_config
    if path is None or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_CONFIG_BYTES + 1)
    except OSError:
        return None
    if len(content) > _MOST_CONFIG_BYTES:
        raise FleetError(
            f"{fleet.path} names {path} as its ssh_config, which has more than "
            f"{_MOST_CONFIG_BYTES:,} bytes",
            fix=f"mend ssh_config in {fleet.path}",
        )
    return content


def _owned(path: Path) -> str:
    """The path, with its owner where that is somebody else."""
    said = one_line(str(path))
    try:
        owner = path.stat().st_uid
    except OSError:
        return said
    return said if owner == os.geteuid() else f"{said}, a file of the user {user_name(owner)},"
