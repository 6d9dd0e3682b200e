"""Whether a packet has what a rule of nft's asks for: yes, no, or nobody can tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

_TOKEN = re.compile(r'"[^"]*"|\{[^}]*\}|\([^)]*\)|[^\s"{}()]+')
_RANGE = re.compile(r"(<=?|>=?|)([0-9]{1,5})(?:-([0-9]{1,5}))?")
_HIGHEST = 65_535
_OPERATORS = ("!=", "==", "<", "<=", ">", ">=")
_Ports = tuple[int, int]
_FLAGS = {"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ecn": 64, "cwr": 128}
_ALL_FLAGS = 0xFF
# What begins a connection, and what answers that; an ordinary piece of data; what confirms one.
OPENS, OPENED = _FLAGS["syn"], _FLAGS["syn"] | _FLAGS["ack"]
DATA, CONFIRMS = _FLAGS["psh"] | _FLAGS["ack"], _FLAGS["ack"]


@dataclass(frozen=True)
class Packet:
    """The first packet of a TCP connection, or the answer to it. Ports: (lowest, highest) that it
    may have. interface: by which it comes in, or leaves; below: those that its frame goes through
    there too; bridged: a bridge of the host's hands it on; forwarded: and has the rules for what a
    router hands on see it. asks_card: it is of ICMPv6 instead, and asks for a network card, or says
    it: the type, in nft's words. flags: those of TCP, as numbers, of which it has one; empty: those
    of what begins a connection, or of the answer to that.
    """

    source: str
    target: str
    source_ports: _Ports
    target_ports: _Ports
    interface: str
    answer: bool = False
    below: tuple[str, ...] = ()
    bridged: bool = False
    forwarded: bool = False
    asks_card: str = ""
    flags: tuple[int, ...] = ()

    @property
    def all_flags(self) -> tuple[int, ...]:
        """The flags of TCP that it may have."""
        return self.flags or ((OPENED,) if self.answer else (OPENS,))

    @property
    def is_six(self) -> bool:
        """Whether it is of IPv6."""
        return ":" in self.target


class Tokens:
    """The words of a rule, which are taken one after the other."""

    def __init__(self, line: str) -> None:
        self._words = _TOKEN.findall(line)
        self._at = 0

    @property
    def left(self) -> bool:
        """Whether there are more."""
        return self._at < len(self._words)

    @property
    def next(self) -> str:
        """The next word; empty at the end."""
        return self._words[self._at] if self.left else ""

    @property
    def after(self) -> str:
        """The word behind the next; empty where there is none."""
        return self._words[self._at + 1] if self._at + 1 < len(self._words) else ""

    @after.setter
    def after(self, word: str) -> None:
        if self._at + 1 < len(self._words):
            self._words[self._at + 1] = word

    def pair(self) -> tuple[str, str]:
        """The next two."""
        first, second = (*self._words[self._at : self._at + 2], "", "")[:2]
        return first, second

    def take(self, count: int = 1) -> str:
        """Take words; the last of them."""
        self._at += count
        return str(self._words[self._at - 1]) if self._at <= len(self._words) else ""

    def operand(self) -> str:
        """What a verdict is given: the chain of a jump, the address of a dnat."""
        if self.next in ("to", "ip", "ip6"):
            self.take()
            return self.operand()
        return self.take() if self.left else ""


# Statements that ask nothing; with what they are given.
_SILENT = ("counter", "log", "notrack", "masquerade")
_COUNTED = 4
_PAIRS = ("prefix", "level", "group", "flags", "snaplen", "comment")
# Of other protocols than TCP and ICMPv6.
_OTHERS = ("udp", "icmp", "arp", "sctp", "dccp", "esp", "ah", "udplite", "igmp")
# The names of its protocol, and the number of each type.
_NEIGHBOURS = ("ipv6-icmp", "icmpv6", "58")
_NUMBERS = {"nd-neighbor-solicit": "135", "nd-neighbor-advert": "136"}
_INTERFACES = ("iif", "oif", "iifname", "oifname")


def holds(tokens: Tokens, packet: Packet, direction: str, *, tracks: bool) -> bool | None:
    """Whether a packet has what the next words ask for, which are taken; None: nobody can tell.

    tracks: whether connections are followed.
    """
    first, second = tokens.pair()
    if first in (*_SILENT, *_PAIRS):
        tokens.take(2 if first in _PAIRS else 1)
        tokens.take(_COUNTED if first in _SILENT and tokens.next == "packets" else 0)
        return True
    others = ("tcp", "th") if packet.asks_card else ("icmpv6",)
    if first in (*_OTHERS, *others):
        return False
    if first in ("ip", "ip6") and (first == "ip6") != packet.is_six:
        return False
    if first == "meta" and second in _INTERFACES:
        tokens.take()
        first = second
    if first in _INTERFACES:
        tokens.take()
        return _interface(tokens, packet, is_its=first.startswith("i") == (direction == "in"))
    if first == "fib":
        return _kind_of_address(tokens, packet, direction)
    if (first, second) == ("ct", "status"):
        # Its values are also names of verdicts.
        tokens.take(3)
        return None
    if (first, second) == ("tcp", "flags"):
        tokens.take(2)
        return _flags(tokens, packet.all_flags)
    ask = _FIELDS.get((first, second))
    if ask is not None:
        tokens.take(2)
        return _compare(tokens, lambda value: ask(value, packet, tracks))
    tokens.take()
    return None


def _compare(tokens: Tokens, ask: Callable[[str], bool | None]) -> bool | None:
    """What a comparison with one value, a range or a set of them comes to."""
    operator = tokens.take() if tokens.next in _OPERATORS else "=="
    if tokens.next == "vmap":
        return _narrow(tokens, ask)
    if tokens.next in ("map", "&", "and", "set", ".", ""):
        return None
    value = tokens.take()
    values = [each.strip() for each in value.strip("{} ").split(",")]
    # Without braces several are a list, of which one is enough too.
    found = _any(
        None if " . " in each else ask(each if operator in ("==", "!=") else f"{operator}{each}")
        for each in values
    )
    return None if found is None else found != (operator == "!=")


def _flags(tokens: Tokens, has: Sequence[int]) -> bool | None:
    """What a comparison of TCP's flags comes to. A name alone asks for any of its flags; a mask is
    in front of what it is compared with (`& MASK == VALUE`), or behind it (`VALUE / MASK`).
    """
    mask: int | None = _ALL_FLAGS
    masked = tokens.next == "&"
    if masked:
        tokens.take()
        mask = _flag_bits(tokens)
    operator = tokens.take() if tokens.next in (*_OPERATORS, "!") else ""
    if mask is None:
        return None
    left = [each & mask for each in has]
    if tokens.next == "vmap":
        return _narrow(tokens, lambda value: _same_flags(value, left))
    if tokens.next.startswith("{"):
        values = tokens.take().strip("{} ").split(",")
        found = _any(_same_flags(value, left) for value in values)
        return None if found is None else found != (operator == "!=")
    value = _flag_bits(tokens)
    if tokens.next == "/":
        tokens.take()
        masked, mask = True, _flag_bits(tokens)
    if value is None or mask is None or operator.startswith(("<", ">")):
        return None
    if masked or operator in ("==", "!="):
        told = {(each & mask == value) != (operator == "!=") for each in has}
    else:
        told = {bool(each & value) != (operator == "!") for each in has}
    return told.pop() if len(told) == 1 else None


def _flag_bits(tokens: Tokens) -> int | None:
    """The flags that the next words name, which are taken; None: it is something else."""
    words = tokens.take()
    while tokens.next == "|":
        tokens.take()
        words += f"|{tokens.take()}"
    return _bits_of(words)


def _bits_of(words: str) -> int | None:
    """`syn`, `(syn | ack)`, `syn,ack` or `0x12` as a number."""
    bits = 0
    for word in re.split(r"[|,]", words.strip("() ")):
        name = word.strip()
        if name not in _FLAGS and re.fullmatch(r"0x[0-9a-f]{1,2}|[0-9]{1,3}", name) is None:
            return None
        bits |= _FLAGS[name] if name in _FLAGS else int(name, 0)
    return bits


def _same_flags(value: str, has: Sequence[int]) -> bool | None:
    told = {each == _bits_of(value) for each in has}
    return told.pop() if len(told) == 1 and _bits_of(value) is not None else None


def _any(answers: Iterable[bool | None]) -> bool | None:
    told = list(answers)
    return True if True in told else None if None in told else False


def _narrow(tokens: Tokens, ask: Callable[[str], bool | None]) -> bool | None:
    """Leave of a map to verdicts those that may be meant."""
    verdicts = [each.strip() for each in tokens.after.strip("{} ").split(",")]
    answers = {
        each: None if " . " in each else ask(each.rpartition(" : ")[0].strip()) for each in verdicts
    }
    kept = [each for each, answer in answers.items() if answer is not False]
    if True in answers.values():
        kept = [each for each in kept if answers[each]]
    tokens.after = f"{{ {', '.join(kept)} }}"
    return _any(answers.values())


def _interface(tokens: Tokens, packet: Packet, *, is_its: bool) -> bool | None:
    def ask(value: str) -> bool | None:
        name = value.strip('"')
        if name.endswith("*"):
            return packet.interface.startswith(name[:-1])
        return packet.interface == name

    asked = _compare(tokens, ask)
    if packet.bridged:
        # A bridge's rules name its ports.
        return None
    # Where it comes in a packet leaves by none yet, and nothing is equal to that.
    return asked if is_its else None if asked is None or asked else False


def _kind_of_address(tokens: Tokens, packet: Packet, direction: str) -> bool | None:
    """`fib daddr type local`: whether the address is the host's own; other forms are unknown."""
    tokens.take()
    if tokens.pair() == ("daddr", "type"):
        tokens.take(2)
        is_own = direction == "in" or packet.interface == "lo"
        return _compare(tokens, lambda value: value == ("local" if is_own else "unicast"))
    # Until what it is compared with.
    while tokens.left and tokens.next not in ("exists", "missing", "type"):
        tokens.take()
    tokens.take()
    return None


def _address(value: str, own: str) -> bool | None:
    try:
        if "-" in value:
            low, high = (int(ip_address(each)) for each in value.split("-"))
            return low <= int(ip_address(own)) <= high
        return ip_address(own) in ip_network(value, strict=False)
    except ValueError:
        return None


def _port(value: str, own: _Ports) -> bool | None:
    """Of ports that a packet may have, all, none or some may fit."""
    found = _RANGE.fullmatch(value)
    if found is None:
        return None
    operator, first, last = found[1], int(found[2]), int(found[3] or found[2])
    low, high = {
        "": (first, last),
        "<": (0, first - 1),
        "<=": (0, first),
        ">": (first + 1, _HIGHEST),
        ">=": (first, _HIGHEST),
    }[operator]
    if low <= own[0] and own[1] <= high:
        return True
    return False if own[1] < low or high < own[0] else None


def _state(value: str, packet: Packet, tracks: bool) -> bool | None:
    if packet.asks_card:
        return value == "untracked"
    return value == ("established" if packet.answer else "new") if tracks else None


_Ask = Callable[[str, Packet, bool], "bool | None"]


def _protocol(value: str, packet: Packet, tracks: bool) -> bool | None:
    del tracks
    return value.strip('"') in (_NEIGHBOURS if packet.asks_card else ("tcp", "6"))


def _family(value: str, packet: Packet, tracks: bool) -> bool | None:
    del tracks
    return {"ipv4": not packet.is_six, "ip": not packet.is_six, "ipv6": packet.is_six,
            "ip6": packet.is_six}.get(value, False)  # fmt: skip


_FIELDS: dict[tuple[str, str], _Ask] = {
    ("ip", "saddr"): lambda value, packet, _: _address(value, packet.source),
    ("ip", "daddr"): lambda value, packet, _: _address(value, packet.target),
    ("ip6", "saddr"): lambda value, packet, _: _address(value, packet.source),
    ("ip6", "daddr"): lambda value, packet, _: _address(value, packet.target),
    ("tcp", "sport"): lambda value, packet, _: _port(value, packet.source_ports),
    ("tcp", "dport"): lambda value, packet, _: _port(value, packet.target_ports),
    ("th", "sport"): lambda value, packet, _: _port(value, packet.source_ports),
    ("th", "dport"): lambda value, packet, _: _port(value, packet.target_ports),
    ("ip", "protocol"): _protocol,
    ("ip6", "nexthdr"): _protocol,
    ("meta", "l4proto"): _protocol,
    ("icmpv6", "type"): lambda value, packet, _: (
        value in (packet.asks_card, _NUMBERS.get(packet.asks_card))
    ),
    ("meta", "nfproto"): _family,
    ("meta", "protocol"): _family,
    ("ct", "state"): _state,
}
