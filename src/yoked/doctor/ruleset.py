"""What the rules of a host do with a packet, as far as their lines tell.

`nft list ruleset` has all rules of the kernel, of every family and hook: those of ufw, firewalld
and iptables too. What a line asks of a packet and is not known here, the packet may have or not: so
a rule surely refuses it, or may, or does not. Source: nft(8), iptables-extensions(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from yoked.doctor.iptables_save import OLD
from yoked.doctor.packets import Packet, Tokens, holds

Direction = Literal["in", "out"]

HOOKS: dict[Direction, tuple[str, ...]] = {
    "in": ("ingress", "prerouting", "input"),
    "out": ("output", "postrouting", "egress"),
}
# Names as nft(8) has them: in its own language a quote of the shell's is none.
_TABLE = re.compile(r"table (ip6?|inet|arp|bridge|netdev) ([A-Za-z_][\w./-]*) \{", re.ASCII)
_CHAIN = re.compile(r"chain ([A-Za-z_][\w./-]*) \{", re.ASCII)
_BASE = re.compile(
    r"type (filter|nat|route) hook (\w+)(?: devices?(?: =)? (\{.*?\}|\S+))? priority [^;]*;"
    r"(?: policy (\w+);)?"
)
_REFUSES = re.compile(r"\b(drop|reject)\b")
_ACCEPTS = re.compile(r"\b(accept|return|continue)\b")
_JUMPS = re.compile(r"\b(?:jump|goto) (\S+)")
_DORMANT = re.compile(r"flags .*\bdormant\b")
_MARKS = re.compile(r"\bmark set\b")
_NOTRACK = re.compile(r"\bnotrack\b")
# Behind a rule: its number (`nft -a`), or the line that it is in another tool's words.
_ORIGIN = re.compile(r" # (?:handle (?P<handle>\d+)|rule (?P<rule>.*))$")
# What changes a packet, or has another see it or decide about it, and lets it go on.
_CHANGES = re.compile(
    r"(?<![@.])\b(set|reset|queue|dup|fwd|synproxy|notrack)\b(?! rt mtu\b)|\bflow (add|offload)\b|"
    r'xt target "'
)
# These are for who shapes or watches, and do no harm.
_HARMLESS = re.compile(
    r"\b(dscp|ecn|nftrace|priority|mark|label|secmark|cgroup|pkttype) set\b|"
    r'xt target "(MARK|CONNMARK|DSCP|TOS|ECN|CT|LOG|NFLOG|CHECKSUM|MASQUERADE|CLASSIFY|TRACE)"'
)
_QUEUE = re.compile(r"\bqueue\b(?P<words>.*?)\b(?:num|to) (?P<first>\d+)(?:-(?P<last>\d+))?")
# What sends a packet elsewhere than to whom it is for, or has it come from elsewhere.
_DIVERTS = ("dnat", "redirect", "snat", "tproxy")
_STOPS = ("drop", "reject", *_DIVERTS)
_LEADS_AWAY = re.compile(r'\b(dnat|redirect|tproxy)\b|xt target "(DNAT|REDIRECT|TPROXY)"')
_ENDS = ("accept", "return", "jump", "goto", "queue", "vmap", *_STOPS)

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Chain:
    """A chain of nft's that the kernel calls. refuses: it, or a chain that it calls, lets some
    packets not pass. kind: filter, nat or route.
    """

    family: str
    table: str
    name: str
    hook: str
    refuses: bool
    kind: str = "filter"

    @property
    def words(self) -> str:
        """As nft's own lines name it."""
        return f"{self.family} {self.table} {self.name}"


@dataclass(frozen=True)
class Suspect:
    """A rule that refuses a packet, or changes it. chain: the one that the kernel calls; inside:
    that in which it stands. sure: whether it does so certainly. origin: how the tool that made it
    knows it: a number, or its line; empty: it is not told. of_cards: the packet is one by which
    hosts find each other's network cards.
    """

    chain: Chain
    inside: str
    rule: str
    sure: bool
    origin: str = ""
    of_cards: bool = False

    @property
    def leads_away(self) -> bool:
        """Whether it hands a packet to another port, program or host than it is for."""
        return _LEADS_AWAY.search(self.rule) is not None

    @property
    def words(self) -> str:
        """For people: the rule and its place."""
        family, table = self.chain.family, self.chain.table
        if table.startswith(OLD):
            table = f"{table.removeprefix(OLD)} of the old iptables"
        where = f"chain {self.inside} of table {family} {table}"
        hook = f", hook {self.chain.hook}"
        return f"`{self.rule}` in {where}{hook}"


@dataclass(frozen=True)
class _Base:
    """A chain that the kernel calls. policy: what becomes of what no rule decided; devices: those
    that it is for; empty: all.
    """

    chain: Chain
    policy: str
    devices: tuple[str, ...]

    def concerns(self, packet: Packet) -> bool:
        """Whether the kernel calls it for a packet."""
        chain = self.chain
        if chain.family == "arp" or chain.family == ("ip" if packet.is_six else "ip6"):
            return False
        if self.devices and not {packet.interface, *packet.below} & {*self.devices}:
            return False
        if chain.family == "bridge":
            return packet.bridged
        if chain.kind != "nat":
            return True
        # Addresses are changed of the first packet of a connection, where the kernel first meets
        # it; the rest follows.
        again = chain.hook == "prerouting" and packet.interface == "lo"
        return not packet.answer and chain.hook != "input" and not again


@dataclass(frozen=True)
class _Rules:
    bases: tuple[_Base, ...]
    bodies: dict[_Key, list[str]]
    origins: dict[tuple[_Key, str], str]
    tracks: bool


def chains(rules: Sequence[str]) -> list[Chain]:
    """The filter chains that the kernel itself calls, in `nft list ruleset`."""
    return [each.chain for each in _read(tuple(rules)).bases if each.chain.kind == "filter"]


def all_chains(rules: Sequence[str]) -> list[Chain]:
    """The same, and those that change addresses or ways."""
    return [each.chain for each in _read(tuple(rules)).bases]


def suspects(
    rules: Sequence[str],
    packet: Packet,
    direction: Direction,
    readers: frozenset[int] | None = None,
) -> list[Suspect]:
    """The rules that refuse a packet, or may, those first that surely do. readers: the queues from
    which a program takes packets; None: it is not known.
    """
    walks = _walks(rules, packet, direction, readers)
    found = [each for walk in walks for each in walk.found]
    return sorted(found, key=lambda each: not each.sure)


def changes(rules: Sequence[str], packet: Packet, direction: Direction) -> list[Suspect]:
    """The rules that change a packet, or hand it to others, or may."""
    return [each for walk in _walks(rules, packet, direction, None) for each in walk.changing]


def _walks(
    rules: Sequence[str], packet: Packet, direction: Direction, readers: frozenset[int] | None
) -> Iterator[_Walk]:
    read = _read(tuple(rules))
    for base in read.bases:
        hooks = HOOKS[direction]
        if base.chain.family == "bridge" or packet.forwarded:
            hooks = (*hooks, "forward")
        if base.chain.hook in hooks and base.concerns(packet):
            walk = _Walk(read, base, packet, direction, readers)
            walk.go()
            yield walk


def against_neighbours(rules: Sequence[str]) -> list[Suspect]:
    """The rules that may keep hosts from asking each other for their network cards."""
    read = _read(tuple(rules))
    found = []
    for base in read.bases:
        chain = base.chain
        if chain.family == "arp" and chain.refuses:
            body = read.bodies[chain.family, chain.table, chain.name]
            refusing = (line for line in body if _REFUSES.search(line) and not _BASE.search(line))
            rule = next(refusing, "policy drop")
            found.append(Suspect(chain, chain.name, _bare(rule), sure=False, of_cards=True))
    return found


@lru_cache(maxsize=64)
def _read(rules: tuple[str, ...]) -> _Rules:
    bodies: dict[_Key, list[str]] = {}
    origins: dict[tuple[_Key, str], str] = {}
    for key, lines in dict(_bodies(rules)).items():
        own = bodies.setdefault(key, [])
        for line in lines:
            bare = _ORIGIN.sub("", line)
            own.append(bare)
            if found := _ORIGIN.search(line):
                origins.setdefault((key, bare), found["handle"] or found["rule"])
    bases = []
    for key, body in bodies.items():
        found = next(filter(None, map(_BASE.search, body)), None)
        if found is not None:
            kind, hook, devices, policy = found.groups()
            chain = Chain(*key, hook=hook, refuses=_refuses(key, bodies, set()), kind=kind)
            names = tuple(re.findall(r"[^\s\"{},]+", devices or ""))
            bases.append(_Base(chain, policy or "accept", names))
    tracks = not any(_NOTRACK.search(line) for body in bodies.values() for line in body)
    return _Rules(tuple(bases), bodies, origins, tracks)


def _bodies(rules: Sequence[str]) -> Iterator[tuple[_Key, list[str]]]:
    """The lines of each chain, by (family, table, chain), of tables that are switched on."""
    table = ("", "")
    body: list[str] | None = None
    asleep = False
    for line in map(str.strip, rules):
        if found := _TABLE.match(line):
            table, body, asleep = (found[1], found[2]), None, False
        elif _DORMANT.match(line):
            asleep = True
        elif found := _CHAIN.match(line):
            body = []
            if not asleep:
                yield (*table, found[1]), body
        elif _ORIGIN.sub("", line) == "}":
            body = None
        elif body is not None:
            body.append(line)


def _refuses(key: _Key, bodies: dict[_Key, list[str]], seen: set[_Key]) -> bool:
    if key in seen:
        return False
    seen.add(key)
    body = bodies.get(key, [])
    called = [found[1] for line in body for found in _JUMPS.finditer(line)]
    return any(_REFUSES.search(line) for line in body) or any(
        _refuses((key[0], key[1], name), bodies, seen) for name in called
    )


@dataclass
class _Walk:
    """A packet on its way through a chain and those that it calls.

    doubt: it may have been accepted before; what refuses it then only may. accepting: places that
    may have.
    """

    rules: _Rules
    base: _Base
    packet: Packet
    direction: Direction
    readers: frozenset[int] | None = None
    doubt: bool = False
    accepting: int = 0
    found: list[Suspect] = field(default_factory=list)
    changing: list[Suspect] = field(default_factory=list)

    def go(self) -> None:
        """Find the rules that refuse it, and those that change it."""
        chain = self.base.chain
        over = self._pass((chain.family, chain.table, chain.name), ())
        if not over and self.base.policy == "drop":
            self._suspect(chain.name, "policy drop", surely=True)

    def _suspect(self, inside: str, rule: str, *, surely: bool) -> None:
        self.found.append(self._told(inside, rule, surely=surely))

    def _told(self, inside: str, rule: str, *, surely: bool) -> Suspect:
        sure, chain = surely and not self.doubt, self.base.chain
        origin = self.rules.origins.get(((chain.family, chain.table, inside), rule), "")
        return Suspect(chain, inside, _bare(rule), sure, origin, bool(self.packet.asks_card))

    def _is_unread(self, line: str) -> bool:
        """Whether a rule hands packets to a program that is not there: then they are lost."""
        told = _QUEUE.search(line)
        if self.readers is None or told is None or "bypass" in line:
            return False
        numbers = range(int(told["first"]), int(told["last"] or told["first"]) + 1)
        return self.readers.isdisjoint(numbers)

    def _pass(self, key: _Key, above: tuple[_Key, ...]) -> bool:
        """Go through a chain; whether it was surely decided there."""
        if key in above:
            return False
        for line, surely, end, operand in self._fitting(key):
            if end in ("jump", "goto"):
                over = self._call((*key[:2], operand), (*above, key), surely=surely)
                if surely and (over or end == "goto"):
                    return over
                continue
            if end == "vmap":
                self._call_each(operand, line, (*above, key))
                continue
            if end in _STOPS:
                if end != "snat" or operand != self.packet.source:
                    self._suspect(key[2], line, surely=surely)
            elif end == "queue" and self._is_unread(line):
                self._suspect(key[2], line, surely=surely)
            else:
                self.accepting += end != "return"
                # It may end well here, or go on.
                self.doubt |= not surely or end == "queue"
            if surely and end != "queue":
                return end != "return"
        return False

    def _fitting(self, key: _Key) -> Iterator[tuple[str, bool, str, str]]:
        """(rule, whether it surely fits, what it does then, its operand) of those that may fit."""
        for line in self.rules.bodies.get(key, []):
            does, end, operand = (False, "", "") if _BASE.search(line) else self._ask(line)
            if does is not False and self.base.chain.kind == "route" and _MARKS.search(line):
                # A rule of `ip rule` may send what has the mark another way.
                self._suspect(key[2], line, surely=False)
            elif does is not False and _CHANGES.search(line) and not _HARMLESS.search(line):
                self.changing.append(self._told(key[2], line, surely=does is True))
            if does is not False and end:
                yield line, does is True, end, operand

    def _call(self, key: _Key, above: tuple[_Key, ...], *, surely: bool) -> bool:
        """Go through a chain that is called, or may be."""
        doubt, accepting = self.doubt, self.accepting
        self.doubt |= not surely
        over = self._pass(key, above)
        if not surely:
            self.doubt = doubt or self.accepting > accepting
        return over

    def _call_each(self, verdicts: str, line: str, above: tuple[_Key, ...]) -> None:
        """Of several verdicts one comes true, and it is not known which."""
        for found in _JUMPS.finditer(verdicts):
            self._call((*above[-1][:2], found[1].strip(",}")), above, surely=False)
        if _REFUSES.search(verdicts):
            self._suspect(above[-1][2], line, surely=False)
        if _ACCEPTS.search(verdicts):
            self.accepting += 1
            self.doubt = True

    def _ask(self, line: str) -> tuple[bool | None, str, str]:
        """Whether a rule fits the packet, None: perhaps; what it then does, and its operand."""
        tokens = Tokens(line)
        does: bool | None = True
        while tokens.left:
            if tokens.pair() == ("xt", "target"):
                tokens.take(2)
                target = tokens.take().strip('"').lower().replace("nfqueue", "queue")
                if target in _STOPS or target == "queue":
                    return does, target, ""
                continue
            if tokens.next in _ENDS:
                return self._end(tokens, does)
            asked = holds(tokens, self.packet, self.direction, tracks=self.rules.tracks)
            if asked is False:
                return False, "", ""
            does = None if asked is None else does
        return does, "", ""

    def _end(self, tokens: Tokens, does: bool | None) -> tuple[bool | None, str, str]:
        end, operand = tokens.take(), tokens.operand()
        if end == "vmap":
            verdicts = [each.rpartition(" : ")[2] for each in operand.strip("{ }").split(",")]
            if does is True and len(verdicts) == 1:
                end, operand = [*verdicts[0].split(), "", ""][:2]
                return does, end, operand
            return None, end, operand
        return does, end, operand


def _bare(line: str) -> str:
    """A rule without what it counted and its comment."""
    return re.sub(r' ?counter packets \d+ bytes \d+| comment "[^"]*"', "", line).strip()
