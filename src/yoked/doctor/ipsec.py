"""IPsec policies of a host, as `ip xfrm policy` has them: what may only be sent encrypted.

Where there is no key for that, nothing is sent, and nothing is said. Source: ip-xfrm(8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any


@dataclass(frozen=True)
class Policy:
    """selector and demand: words of `ip xfrm policy`; way: in or out."""

    selector: tuple[str, ...]
    way: str
    demand: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people."""
        return " ".join((*self.selector, "dir", self.way, *self.demand))

    def covers(self, source: str, target: str) -> bool:
        """Whether it is about packets between two addresses."""
        named = dict(zip(self.selector[::2], self.selector[1::2], strict=False))
        try:
            return all(
                ip_address(address) in ip_network(named[end], strict=False)
                for end, address in (("src", source), ("dst", target))
            )
        except (KeyError, ValueError):
            return False


def policies_of(told: Mapping[str, Any] | None) -> list[Policy]:
    """Those of a host's own `firewall` that let nothing pass as it is; see yoked.agent.firewall."""
    return list(_policies([str(line) for line in (told or {}).get("policies") or ()]))


def policy_against(
    told: Mapping[str, Any] | None, source: str, target: str, way: str
) -> Policy | None:
    """The policy that is about packets between two addresses."""
    return next(
        (each for each in policies_of(told) if each.way == way and each.covers(source, target)),
        None,
    )


def _policies(lines: list[str]) -> Iterator[Policy]:
    selector: list[str] = []
    demand: list[str] = []
    way, priority = "", "0"
    for line in [*lines, "src"]:
        words = line.split()
        if words[:1] == ["src"]:
            if way in ("in", "out") and demand:
                ranked = [] if priority == "0" else ["priority", priority]
                yield Policy(tuple(selector), way, (*ranked, *demand))
            selector, way, priority, demand = words, "", "0", []
        elif words[:1] == ["dir"]:
            named = dict(zip(words[::2], words[1::2], strict=False))
            way, priority = named["dir"] if len(words) > 1 else "", named.get("priority", "0")
            if "block" in words:
                demand = ["action", "block"]
        elif words[:1] in (["tmpl"], ["proto"]):
            demand += words
