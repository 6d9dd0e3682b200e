"""Lines that take an entry of one of the network's tables back, and put it in again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from yoked.doctor.iptables_save import OLD
from yoked.doctor.repairs.base import as_root, by_hand, repair
from yoked.doctor.ruleset import Suspect
from yoked.records.examination import Fix
from yoked.records.shell import Line, as_made, command_line, joined, shell_line

# Words as ip(8) prints them: none is an option.
_WORD = re.compile(r"[\w.:/@%+][\w.:/@%+-]*")
# A rule of nft's that is one statement, and no word of the shell's or of another line of nft's.
_RULE = re.compile(r"[\w .:/!=<>&|(){}@\",*+-]+")


def drop_entry(host: str, words: Sequence[str], *program: str, add: str = "add") -> Fix:
    """Delete what a line of a table says. program: with the object, as `ip route`; add: its word
    for putting the line in again.
    """
    if not all(map(_WORD.fullmatch, words)):
        return by_hand(host, "delete with `{program}`: {line}", program=command_line(*program),
                       line=" ".join(words))  # fmt: skip
    return delete_entry(host, words, program, add)


@repair
def delete_entry(host: str, words: Sequence[str], program: Sequence[str], add: str) -> Fix:
    """Delete a line of a table."""
    return as_root(
        host,
        "{program} del {words}",
        "{program} {add} {words}",
        program=command_line(*program),
        words=joined(" ", words),
        add=add,
    )


@repair
def take_again(host: str, words: Sequence[str], program: Sequence[str]) -> Fix:
    """Take an address that is not used, and give it again: the kernel asks anew whether anybody
    has it.
    """
    return as_root(
        host,
        "{program} address del {words} && {program} address add {words}",
        program=command_line(*program),
        words=joined(" ", words),
    )


# The ssh server's unit reads its settings again.
_ANEW = "systemctl daemon-reload && { systemctl restart ssh || systemctl restart sshd; }"


@repair
def lift_denial(host: str, file: str, line: int) -> Fix:
    """Make a line of a unit a comment, and have the unit run without it."""
    return _in_unit(host, file, f"{line}s/^/# /", f"{line}s/^# //")


@repair
def add_to_line(host: str, file: str, line: int, word: str) -> Fix:
    """Give a line of a unit one more word, and have the unit run with it."""
    return _in_unit(host, file, f"{line}s/ *$/ {word}/", f"{line}s/ {word}$//")


def _in_unit(host: str, file: str, on: str, back: str) -> Fix:
    """Change a file of the ssh server's unit, and have it read anew. on, back: programs of sed."""
    return as_root(
        host,
        "sed -i.yoked {on} {file} && {end}",
        "sed -i {back} {file} && {end}",
        on=on,
        back=back,
        file=file,
        end=as_made(_ANEW),
    )


@repair
def set_link(host: str, interface: str, on: Sequence[str], back: Sequence[str]) -> Fix:
    """Set something of an interface, in the words of `ip link set`."""
    return as_root(
        host,
        "ip link set dev {it} {on}",
        "ip link set dev {it} {back}",
        it=interface,
        on=joined(" ", on),
        back=joined(" ", back),
    )


@repair
def make_anew(
    host: str,
    interface: str,
    kinds: tuple[Sequence[str], Sequence[str]],
    addresses: Sequence[tuple[str, int]],
    mtu_bytes: int,
) -> Fix:
    """Make an interface that lies over others anew. kinds: its words of `ip link add` behind
    `type`, as they are to be, and as they are.
    """

    def made(words: Sequence[str]) -> Line:
        adds = joined(
            "",
            (
                shell_line(" && ip address add {own} dev {it}", own=f"{own}/{prefix}", it=interface)
                for own, prefix in addresses
            ),
        )
        return shell_line(
            "ip link del {it} && ip link add {it} mtu {mtu} type {words}{adds} && "
            "ip link set dev {it} up",
            it=interface,
            mtu=mtu_bytes,
            words=joined(" ", words),
            adds=adds,
        )

    return as_root(host, "{line}", "{back}", line=made(kinds[0]), back=made(kinds[1]))


def drop_rule(host: str, found: Suspect) -> Fix:
    """Delete a rule of nft's or of the old iptables; or look for it, by a person."""
    chain = found.chain
    if chain.table.startswith(OLD) and found.origin.startswith("-A "):
        program = "ip6tables-legacy" if chain.family == "ip6" else "iptables-legacy"
        return delete_line(host, program, chain.table.removeprefix(OLD), found.origin)
    if not found.origin.isdigit():
        return by_hand(
            host,
            "`nft -a list table {table}` shows the number of the rule: `nft delete rule {chain} "
            "handle NUMBER` takes it away",
            table=command_line(chain.family, chain.table),
            chain=command_line(chain.family, chain.table, found.inside),
        )
    return delete_rule(host, found)


@repair
def delete_rule(host: str, found: Suspect) -> Fix:
    """Delete a rule of nft's by its number."""
    place = command_line(found.chain.family, found.chain.table, found.inside)
    fix = as_root(
        host,
        "nft delete rule {place} handle {number}",
        "nft add rule {place} {rule}",
        place=place,
        number=found.origin,
        rule=found.rule,
    )
    return fix if _RULE.fullmatch(found.rule) else replace(fix, undo=None)


@repair
def delete_line(host: str, program: str, table: str, line: str) -> Fix:
    """Delete a rule of iptables, of which the line is known that makes it."""
    # What iptables-save prints is in the shell's own quotes; without any it is taken as it is.
    chain, *words = line.split()[1:]
    return as_root(
        host,
        "{program} -t {table} -D {rule}",
        "{program} -t {table} -A {rule}",
        program=program,
        table=table,
        rule=command_line(chain, *(word.strip('"') for word in words)),
    )
