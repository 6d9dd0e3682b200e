"""Read the TOML of a topology, check it, and give out addresses.

Everything that can be wrong in the file is told with its line, the host or network it is in, and
what is allowed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from yoked.errors import UsageError, YokedError
from yoked.lab.topology import Host, Interface, Network, Shape, Topology, hint, parse_rate
from yoked.units import parse_bytes

_Net = IPv4Network | IPv6Network
# Keys of a host that are about its eth0.
_CUTS = ("rate", "delay", "jitter", "loss", "family")
# Where in the file: ("host", 1, "interface", 0, "rate").
_Place = tuple[str | int, ...]

_MOST_HOSTS = 32
# IFNAMSIZ - 1, Linux include/uapi/linux/if.h.
_DEVICE_LENGTH = 15
# The kernel grants a group at least 1 ms in each period, and ours are 10 ms.
_LOWEST_SPEED = 0.1
# sshd and a Python need about this much.
_LOWEST_MEMORY_BYTES = 64 * 10**6
_LOWEST_RATE_BIT_PER_S, _HIGHEST_RATE_BIT_PER_S = 8e3, 400e9
_LONGEST_DELAY_S = 10.0
_DELAY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|ms|s)\s*")
_DELAY_SCALE = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_PERCENT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*")


class _Flaw(Exception):  # noqa: N818 - caught here, never seen
    """Something wrong at a place in the file."""

    def __init__(self, place: _Place, what: str, fix: str) -> None:
        super().__init__(what)
        self.place, self.what, self.fix = place, what, fix


def _refuse(what: str) -> PydanticCustomError:
    return PydanticCustomError("value", "{what}", {"what": what})


def _text(value: object, example: str) -> str:
    if not isinstance(value, str):
        raise _refuse(f"{value!r} has no unit: write it as in {example}")
    return value


def _rate_bit_per_s(value: object) -> float:
    text = _text(value, '"100 Mbit/s"')
    try:
        rate_bit_per_s = parse_rate(text)
    except YokedError:
        rate_bit_per_s = 0
    if not _LOWEST_RATE_BIT_PER_S <= rate_bit_per_s <= _HIGHEST_RATE_BIT_PER_S:
        raise _refuse(
            f"{text!r} is not a rate from 8 kbit/s to 400 Gbit/s: "
            'write it as in "100 Mbit/s" or "1gbit"'
        )
    return rate_bit_per_s


def _delay_s(value: object) -> float:
    text = _text(value, '"5 ms"')
    match = _DELAY.fullmatch(text)
    delay_s = float(match[1]) * _DELAY_SCALE[match[2]] if match else -1.0
    if not 0 <= delay_s <= _LONGEST_DELAY_S:
        raise _refuse(f'{text!r} is not a time from 0 to 10 s: write it as in "5 ms"')
    return delay_s


def _loss(value: object) -> float:
    text = _text(value, '"1%"')
    match = _PERCENT.fullmatch(text)
    if match is None or float(match[1]) >= 100:
        raise _refuse(f'{text!r} is not a percentage from 0 to below 100: write it as in "1%"')
    return float(match[1]) / 100


def _memory_bytes(value: object) -> int:
    text = _text(value, '"4 GB"')
    try:
        size_bytes = parse_bytes(text)
    except YokedError:
        size_bytes = 0
    if size_bytes < _LOWEST_MEMORY_BYTES:
        raise _refuse(f'{text!r} is not a size of at least 64 MB: write it as in "4 GB"')
    return size_bytes


def _name(value: str) -> str:
    # A name of digits alone would be read as an address.
    if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", value) or value.isdigit():
        allowed = "1 to 63 of a-z, 0-9 and inner hyphens, not all digits"
        raise _refuse(f"{value!r} is not a host name: {allowed}")
    if value == "localhost":
        raise _refuse("'localhost' is the name that every host has for itself")
    return value


def _network_name(value: str) -> str:
    # The bridge is called br-NAME.
    longest = _DEVICE_LENGTH - len("br-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", value) or len(value) > longest:
        raise _refuse(f"{value!r} is not a network's name: 1 to {longest} of a-z, 0-9 and hyphens")
    return value


def _device_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w.-]*", value, re.ASCII) or len(value) > _DEVICE_LENGTH:
        allowed = "a letter, then up to 14 of A-Z, a-z, 0-9, . _ -"
        raise _refuse(f"{value!r} is not an interface's name: {allowed}")
    # These are there in every network namespace, or directories of /proc/sys/net.
    if value in ("lo", "all", "default"):
        raise _refuse(f"{value!r} is the kernel's own name")
    return value


def _subnet(value: object, version: Literal[4, 6]) -> _Net:
    """The network that was written. The narrowest have room for hosts and the bridge."""
    kind, widest, narrowest = (IPv4Network, 8, 29) if version == 4 else (IPv6Network, 16, 120)
    example = '"192.168.77.0/24"' if version == 4 else '"fd77::/64"'
    allowed = f"an IPv{version} network from /{widest} to /{narrowest}, such as {example}"
    try:
        if not isinstance(value, str):
            raise ValueError("not text")
        net = kind(value, strict=False)
    except ValueError as error:
        raise _refuse(f"{value!r} is not {allowed}") from error
    if value != str(net) and net.network_address != kind(value.split("/")[0]).network_address:
        raise _refuse(f"{value!r} is an address inside of a network: write {str(net)!r}")
    if not widest <= net.prefixlen <= narrowest:
        raise _refuse(f"{value!r} is not {allowed}")
    if net.is_loopback or net.is_multicast or net.is_link_local or net.is_unspecified:
        raise _refuse(f"{value!r} cannot be given to hosts: it is reserved by its standard")
    return net


def _address(value: object) -> IPv4Interface | IPv6Interface:
    try:
        return ip_interface(_text(value, '"192.168.77.40"'))
    except ValueError as error:
        raise _refuse(f"{value!r} is not an address") from error


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Link(_Table):
    rate: Annotated[float | None, BeforeValidator(_rate_bit_per_s)] = None
    delay: Annotated[float | None, BeforeValidator(_delay_s)] = None
    jitter: Annotated[float | None, BeforeValidator(_delay_s)] = None
    loss: Annotated[float | None, BeforeValidator(_loss)] = None


class _Network(_Link):
    name: Annotated[str, AfterValidator(_network_name)]
    subnet: Annotated[IPv4Network | None, BeforeValidator(lambda v: _subnet(v, 4))] = None
    subnet6: Annotated[IPv6Network | None, BeforeValidator(lambda v: _subnet(v, 6))] = None


_Family = Literal["4", "6", "both"]


class _Interface(_Link):
    name: Annotated[str, AfterValidator(_device_name)]
    kind: Literal["network", "bridge"] = "network"
    network: str | None = None
    family: _Family | None = None
    address: Annotated[IPv4Interface | IPv6Interface | None, BeforeValidator(_address)] = None


class _Host(_Link):
    name: Annotated[str, AfterValidator(_name)]
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    speed: Annotated[float, Field(ge=_LOWEST_SPEED, le=1)] = 1.0
    memory: Annotated[int | None, BeforeValidator(_memory_bytes)] = None
    family: _Family | None = None
    interface: list[_Interface] = []


class _File(_Table):
    description: str = ""
    network: list[_Network] = []
    host: list[_Host]


def read(content: bytes, *, name: str, source: str) -> Topology:
    """The topology in a TOML file.

    name: what it shall be called; source: what errors call the file. Raises UsageError.
    """
    text = content.decode("utf-8", errors="replace")
    raw: dict[str, Any] = {}
    try:
        raw = tomllib.loads(text)
        return _Builder(_File.model_validate(raw)).topology(name)
    except ValidationError as error:
        flaws = [_flaw(each) for each in error.errors()]
    except _Flaw as error:
        flaws = [error]
    except (ValueError, RecursionError) as error:
        # The library has no error of its own for numbers of 5,000 digits or 1,000 brackets.
        raise UsageError(f"{source} is not TOML: {error}", fix="see https://toml.io") from error
    lines = [f"{_where(source, text, raw, flaw.place)}: {flaw.what}" for flaw in flaws]
    raise UsageError("\n".join(lines), fix=[flaw.fix for flaw in flaws if flaw.fix])


_TABLES: dict[str, type[BaseModel]] = {
    "host": _Host,
    "network": _Network,
    "interface": _Interface,
}


def _flaw(error: ErrorDetails) -> _Flaw:
    """What pydantic found, in words for people."""
    place, key = error["loc"], str(error["loc"][-1])
    tables = [part for part in place[:-1] if isinstance(part, str)]
    if error["type"] == "extra_forbidden":
        keys = (_TABLES[tables[-1]] if tables else _File).model_fields
        return _Flaw(place, "unknown key", hint(key, keys, "keys"))
    if error["type"] == "missing":
        return _Flaw(
            place, "is missing", 'write [[host]], below it name = "alpha"' if key == "host" else ""
        )
    if error["type"] in ("list_type", "model_type"):
        table = ".".join(part for part in place if isinstance(part, str))
        return _Flaw(place, "is not a list of tables", f"write [[{table}]] above each")
    if error["type"] == "value":
        return _Flaw(place, error["msg"], "")
    what = error["msg"].replace("Input should be", "must be")
    given = error["input"]
    # Python prints no number of 5,000 digits.
    is_short = not isinstance(given, (dict, list)) and (type(given) is not int or given < 1 << 64)
    return _Flaw(place, f"{what}, not {given!r}" if is_short else what, "")


def _where(source: str, text: str, raw: dict[str, Any], place: _Place) -> str:
    """`home.toml, line 7, host 'beta', speed`."""
    line = _line(text, place)
    words = [source, *([f"line {line}"] if line else [])]
    here: Any = raw
    for part in place:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            # A key that is missing, or a table that is none.
            here = None
        if isinstance(part, int):
            named = here.get("name") if isinstance(here, dict) else None
            words[-1] += f" {named!r}" if isinstance(named, str) else f" number {part + 1}"
        else:
            words.append(part)
    return ", ".join(words)


_HEADER = re.compile(r"\s*\[\[\s*([\w.-]+)\s*\]\]")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*[=.]""")


def _line(text: str, place: _Place) -> int | None:
    """The line that has the key, else that where its table begins; None: neither is plain."""
    found, table = None, ()  # type: int | None, _Place
    number_of = {"host": -1, "network": -1, "host.interface": -1}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            kind = header[1]
            number_of[kind] = number_of.get(kind, -1) + 1
            if kind == "host":
                number_of["host.interface"] = -1
            head = ("host", number_of["host"]) if "." in kind else ()
            table = (*head, kind.rpartition(".")[2], number_of[kind])
            if place[: len(table)] == table:
                found = number
        elif (key := _KEY.match(line)) and (*table, key[1]) == place[: len(table) + 1]:
            return number
    return found


@dataclass
class _Draft:
    """An interface before its addresses are known."""

    place: _Place
    spec: _Interface
    network: Network | None
    shape: Shape


class _Builder:
    """Checks what concerns several tables at once, and gives out addresses in order."""

    def __init__(self, file: _File) -> None:
        self.file = file
        self.links: dict[str, _Link] = {}
        self.networks: dict[str, Network] = {}
        self.taken: dict[str, str] = {}

    def topology(self, name: str) -> Topology:
        """The finished topology. Raises _Flaw."""
        self._read_networks()
        hosts = self.file.host
        if not 1 <= len(hosts) <= _MOST_HOSTS:
            what = f"there are {len(hosts)} hosts; a lab has 1 to {_MOST_HOSTS}"
            raise _Flaw(("host",), what, "")
        _unique("host", (host.name for host in hosts))
        drafts = [list(self._drafts(number, host)) for number, host in enumerate(hosts)]
        for host, own in zip(hosts, drafts, strict=True):
            for draft in own:
                self._claim(host.name, draft)
        built = [
            Host(
                name=host.name,
                cpus=host.cpus,
                speed=host.speed,
                memory_bytes=host.memory,
                interfaces=tuple(self._interfaces(number, host.name, own)),
            )
            for number, (host, own) in enumerate(zip(hosts, drafts, strict=True))
        ]
        networks = tuple(self.networks.values())
        return Topology(name, self.file.description, networks, tuple(built))

    def _read_networks(self) -> None:
        tables = self.file.network or [self._default_network()]
        _unique("network", (table.name for table in tables))
        for number, table in enumerate(tables):
            place = ("network", number)
            if table.subnet is None and table.subnet6 is None:
                fix = 'subnet = "192.168.77.0/24", or subnet6 = "fd77::/64"'
                raise _Flaw(place, "has neither subnet nor subnet6", fix)
            for other in self.networks.values():
                pairs: Any = ((table.subnet, other.subnet4), (table.subnet6, other.subnet6))
                for mine, theirs in pairs:
                    if mine and theirs and mine.overlaps(theirs):
                        what = f"{mine} overlaps {theirs} of network {other.name!r}"
                        raise _Flaw(place, what, "")
            network = Network(table.name, f"br-{table.name}", table.subnet, table.subnet6)
            self.networks[table.name], self.links[table.name] = network, table
            for bridge in (network.bridge4, network.bridge6):
                if bridge is not None:
                    self.taken[str(bridge.ip)] = f"the bridge of network {table.name!r}"

    def _default_network(self) -> _Network:
        """What hosts share where the file has no network; with IPv6 once a host asks for it."""
        asked = [host.family for host in self.file.host]
        asked += [each.family for host in self.file.host for each in host.interface]
        with_6 = "6" in asked or "both" in asked
        subnet6 = {"subnet6": "fd77::/64"} if with_6 else {}
        return _Network.model_validate({"name": "lan", "subnet": "192.168.77.0/24", **subnet6})

    def _drafts(self, number: int, host: _Host) -> Iterator[_Draft]:
        """The host's interfaces: eth0 from its short cuts, unless written out, and its others."""
        place = ("host", number)
        _unique("interface", (spec.name for spec in host.interface), place)
        tables: list[tuple[_Place, _Interface]] = [
            ((*place, "interface", index), spec) for index, spec in enumerate(host.interface)
        ]
        cuts = {key: getattr(host, key) for key in _CUTS if getattr(host, key) is not None}
        if all(spec.name != "eth0" for spec in host.interface):
            # The values are checked already, and no longer the text that a validator reads.
            tables.insert(0, (place, _Interface.model_construct(name="eth0", **cuts)))
        elif cuts:
            what = f"{', '.join(cuts)} is for eth0, which has a table of its own: write it there"
            raise _Flaw((*place, next(iter(cuts))), what, "")
        drafts = [self._draft(each, spec) for each, spec in tables]
        if all(draft.network is None for draft in drafts):
            raise _Flaw(place, "has no interface on a network", "")
        yield from drafts

    def _draft(self, place: _Place, spec: _Interface) -> _Draft:
        if spec.kind == "bridge":
            for key in ("network", *_CUTS):
                if getattr(spec, key) is not None:
                    raise _Flaw((*place, key), "a bridge of the host's own leads nowhere", "")
            if spec.address is None or spec.address.network.num_addresses == 1:
                what = "a bridge needs an address with the length of its prefix"
                raise _Flaw((*place, "address"), what, 'address = "172.17.0.1/16"')
            return _Draft(place, spec, None, Shape())
        name = next(iter(self.networks)) if spec.network is None else spec.network
        if name not in self.networks:
            fix = hint(name, self.networks, "networks")
            raise _Flaw((*place, "network"), f"there is no network {name!r}", fix)
        return _Draft(place, spec, self.networks[name], _shape(place, spec, self.links[name]))

    def _claim(self, host: str, draft: _Draft) -> None:
        """Take the address that the file gives an interface, before any are given out."""
        wanted, network, place = draft.spec.address, draft.network, (*draft.place, "address")
        if wanted is None or network is None:
            return
        net = network.subnet4 if wanted.version == 4 else network.subnet6
        if net is None or wanted.ip not in net:
            subnets = [str(each) for each in (network.subnet4, network.subnet6) if each]
            what = f"{wanted.ip} is not in {' or '.join(subnets)} of network {network.name!r}"
            raise _Flaw(place, what, "")
        if wanted.network.prefixlen not in (net.prefixlen, wanted.max_prefixlen):
            raise _Flaw(place, f"{wanted} has another prefix than {net}", f"write {wanted.ip}")
        if wanted.ip in (net.network_address, net.broadcast_address):
            raise _Flaw(place, f"{wanted.ip} is the first or last of {net}, no host's", "")
        if owner := self.taken.get(str(wanted.ip)):
            raise _Flaw(place, f"{wanted.ip} is taken by {owner}", "")
        if draft.spec.family not in (None, "both", str(wanted.version)):
            raise _Flaw(place, f"{wanted.ip} is not of family {draft.spec.family!r}", "")
        self.taken[str(wanted.ip)] = f"host {host!r}"

    def _interfaces(self, number: int, host: str, drafts: list[_Draft]) -> Iterator[Interface]:
        ports: set[str] = set()
        for index, draft in enumerate(drafts):
            network, spec = draft.network, draft.spec
            port = "" if network is None else _port(number, spec.name, ports)
            ports.add(port)
            four, six = (self._give(host, draft, version) for version in (4, 6))
            yield Interface(
                name=spec.name,
                network=None if network is None else network.name,
                port=port,
                # 02 is "locally administered"; the next two bytes are "yk".
                mac=f"02:79:6b:00:{number:02x}:{index:02x}",
                address4=None if four is None else IPv4Interface(four),
                address6=None if six is None else IPv6Interface(six),
                shape=draft.shape,
            )

    def _give(self, host: str, draft: _Draft, version: int) -> str | None:
        """The interface's address with its prefix; None where it has none of that version."""
        wanted, network, family = draft.spec.address, draft.network, draft.spec.family
        if network is None:
            return str(wanted) if wanted is not None and wanted.version == version else None
        net: _Net | None = network.subnet4 if version == 4 else network.subnet6
        if family not in (None, "both", str(version)):
            return None
        if net is None:
            if family is None:
                return None
            key = "subnet" if version == 4 else "subnet6"
            what = f"is {family!r}, but network {network.name!r} has no {key}"
            raise _Flaw((*draft.place, "family"), what, f"give the network a {key}")
        if wanted is not None and wanted.version == version:
            return f"{wanted.ip}/{net.prefixlen}"
        free = (str(each) for each in net.hosts() if str(each) not in self.taken)
        if (address := next(free, None)) is None:
            raise _Flaw(draft.place, f"no address of {net} is left", "write a wider subnet")
        self.taken[address] = f"host {host!r}"
        return f"{address}/{net.prefixlen}"


def _unique(kind: str, names: Iterable[str], place: _Place = ()) -> None:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise _Flaw((*place, kind, number), f"there are two {kind}s of this name", "")
        seen.add(name)


def _shape(place: _Place, spec: _Link, network: _Link) -> Shape:
    """What the interface says, else what its network says for all."""

    def of(key: str) -> Any:
        own = getattr(spec, key)
        return getattr(network, key) if own is None else own

    shape = Shape(of("rate"), of("delay") or 0.0, of("jitter") or 0.0, of("loss") or 0.0)
    if shape.jitter_s > shape.delay_s:
        what = "is more than the delay, and no packet can arrive before it was sent"
        raise _Flaw((*place, "jitter"), what, "")
    return shape


def _port(host: int, interface: str, taken: set[str]) -> str:
    """A name for the end in the switch that no other interface of this host has."""
    whole, number = f"p{host}-{interface}", 2
    port = whole[:_DEVICE_LENGTH]
    while port in taken:
        port = f"{whole[: _DEVICE_LENGTH - len(str(number))]}{number}"
        number += 1
    return port
