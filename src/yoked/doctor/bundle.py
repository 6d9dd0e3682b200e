"""A file for a bug report: what was seen, with what is nobody's business left out.

Left out: tokens, keys and passwords, wherever they stand; user names, home folders, public
addresses, MACs and host keys get stand-ins, the same for the same, so that checks run over the
bundle say what they said. Names of hosts stay: they are what the findings are about.
"""

from __future__ import annotations

import getpass
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, get_args

from yoked.errors import UsageError
from yoked.records.examination import Purpose, Severity, SshKind
from yoked.units import format_bytes

EXAMINATION = "examination.json"
LEFT_OUT = "(left out)"
# Blocks for documentation: RFC 5737, RFC 3849.
_PUBLIC_4 = int(IPv4Address("203.0.113.0"))
_PUBLIC_6 = int(IPv6Address("2001:db8::"))
_HOST_BITS = 64
_LEAST_SECRET = 8
# Of JSON in a saved report: dozens of hosts say less than a tenth of it.
_MOST_BYTES = 64 << 20
# A locally administered MAC.
_OWN_MAC = 0x02_00_00_00_00_00

_TELLING_WORDS = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[-_]?key|access[-_]?key|"
    r"private[-_]?key|auth[-_]?key|authorization)"
)
_SECRET_NAME = re.compile(rf"{_TELLING_WORDS}|_KEY$|^PASS$|_PASS$|_AUTH$", re.IGNORECASE)
# What stands for itself, however it is named.
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL),
    re.compile(
        r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|ASIA|npm_|pypi-)"
        r"[A-Za-z0-9_-]{10,}"
    ),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"),
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),
    re.compile(r"(?<=bearer )[\w.~+/=-]{8,}|(?<=basic )[\w.~+/=-]{8,}", re.IGNORECASE),
)
_NAMED_SECRET = re.compile(
    rf"([\w.-]*{_TELLING_WORDS}[\w.-]*[\"']?\s*[=:]\s*[\"']?|--?{_TELLING_WORDS}\s+[\"']?)"
    r"(?!\(left out\)|bearer |basic )([^\s\"',;&]+)",
    re.IGNORECASE,
)
_HOST_KEYS = (
    re.compile(r"\bAAAA[0-9A-Za-z+/]{20,}={0,3}"),
    re.compile(r"(?<=SHA256:)[A-Za-z0-9+/]{20,}={0,2}"),
    re.compile(r"\b(?:[0-9a-f]{2}:){15}[0-9a-f]{2}\b"),
)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}\b(?![:-])", re.IGNORECASE)
# systemd names an adapter by its MAC.
_NAMED_BY_MAC = re.compile(r"\b(enx|wlx)([0-9a-f]{12})\b")
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:]*:[0-9a-f.:]*)(?![\w:]|\.\d)",
    re.IGNORECASE,
)
# Machine identities and whatever else is long and without a meaning.
_LONG = re.compile(r"\b(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[A-Za-z0-9_+=-]{32,}")
_HOMES = re.compile(r"(?<=/home/)[^/\s:'\",;]+|(?<=/Users/)[^/\s:'\",;]+")
_AT = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]*)@(?=[\w.-])")
_VERSIONS = re.compile(r"version|driver|build|kernel", re.IGNORECASE)
_USER_FIELDS = ("user", "USER", "LOGNAME", "login")
_HOME_FIELDS = ("home", "HOME")
# Equal for two names of one machine, as the stand-ins are.
_MACHINE_FIELD = "machine"
# The words of the contract: a user of that name must not change what was seen.
_KEPT_WORDS = frozenset(
    {*get_args(Purpose), *get_args(Severity), *get_args(SshKind), "auto", "cpu", "cuda", "mps"}
)


def without_secrets(text: str) -> str:
    """A text without what is known as a secret by its looks, or by the word in front of it."""
    for pattern in _SECRETS:
        text = pattern.sub(LEFT_OUT, text)
    return _NAMED_SECRET.sub(rf"\1{LEFT_OUT}", text)


class Redactor:
    """Leaves out of texts and data what a stranger should not read.

    data: what will be shown; its user names and home folders are found first.
    """

    def __init__(self, data: Any) -> None:
        self._stand_ins: dict[str, dict[str, str]] = {}
        self._homes: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._hosts = set(_host_names(data))
        # What is named as a secret in one place is none in another.
        self._secrets = sorted(_secret_values(data), key=len, reverse=True)
        logins = (name.rpartition("@")[0] for name in _host_names(data))
        for name in (getpass.getuser(), *_under(data, _USER_FIELDS), *logins):
            self._add_user(name)
        for home in _under(data, _HOME_FIELDS):
            if home.startswith("/") and home not in ("/", "/root"):
                self._add_user(Path(home).name)
                self._homes[home] = f"/home/{self._users.get(Path(home).name, 'user')}"

    def data(self, value: Any, name: str = "") -> Any:
        """Data of JSON, the same but for what is left out. name: the key under which it lies."""
        if isinstance(value, Mapping):
            return {self._key(key): self.data(item, str(key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item, name) for item in value]
        if not isinstance(value, str) or value in _KEPT_WORDS:
            return value
        if _SECRET_NAME.search(name):
            return LEFT_OUT
        if name == _MACHINE_FIELD:
            return self._stand_in("machine", value)
        return self.text(value, addresses=not _VERSIONS.search(name))

    def text(self, text: str, *, addresses: bool = True) -> str:
        """A text, the same but for what is left out."""
        for secret in self._secrets:
            text = text.replace(secret, LEFT_OUT)
        text = without_secrets(text)
        for pattern in _HOST_KEYS:
            text = pattern.sub(self._numbered("hostkey"), text)
        text = self._without_machine(text)
        if addresses:
            text = _ADDRESS.sub(self._address, text)
        return self._without_people(text)

    def _key(self, key: object) -> str:
        text = str(key)
        if text in self._hosts or "@" in text or "/" in text:
            return self.text(text)
        return _ADDRESS.sub(self._address, self._without_machine(text))

    def _without_machine(self, text: str) -> str:
        text = _NAMED_BY_MAC.sub(lambda found: found[1] + self._mac(found[2]), text)
        text = _MAC.sub(lambda found: bytes.fromhex(self._mac(found[0])).hex(":"), text)
        return _LONG.sub(self._numbered("id"), text)

    def _without_people(self, text: str) -> str:
        for home, stand_in in sorted(self._homes.items(), key=lambda each: -len(each[0])):
            text = re.sub(rf"(?<![\w/]){re.escape(home)}(?![\w.-])", stand_in, text)
        for name, stand_in in self._users.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", stand_in, text)
        text = _HOMES.sub(lambda found: self._add_user(found[0]), text)
        return _AT.sub(lambda found: f"{self._add_user(found[1])}@", text)

    def _add_user(self, name: str) -> str:
        """The stand-in of a user's name; root is nobody in particular."""
        if not name or name == "root" or name.isdigit() or name in self._users.values():
            return name
        return self._users.setdefault(name, f"user{len(self._users) + 1}")

    def _numbered(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda found: self._stand_in(kind, found[0])

    def _stand_in(self, kind: str, text: str, made: Callable[[int], str] | None = None) -> str:
        """What stands for a text. made: of its number; default: the kind and the number."""
        known = self._stand_ins.setdefault(kind, {})
        number = len(known) + 1
        return known.setdefault(text, made(number) if made else f"{kind}{number}")

    def _mac(self, text: str) -> str:
        """The stand-in of a MAC, as twelve digits; all zeros and all ones tell nothing."""
        digits = re.sub(r"[:-]", "", text.lower())
        if digits in ("0" * 12, "f" * 12):
            return digits
        return self._stand_in("mac", digits, lambda number: f"{_OWN_MAC + number:012x}")

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ip_address(found[0])
        except ValueError:
            return found[0]
        base = _stand_in_base(address)
        if base is None:
            return found[0]
        kind = IPv4Address if address.version == 4 else IPv6Address
        return self._stand_in(kind.__name__, str(address), lambda number: str(kind(base + number)))


def _stand_in_base(address: IPv4Address | IPv6Address) -> int | None:
    """What an address becomes one of; None: it tells nothing and stays."""
    if isinstance(address, IPv4Address):
        return _PUBLIC_4 if address.is_global and not address.is_multicast else None
    if address.sixtofour or address.teredo or (address.is_global and not address.is_multicast):
        return _PUBLIC_6
    # An address that was made from a MAC: RFC 4291, appendix A.
    if address.packed[11:13] == b"\xff\xfe":
        return int(address) >> _HOST_BITS << _HOST_BITS
    return None


def _texts(data: Any, *keys: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """All texts of data, each with the keys that lead to it; an item of a list has an empty one."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _texts(value, *keys, str(key))
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _texts(value, *keys, "")
    elif isinstance(data, str):
        yield keys, data


def _under(data: Any, names: Sequence[str]) -> Iterator[str]:
    """Texts that lie under one of these names, or in the `path` of such a mapping."""
    for keys, text in _texts(data):
        place = keys[:-1] if keys[-1:] == ("path",) else keys
        if place and place[-1] in names:
            yield text


def _secret_values(data: Any) -> set[str]:
    """Values under names of secrets, where they are long enough to be no ordinary word."""
    found: set[str] = set()
    for keys, text in _texts(data):
        if keys and _SECRET_NAME.search(keys[-1]):
            found.add(text)
        else:
            found |= {each[2] for each in _NAMED_SECRET.finditer(text)}
    return {each for each in found if len(each) >= _LEAST_SECRET and each != LEFT_OUT}


def _host_names(data: Any) -> Iterator[str]:
    hosts = data.get("hosts", ()) if isinstance(data, Mapping) else ()
    for host in hosts:
        if isinstance(host, Mapping) and isinstance(host.get("name"), str):
            yield host["name"]


def bundle(
    examination: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    report: str,
    fleet_file: str | None,
) -> dict[str, str]:
    """The bundle's files: {name: text}. examination: as `yoked.doctor.replay.to_json` has it.

    findings: as in `yoked doctor --json`; report: what was shown; fleet_file: of yoked.toml.
    """
    hide = Redactor(examination)
    files = {
        EXAMINATION: _json(hide.data(examination)),
        "findings.json": _json(hide.data(findings)),
        "report.txt": hide.text(report),
    }
    return files if fleet_file is None else {**files, "yoked.toml": hide.text(fleet_file)}


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, default=str) + "\n"


def write_bundle(path: Path, files: Mapping[str, str]) -> None:
    """Write a zip file. Raises UsageError where there is a file already, or none can be written."""
    try:
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    except FileExistsError:
        raise UsageError(
            f"--bundle {path}: there is such a file, and it is left as it is",
            fix=f"name another, or rm {path}",
        ) from None
    except OSError as problem:
        raise UsageError(
            f"--bundle {path} cannot be written: {problem.strerror}",
            fix="name a file in a folder of yours",
        ) from problem


def read_saved(path: Path) -> dict[str, Any]:
    """The examination's JSON of a bundle, or of a file of its own. Raises UsageError."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _require_size(path, archive.getinfo(EXAMINATION).file_size)
                text = archive.read(EXAMINATION).decode()
        else:
            _require_size(path, path.stat().st_size)
            text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except OSError as problem:
        raise UsageError(
            f"--from {path} cannot be read: {problem.strerror}", fix=f"ls -l {path}"
        ) from problem
    except (
        KeyError,
        ValueError,
        RecursionError,
        NotImplementedError,
        RuntimeError,
        zlib.error,
        zipfile.BadZipFile,
    ) as problem:
        raise UsageError(f"--from {path} is no saved examination: {problem}", fix=_SAVE) from None
    if not isinstance(found, dict) or "hosts" not in found:
        raise UsageError(f"--from {path} is no saved examination: it has no hosts", fix=_SAVE)
    return found


def _require_size(path: Path, size_bytes: int) -> None:
    if size_bytes > _MOST_BYTES:
        raise UsageError(
            f"--from {path} is no saved examination: it unpacks to {format_bytes(size_bytes)}",
            fix=_SAVE,
        )


_SAVE = "yoked doctor --bundle FILE.zip    saves one"
