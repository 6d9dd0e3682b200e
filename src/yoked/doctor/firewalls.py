"""What a host's firewall does, as far as it can be read, and the line that opens it for peers.

Source: ufw(8), firewall-cmd(1), nft(8), iptables(8), socketfilterfw of macOS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from yoked.doctor.iptables_save import CHAINS, OLD, as_ruleset
from yoked.doctor.packets import Packet
from yoked.doctor.repairs.base import as_root
from yoked.doctor.ruleset import (
    HOOKS,
    Chain,
    Direction,
    Suspect,
    against_neighbours,
    all_chains,
    chains,
    changes,
    suspects,
)
from yoked.records.examination import Fix
from yoked.records.shell import Line, command_line, joined, shell_line

# A host's own `firewall`, see yoked.agent.firewall; None: it did not tell.
Told = Mapping[str, Any] | None

_NAMES = {
    "ufw": "ufw",
    "firewalld": "firewalld",
    "nft": "nftables",
    "iptables": "iptables",
    "iptables-legacy": "the old iptables",
    "macos": "the firewall of macOS",
}
_IS_TABLE = re.compile(r" *table ")
_IPTABLES = re.compile(r"^(?::(\w+) (?:DROP|REJECT)\b|-A (\w+) .*-j (?:DROP|REJECT)\b)")
_RATE = re.compile(r"\b(limit rate|limit:|hashlimit|recent|connlimit|ct count|LIMIT)\b")
_COMMENT = "yoked"
# By which hosts find each other's network cards in IPv6.
_CARDS = shell_line("icmpv6 type {types}", types="{ nd-neighbor-solicit, nd-neighbor-advert }")
_CARD_TYPES = [
    ("-p", "icmpv6", "--icmpv6-type", each)
    for each in ("neighbour-solicitation", "neighbour-advertisement")
]
_OF_IPTABLES = frozenset(
    f"{family} {table} {chain}"
    for family in ("ip", "ip6")
    for table in ("filter", "nat", "mangle", "raw")
    for chain in CHAINS
)


def kind_of(told: Told) -> str | None:
    """ufw, firewalld, nft, iptables or macos; None: unknown, or there is none."""
    kind = (told or {}).get("kind")
    # Its rules are nft's today, in tables and chains of the old names.
    if kind == "nft" and (found := all_chains(rules_of(told) or ())):
        return "iptables" if all(each.words in _OF_IPTABLES for each in found) else "nft"
    return kind if kind in _NAMES else None


def name_of(told: Told) -> str:
    """The firewall as people call it."""
    return _NAMES.get(kind_of(told) or "", "a firewall")


def rules_of(told: Told) -> list[str] | None:
    """Its rules; None: we may not read them."""
    rules = (told or {}).get("rules")
    return None if rules is None else [str(line) for line in rules]


def limits_rate(told: Told, found: Sequence[Suspect] = ()) -> bool:
    """Whether a rule counts new connections. found: those that are in the way, as far as known."""
    lines = [each.rule for each in found] or rules_of(told) or ()
    return any(_RATE.search(line) for line in lines)


def ruleset_of(told: Told) -> list[str] | None:
    """All rules as nft has them; None: they could not be read."""
    whole, old = (told or {}).get("ruleset"), (told or {}).get("old")
    beside = as_ruleset([str(line) for line in old]) if old else []
    rules = rules_of(told) if whole is None else [str(line) for line in whole]
    if not rules or any(map(_IS_TABLE.match, rules)):
        return beside or rules if not rules else [*rules, *beside]
    of_iptables = whole is not None or kind_of(told) == "iptables"
    return [*as_ruleset(rules), *beside] if of_iptables else beside or None


def refusals(told: Told, packet: Packet, direction: Direction) -> list[Suspect] | None:
    """The rules that refuse a packet, or may; None: they could not be read, or not all."""
    rules, readers = ruleset_of(told), (told or {}).get("readers")
    if rules is None:
        return None
    known = None if readers is None else frozenset(map(int, readers))
    found = suspects(rules, packet, direction, known)
    return None if not found and long_chains(told) else found


def changing(told: Told, packet: Packet, direction: Direction) -> list[Suspect]:
    """The rules that change a packet, or hand it to others, or may; none where nobody could read
    them.
    """
    return changes(ruleset_of(told) or (), packet, direction)


def long_chains(told: Told) -> Mapping[str, int]:
    """{chain, as nft names it: its rules} of those with so many that nobody read them."""
    return (told or {}).get("long") or {}


def cards_refused(told: Told) -> list[Suspect]:
    """The rules that may keep a host's neighbours from finding its network card."""
    return against_neighbours(ruleset_of(told) or ())


def drops_outgoing(told: Told) -> bool | None:
    """Whether it refuses to let something out, by its own words; None: they do not tell."""
    rules = rules_of(told)
    if rules is None or kind_of(told) == "firewalld":
        return None
    if kind_of(told) == "ufw":
        text = "\n".join(rules)
        return re.search(r"(deny|reject) \(outgoing\)|(DENY|REJECT) OUT", text) is not None
    if any(map(_IS_TABLE.match, rules)):
        return any(chain.refuses for chain in chains(rules) if chain.hook in HOOKS["out"])
    return any("OUTPUT" in found.groups() for line in rules if (found := _IPTABLES.match(line)))


def holder_of(told: Told, chain: Chain) -> str:
    """The tool with which a chain is changed: ufw, firewalld, iptables or nft."""
    tools = (told or {}).get("tools")

    def there(tool: str) -> bool:
        return tools is None or tool in tools

    if chain.family == "inet" and chain.table == "firewalld" and there("firewall-cmd"):
        return "firewalld"
    if chain.table.startswith(OLD):
        return "iptables-legacy"
    if chain.words not in _OF_IPTABLES:
        return "nft"
    if kind_of(told) == "ufw" and chain.table == "filter" and there("ufw"):
        return "ufw"
    return "iptables" if there("iptables") else "nft"


def held_by(told: Told, found: Sequence[Suspect]) -> str:
    """The firewall that has these rules, as people call it; without any, that of the host."""
    return _NAMES[holder_of(told, found[0].chain)] if found else name_of(told)


def allow(
    host: str,
    told: Told,
    peers: Iterable[str],
    direction: Direction = "in",
    *,
    program: str | None = None,
    found: Sequence[Suspect] = (),
) -> tuple[Fix, ...]:
    """The lines that let all from `peers` in to a host, or all to them out.

    peers: addresses, each named by itself: a home's network has guests. program: the interpreter
    that trains there; macOS opens for programs. found: the rules that are in the way: each line is
    for the chain, and by the tool, that has them. Without them it is that of the firewall which is
    there; where that is unknown, one that finds the chains that drop.
    """
    # They stand in programs of nft's and awk's too, where a quote of the shell's is not enough.
    addresses = [each for each in dict.fromkeys(peers) if _is_address(each)]
    made: Iterable[Fix]
    if found:
        made = _where_held(host, told, addresses, direction, found)
    else:
        made = _lines(host, told, addresses, direction, program or "/usr/bin/python3")
    return tuple(replace(each, repair="allow_peers") for each in made)


def allow_loopback(host: str, told: Told, found: Sequence[Suspect]) -> tuple[Fix, ...]:
    """The lines that let a host reach itself: one for each chain that refuses that."""
    made = []
    for chain in dict.fromkeys(each.chain for each in found):
        ends = "oif" if chain.hook in HOOKS["out"] else "iif"
        if holder_of(told, chain) in ("iptables", "iptables-legacy", "ufw"):
            flag = "-o" if ends == "oif" else "-i"
            made.append(_by_iptables(host, chain, chain.family == "ip6", (flag, "lo")))
        else:
            match = command_line(ends, "lo")
            made.append(Fix(host, _inserted([chain], match), root=True, undo=_WITHOUT_OURS))
    return tuple(replace(each, repair="allow_loopback") for each in made)


def _where_held(
    host: str, told: Told, addresses: list[str], direction: Direction, found: Sequence[Suspect]
) -> Iterator[Fix]:
    by_tool: dict[str, list[Chain]] = {}
    asks = {each.chain for each in found if each.of_cards}
    for chain in dict.fromkeys(each.chain for each in found):
        by_tool.setdefault(holder_of(told, chain), []).append(chain)
    for tool, own in by_tool.items():
        if tool == "ufw" and asks.isdisjoint(own):
            yield from _ufw(host, addresses, direction)
        elif tool == "firewalld" and direction == "in":
            yield from _firewalld(host, addresses)
        elif tool in ("iptables", "iptables-legacy", "ufw"):
            end = "-s" if direction == "in" else "-d"
            for chain in own:
                matches = [(end, each) for each in addresses] if chain not in asks else _CARD_TYPES
                is_six = ":" in "".join(addresses)
                yield from (_by_iptables(host, chain, is_six, each) for each in matches)
        else:
            if arp := [chain for chain in own if chain.family == "arp"]:
                yield Fix(host, _inserted(arp), root=True, undo=_WITHOUT_OURS)
            if of_cards := [chain for chain in own if chain in asks and chain not in arp]:
                yield Fix(host, _inserted(of_cards, _CARDS), root=True, undo=_WITHOUT_OURS)
            if others := [chain for chain in own if chain not in (*arp, *of_cards)]:
                yield from _nft(host, others, addresses, direction)


def _lines(
    host: str, told: Told, addresses: list[str], direction: Direction, program: str
) -> Iterable[Fix]:
    kind, tools = kind_of(told) or "", (told or {}).get("tools")
    if kind == "macos":
        return _macos(host, program)
    if kind == "ufw" and (tools is None or kind in tools):
        return _ufw(host, addresses, direction)
    if kind == "firewalld" and direction == "in" and (tools is None or "firewall-cmd" in tools):
        return _firewalld(host, addresses)
    may_iptables = tools is None or "iptables" in tools
    if may_iptables and (kind == "iptables" or (tools and "nft" not in tools)):
        return _iptables(host, addresses, direction)
    rules = rules_of(told)
    refusing = [
        chain
        for chain in (chains(rules) if rules else ())
        if chain.hook in HOOKS[direction] and chain.refuses
    ]
    return _nft(host, refusing, addresses, direction)


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


def _firewalld(host: str, peers: list[str]) -> Iterator[Fix]:
    for peer in peers:
        yield as_root(
            host,
            "firewall-cmd --zone=trusted {add} && firewall-cmd --permanent --zone=trusted {add}",
            "firewall-cmd --zone=trusted {drop} && firewall-cmd --permanent --zone=trusted {drop}",
            add=f"--add-source={peer}",
            drop=f"--remove-source={peer}",
        )


def _iptables(host: str, peers: list[str], direction: Direction) -> Iterator[Fix]:
    name, end = ("INPUT", "-s") if direction == "in" else ("OUTPUT", "-d")
    chain = Chain("ip", "filter", name, name.lower(), refuses=True)
    return (_by_iptables(host, chain, ":" in each, (end, each)) for each in peers)


def _by_iptables(host: str, chain: Chain, is_six: bool, match: tuple[str, ...]) -> Fix:
    old, name = chain.table.startswith(OLD), chain.table.removeprefix(OLD)
    table = () if name == "filter" else ("-t", name)
    program = f"{'ip6tables' if is_six else 'iptables'}{'-legacy' if old else ''}"
    return as_root(
        host,
        "{program} -I {rule}",
        "{program} -D {rule}",
        program=command_line(program, *table),
        rule=command_line(chain.name, *match, "-j", "ACCEPT"),
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


def _nft(
    host: str, found: Sequence[Chain], peers: list[str], direction: Direction
) -> Iterator[Fix]:
    """A rule at the top of every chain that drops: to be accepted by one is not enough."""
    for match in _matches(peers, direction):
        # Of family ip, a chain knows no address of IPv6, nor the other way round.
        families = ("inet", "netdev", "bridge", match.partition(" ")[0])
        own = [each for each in found if each.family in families]
        line = _inserted(own, match) if own else _into_every_chain(match, direction)
        yield Fix(host, line, root=True, undo=_WITHOUT_OURS)


def _inserted(found: Sequence[Chain], *match: Line) -> Line:
    """Have what matches, or all, accepted before all other rules of some chains."""
    return joined(
        " && ",
        (
            command_line(
                "nft", "insert", "rule", chain.family, chain.table, chain.name, *match, "accept",
                "comment", _COMMENT,
            )
            for chain in found
        ),
    )  # fmt: skip


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
    hooks = "|".join(HOOKS[direction])
    plain = match.replace("'", "")
    other = "ip6" if plain.startswith("ip ") else "ip"
    script = (
        '/^table/ { table = $2 " " $3 } /^[ \\t]*chain / { chain = $2 } '
        f"/type filter hook ({hooks}) / && table !~ /^({other}|bridge|arp) / "
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
