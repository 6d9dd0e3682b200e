"""The rules of an old iptables in nft's words, so that both are read by the same lines.

Source: iptables(8), iptables-extensions(8), xtables-translate(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Before the rules of each program, see yoked.agent.firewall.
_PROGRAM = re.compile(r"# (ip6?tables)(-legacy)?-save")
# Tables of the old iptables stand beside those of nft's that have their names.
OLD = "legacy/"
_TABLE = re.compile(r"\*(\w+)")
_POLICY = re.compile(r":([\w-]+) (\w+|-)")
_RULE = re.compile(r"-A ([\w-]+) ?(.*)")
# Chains that the kernel calls, each by the hook of nft's with its name.
CHAINS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
# Which words of nft's ask the same.
_ASKS = {
    "-s": "ip saddr",
    "-d": "ip daddr",
    "-i": "iifname",
    "-o": "oifname",
    "--dport": "tcp dport",
    "--dports": "tcp dport",
    "--sport": "tcp sport",
    "--sports": "tcp sport",
    "--ctstate": "ct state",
    "--state": "ct state",
    "-p": "meta l4proto",
}
# nft calls them so too, but for the queue.
_ENDS = ("ACCEPT", "DROP", "REJECT", "RETURN", "DNAT", "REDIRECT", "SNAT", "NOTRACK", "MASQUERADE",
         "NFQUEUE")  # fmt: skip
# They say something of a rule, and ask nothing of a packet.
_SILENT = ("LOG", "NFLOG", "CHECKSUM", "AUDIT", "TRACE", "DSCP", "TOS", "CLASSIFY")
# They change a packet, or what becomes of it, and it goes on.
_CHANGING = ("MARK", "CONNMARK", "TCPMSS", "TTL", "HL", "TEE", "TCPOPTSTRIP", "CT", "ECN")
_MODULES = ("tcp", "conntrack", "state", "multiport", "comment")


def as_ruleset(lines: Sequence[str]) -> list[str]:
    """What `iptables-save` prints, as `nft list ruleset` would have it. Behind each rule is the
    line that it was.
    """
    tables: dict[tuple[str, str], dict[str, list[str]]] = {}
    policies: dict[tuple[str, str, str], str] = {}
    family, old = "ip", ""
    table = (family, "filter")
    for line in lines:
        if found := _PROGRAM.fullmatch(line):
            family, old = ("ip6" if "6" in found[1] else "ip"), OLD if found[2] else ""
        elif found := _TABLE.match(line):
            table = (family, f"{old}{found[1]}")
        elif found := _POLICY.match(line):
            tables.setdefault(table, {}).setdefault(found[1], [])
            policies[(*table, found[1])] = "drop" if found[2] in ("DROP", "REJECT") else "accept"
        elif found := _RULE.match(line):
            own = tables.setdefault(table, {}).setdefault(found[1], [])
            words = " ".join(_words(found[2].split(), table[0]))
            own.append(f"{words} # rule {line}")
    return [line for place, own in tables.items() for line in _table(place, own, policies)]


def _table(
    place: tuple[str, str], own: dict[str, list[str]], policies: dict[tuple[str, str, str], str]
) -> Iterator[str]:
    family, name = place
    yield f"table {family} {name} {{"
    for chain, rules in own.items():
        yield f"chain {chain} {{"
        if chain in CHAINS:
            kind = "nat" if name.removeprefix(OLD) == "nat" else "filter"
            policy = policies.get((*place, chain), "accept")
            yield f"type {kind} hook {chain.lower()} priority {name}; policy {policy};"
        yield from rules
        yield "}"
    yield "}"


def _words(words: list[str], family: str) -> Iterator[str]:
    negated = ""
    left = iter(words)
    for word in left:
        if word == "!":
            negated = "!= "
        elif word in _ASKS:
            value = next(left, "").lower() if "state" in word else next(left, "")
            several = "," in value
            value = value.replace(":", "-") if "port" in word else value.replace("+", "*")
            asked = _ASKS[word].replace("ip ", f"{family} ", 1)
            yield f"{asked} {negated}" + (f"{{ {value} }}" if several else value)
            negated = ""
        elif word == "--tcp-flags":
            mask, value = (next(left, "").lower() for _ in range(2))
            yield f"tcp flags {negated}{'0x0' if value == 'none' else value} / {mask}"
            negated = ""
        elif word == "-m":
            module = next(left, "")
            if module not in _MODULES:
                yield f'xt match "{module}"'
        elif word == "--comment":
            _pass_comment(left)
        elif word in ("-j", "-g"):
            yield _end(word, next(left, ""), list(left))
        elif word.startswith("-"):
            yield f'xt match "{word}"'


def _pass_comment(left: Iterator[str]) -> None:
    """Its words may be any, up to the one that ends with its quote."""
    first = next(left, "")
    while first.startswith('"') and not first.endswith('"'):
        first = '"' + next(left, '"')


def _end(how: str, target: str, options: list[str]) -> str:
    if target in _SILENT:
        return "counter"
    if target == "CT" and "--notrack" in options:
        return "notrack"
    if target in _CHANGING:
        return f'xt target "{target}"'
    if target not in _ENDS:
        return f"{'goto' if how == '-g' else 'jump'} {target}"
    if target == "NFQUEUE":
        number = options[options.index("--queue-num") + 1] if "--queue-num" in options[:-1] else "0"
        return "queue" if "--queue-bypass" in options else f"queue num {number}"
    to = f" to {options[1].partition('-')[0]}" if target == "SNAT" and len(options) > 1 else ""
    return f"{target.lower()}{to}"
