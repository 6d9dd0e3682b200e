"""What a host's firewall does, as far as it can be read, and the line that opens it for peers.

Source: ufw(8), firewall-cmd(1), nft(8), iptables(8), socketfilterfw of macOS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, Literal

from yoked.doctor.repairs.base import as_root
from yoked.records.examination import Fix
from yoked.records.shell import Line, command_line, joined, shell_line

# A host's own `firewall`, see yoked.agent.firewall; None: it did not tell.
Told = Mapping[str, Any] | None
Direction = Literal["in", "out"]

_NAMES = {
    "ufw": "ufw",
    "firewalld": "firewalld",
    "nft": "nftables",
    "iptables": "iptables",
    "macos": "the firewall of macOS",
}
_HOOKS: dict[Direction, tuple[str, ...]] = {
    "in": ("ingress", "prerouting", "input"),
    "out": ("output", "postrouting", "egress"),
}
# Names as nft(8) has them: in its own language a quote of the shell's is none.
_TABLE = re.compile(r"table (ip6?|inet|arp|bridge|netdev) ([A-Za-z_][\w./-]*) \{", re.ASCII)
_CHAIN = re.compile(r"chain ([A-Za-z_][\w./-]*) \{", re.ASCII)
_BASE = re.compile(r"type filter hook (\w+) .*?priority")
_REFUSES = re.compile(r"\b(drop|reject)\b")
_JUMPS = re.compile(r"\b(?:jump|goto) (\S+)")
_IPTABLES = re.compile(r"^(?::(\w+) (?:DROP|REJECT)\b|-A (\w+) .*-j (?:DROP|REJECT)\b)")
_RATE = re.compile(r"\b(limit rate|limit:|hashlimit|recent|connlimit|ct count|LIMIT)\b")
_COMMENT = "yoked"
_OF_IPTABLES = frozenset(
    f"{family} {table} {chain}"
    for family in ("ip", "ip6")
    for table in ("filter", "nat", "mangle", "raw")
    for chain in ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
)


@dataclass(frozen=True)
class Chain:
    """A chain of nft's that the kernel calls. refuses: it, or a chain that it calls, lets some
    packets not pass.
    """

    family: str
    table: str
    name: str
    hook: str
    refuses: bool

    @property
    def words(self) -> str:
        """As nft's own lines name it."""
        return f"{self.family} {self.table} {self.name}"


def kind_of(told: Told) -> str | None:
    """ufw, firewalld, nft, iptables or pf; None: unknown, or there is none."""
    kind = (told or {}).get("kind")
    # Its rules are nft's today, in tables and chains of the old names.
    if kind == "nft" and all(chain.words in _OF_IPTABLES for chain in chains(rules_of(told) or ())):
        return "iptables" if rules_of(told) else "nft"
    return kind if kind in _NAMES else None


def name_of(told: Told) -> str:
    """The firewall as people call it."""
    return _NAMES.get(kind_of(told) or "", "a firewall")


def is_off(told: Told) -> bool:
    """Whether there certainly is no firewall at work."""
    return (told or {}).get("active") is False


def rules_of(told: Told) -> list[str] | None:
    """Its rules; None: we may not read them."""
    rules = (told or {}).get("rules")
    return None if rules is None else [str(line) for line in rules]


def limits_rate(told: Told) -> bool:
    """Whether a rule counts new connections."""
    return any(_RATE.search(line) for line in rules_of(told) or ())


def drops_outgoing(told: Told) -> bool | None:
    """Whether it refuses to let something out; None: its rules cannot be read."""
    rules = rules_of(told)
    if rules is None or kind_of(told) == "firewalld":
        return None
    if kind_of(told) == "ufw":
        text = "\n".join(rules)
        return re.search(r"(deny|reject) \(outgoing\)|(DENY|REJECT) OUT", text) is not None
    if any(_TABLE.match(line.strip()) for line in rules):
        return any(chain.refuses for chain in chains(rules) if chain.hook in _HOOKS["out"])
    return any("OUTPUT" in found.groups() for line in rules if (found := _IPTABLES.match(line)))


def chains(rules: Sequence[str]) -> list[Chain]:
    """The filter chains that the kernel itself calls, in `nft list ruleset`."""
    bodies = dict(_bodies(rules))
    return [
        Chain(*key, hook=hook[1], refuses=_refuses(key, bodies, set()))
        for key, body in bodies.items()
        for hook in [next(filter(None, map(_BASE.search, body)), None)]
        if hook is not None
    ]


_Key = tuple[str, str, str]


def _bodies(rules: Sequence[str]) -> Iterator[tuple[_Key, list[str]]]:
    """The lines of each chain, by (family, table, chain)."""
    table = ("", "")
    body: list[str] | None = None
    for line in map(str.strip, rules):
        if found := _TABLE.match(line):
            table, body = (found[1], found[2]), None
        elif found := _CHAIN.match(line):
            body = []
            yield (*table, found[1]), body
        elif line == "}":
            body = None
        elif body is not None:
            body.append(line)


def _refuses(key: _Key, bodies: Mapping[_Key, list[str]], seen: set[_Key]) -> bool:
    if key in seen:
        return False
    seen.add(key)
    body = bodies.get(key, [])
    called = [found[1] for line in body for found in _JUMPS.finditer(line)]
    return any(_REFUSES.search(line) for line in body) or any(
        _refuses((key[0], key[1], name), bodies, seen) for name in called
    )


_Make = Callable[[str, list[str], Direction], Iterator[Fix]]


def allow(
    host: str,
    told: Told,
    peers: Iterable[str],
    direction: Direction = "in",
    *,
    program: str | None = None,
) -> tuple[Fix, ...]:
    """The lines that let all from `peers` in to a host, or all to them out.

    peers: addresses, each named by itself: a home's network has guests. program: the interpreter
    that trains there; macOS opens for programs. The line is that of the firewall which is there;
    where that is unknown, one that finds the chains that drop.
    """
    # They stand in programs of nft's and awk's too, where a quote of the shell's is not enough.
    addresses = [each for each in dict.fromkeys(peers) if _is_address(each)]
    made = _lines(host, told, addresses, direction, program or "/usr/bin/python3")
    return tuple(replace(each, repair="allow_peers") for each in made)


def _lines(
    host: str, told: Told, addresses: list[str], direction: Direction, program: str
) -> Iterable[Fix]:
    make: dict[str, _Make] = {"ufw": _ufw, "firewalld": _firewalld, "iptables": _iptables}
    kind, tools = kind_of(told) or "", (told or {}).get("tools")
    if kind == "macos":
        return _macos(host, program)
    if kind == "firewalld" and direction == "out":
        kind = ""
    tool = "firewall-cmd" if kind == "firewalld" else kind
    if kind in make and (tools is None or tool in tools):
        return make[kind](host, addresses, direction)
    if tools and "nft" not in tools and "iptables" in tools:
        return _iptables(host, addresses, direction)
    return _nft(host, told, addresses, direction)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _ufw(host: str, peers: list[str], direction: Direction) -> Iterator[Fix]:
    for peer in peers:
        way = shell_line("from") if direction == "in" else shell_line("out to")
        rule = shell_line("allow {way} {peer}", way=way, peer=peer)
        # Before rules that limit or deny, of which the first that fits counts.
        yield as_root(host, "ufw prepend {rule}", "ufw delete {rule}", rule=rule)


def _firewalld(host: str, peers: list[str], direction: Direction) -> Iterator[Fix]:
    assert direction == "in"
    for peer in peers:
        yield as_root(
            host,
            "firewall-cmd --zone=trusted {add} && firewall-cmd --permanent --zone=trusted {add}",
            "firewall-cmd --zone=trusted {drop} && firewall-cmd --permanent --zone=trusted {drop}",
            add=f"--add-source={peer}",
            drop=f"--remove-source={peer}",
        )


def _iptables(host: str, peers: list[str], direction: Direction) -> Iterator[Fix]:
    chain, end = ("INPUT", "-s") if direction == "in" else ("OUTPUT", "-d")
    for peer in peers:
        yield as_root(
            host,
            "{program} -I {rule}",
            "{program} -D {rule}",
            program="ip6tables" if ":" in peer else "iptables",
            rule=command_line(chain, end, peer, "-j", "ACCEPT"),
        )


def _macos(host: str, program: str) -> tuple[Fix, ...]:
    fix = as_root(
        host,
        "{tool} --add {program} && {tool} --unblockapp {program}",
        "{tool} --remove {program}",
        tool="/usr/libexec/ApplicationFirewall/socketfilterfw",
        program=program,
    )
    return (fix,)


def _nft(host: str, told: Told, peers: list[str], direction: Direction) -> Iterator[Fix]:
    """A rule at the top of every chain that drops: to be accepted by one is not enough."""
    rules = rules_of(told)
    found = [
        chain
        for chain in (chains(rules) if rules else ())
        if chain.hook in _HOOKS[direction] and chain.refuses
    ]
    for match in _matches(peers, direction):
        # Of family ip, a chain knows no address of IPv6, nor the other way round.
        own = [each for each in found if each.family in ("inet", match.partition(" ")[0])]
        if own:
            line = joined(
                " && ",
                (
                    shell_line(
                        "nft insert rule {family} {table} {chain} {match} accept comment {word}",
                        family=chain.family,
                        table=chain.table,
                        chain=chain.name,
                        match=match,
                        word=_COMMENT,
                    )
                    for chain in own
                ),
            )
        else:
            line = _into_every_chain(match, direction)
        yield Fix(host, line, root=True, undo=_WITHOUT_OURS)


def _matches(peers: list[str], direction: Direction) -> Iterator[Line]:
    end = "saddr" if direction == "in" else "daddr"
    for family, own in (
        ("ip", [each for each in peers if ":" not in each]),
        ("ip6", [each for each in peers if ":" in each]),
    ):
        if own:
            what = own[0] if len(own) == 1 else f"{{ {', '.join(own)} }}"
            yield command_line(family, end, what)


def _into_every_chain(match: str, direction: Direction) -> Line:
    """A line that finds the chains of the input or output by itself."""
    hooks = "|".join(hook for hook in _HOOKS[direction] if hook not in ("ingress", "egress"))
    plain = match.replace("'", "")
    other = "ip6" if plain.startswith("ip ") else "ip"
    script = (
        '/^table/ { table = $2 " " $3 } /^[ \\t]*chain / { chain = $2 } '
        f"/type filter hook ({hooks}) / && table !~ /^({other}|bridge|arp|netdev) / "
        f'{{ print "insert rule " table, chain, "{plain} accept comment {_COMMENT}" }}'
    )
    return shell_line("nft list chains | awk {script} | nft -f -", script=script)


# A rule is deleted by its number, which is not known before it is there.
_WITHOUT_OURS = shell_line(
    "nft -a list ruleset | awk {script} | nft -f -",
    script='/^table/ { table = $2 " " $3 } /^[ \\t]*chain / { chain = $2 } '
    f'/accept comment "{_COMMENT}" # handle/ '
    '{ print "delete rule " table, chain, "handle " $NF }',
)
