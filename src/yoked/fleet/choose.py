"""Which interface of each host the others can use: decided from dials that were really made.

Pure: the same candidates and attempts give the same choice, whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

from yoked.core.faults import fault
from yoked.errors import HostError, YokedError
from yoked.records.shell import quoted

# Two measurements of one link differ by so much: only what is faster by more counts as faster.
_AS_FAST = 0.8
# What is likely to stay, first.
_KINDS = ("physical", "wireless", "bridge", "docker", "vpn")


@dataclass(frozen=True)
class Candidate:
    """An interface of a host, with the address that Gloo would take of it."""

    host: str
    interface: str
    address: str
    kind: str = "physical"

    @property
    def version(self) -> int:
        """4 or 6."""
        return ip_address(self.address).version


@dataclass(frozen=True)
class Attempt:
    """A dial from one host to a candidate of another.

    answered_by: the host that answered there; error: a symbol such as ECONNREFUSED, with its text;
    goodput_bytes_per_s: None where it was not measured.
    """

    source: str
    target: Candidate
    answered_by: str | None = None
    error: str | None = None
    error_text: str | None = None
    rtt_s: float | None = None
    goodput_bytes_per_s: float | None = None

    @property
    def reached(self) -> bool:
        """Whether that very host answered: docker0 has the same address on all of them."""
        return self.error is None and self.answered_by == self.target.host


@dataclass(frozen=True)
class Choice:
    """An address at which all others reached a host, or what its peers use of these.

    goodput: that of its slowest peer; rtt: that of its farthest; None: it was not measured.
    """

    host: str
    interface: str
    address: str
    rtt_s: float | None
    goodput_bytes_per_s: float | None
    kind: str = "physical"

    @property
    def order(self) -> tuple[int, float, str, str]:
        """Sorts those of equal speed, the best first."""
        return kind_rank(self.kind), self.rtt_s or 0.0, self.interface, self.address


def reached_by_all(
    hosts: Sequence[str], candidates: Iterable[Candidate], attempts: Iterable[Attempt]
) -> list[Candidate]:
    """The candidates that every other host reached."""
    reached: dict[Candidate, set[str]] = {}
    for attempt in attempts:
        if attempt.reached:
            reached.setdefault(attempt.target, set()).add(attempt.source)
    return [
        each for each in candidates if set(hosts) - {each.host} <= reached.get(each, set[str]())
    ]


def choose(
    hosts: Sequence[str], candidates: Sequence[Candidate], attempts: Sequence[Attempt]
) -> dict[str, Choice]:
    """For every host the interface that serves its peers best, all of one address family.

    Faster is better (within 20% is equal), then IPv4, then a cable before radio before a VPN,
    then the shorter way. Raises HostError that names a pair and why it does not come together.
    """
    offers = _offers(hosts, candidates, attempts)
    found = {
        version: best
        for version in (4, 6)
        if len(best := _best(hosts, offers, version)) == len(hosts)
    }
    if not found:
        raise _explain(hosts, candidates, attempts)
    version = 4 if 4 in found else 6
    if len(found) == 2 and _slowest(found[6]) * _AS_FAST > _slowest(found[4]):
        version = 6
    return found[version]


def _offers(
    hosts: Sequence[str], candidates: Sequence[Candidate], attempts: Sequence[Attempt]
) -> list[Choice]:
    """The candidates that all others reached."""
    offers = []
    for candidate in reached_by_all(hosts, candidates, attempts):
        own = [each for each in attempts if each.target == candidate and each.reached]
        rtt_s = max((each.rtt_s or 0.0 for each in own), default=0.0) or None
        goodput = min((each.goodput_bytes_per_s or 0.0 for each in own), default=0.0) or None
        it = candidate
        offers.append(Choice(it.host, it.interface, it.address, rtt_s, goodput, it.kind))
    return offers


def _best(hosts: Sequence[str], offers: Sequence[Choice], version: int) -> dict[str, Choice]:
    """The best offer of each host that has one of this family."""
    best = {}
    for host in hosts:
        own = [
            each
            for each in offers
            if each.host == host and ip_address(each.address).version == version
        ]
        if own:
            least = _AS_FAST * max(map(_rate, own))
            fast = [each for each in own if _rate(each) >= least]
            best[host] = min(fast, key=lambda each: each.order)
    return best


def _rate(offer: Choice) -> float:
    # What could not be measured is no faster than anything.
    return offer.goodput_bytes_per_s or 0.0


def _slowest(best: Mapping[str, Choice]) -> float:
    return min(map(_rate, best.values()))


def _explain(
    hosts: Sequence[str], candidates: Sequence[Candidate], attempts: Sequence[Attempt]
) -> YokedError:
    """Why there is no choice: the family that comes closest, its first host without an offer, and
    the dial to its best candidate that failed.
    """
    for host in hosts:
        if not any(each.host == host for each in candidates):
            return fault("no-interface", host=host)
    usable = reached_by_all(hosts, candidates, attempts)
    lacking = {
        version: [host for host in hosts if not _of(usable, host, version)] for version in (4, 6)
    }
    version: Literal[4, 6] = 4 if len(lacking[4]) <= len(lacking[6]) else 6
    # A host without any address of the family explains less than one whose dials failed.
    with_address = [host for host in lacking[version] if _of(candidates, host, version)]
    if not with_address:
        return fault("families", host=lacking[version][0], version=version)
    return _failed_pair(
        [each for each in attempts if each.target in _of(candidates, with_address[0], version)],
        candidates,
    )


def _of(candidates: Iterable[Candidate], host: str, version: int) -> list[Candidate]:
    return [each for each in candidates if each.host == host and each.version == version]


# Which firewall it is nobody has asked yet: that is the doctor's to tell, of a fleet with a file.
_ALLOW = (
    "on {target}, with ufw: sudo ufw allow from {own}",
    "with firewalld: sudo firewall-cmd --zone=trusted --add-source={own}    again with --permanent",
    "with another firewall: let {own} in, or have `yoked doctor` print the line for {target}",
)
_ANOTHER_ADDRESS = "give {target} another address on {interface}"
_TOGETHER = "connect {source} and {target} to the same network"
# What a dial's failure means: {target} is the host, {source} the one who dialled, {text} the
# system's own words, {who} the one who answered. None: somebody did, but not the target.
_CAUSES: dict[str | None, tuple[str, tuple[str, ...]]] = {
    None: ("{who} answers there: two machines have that address.", (_ANOTHER_ADDRESS,)),
    "ETIMEDOUT": (
        "no answer on a high port, although ssh works. A firewall on {target} is the usual cause.",
        _ALLOW,
    ),
    "ECONNREFUSED": (
        "{text}. Another machine has that address too, or a firewall on {target} rejects.",
        (*_ALLOW, f"or {_ANOTHER_ADDRESS}"),
    ),
    "EHOSTUNREACH": (
        "{text}. They are not in one network, or a firewall on {target} says so.",
        (_TOGETHER, *_ALLOW),
    ),
    "ENETUNREACH": ("{text}. They are not in one network.", (_TOGETHER,)),
}


def _failed_pair(attempts: Sequence[Attempt], candidates: Sequence[Candidate]) -> YokedError:
    """The failed dial that says most, in words."""
    reached = {each.target for each in attempts if each.reached}
    worst = min(
        (each for each in attempts if not each.reached),
        key=lambda each: (
            each.target not in reached,
            kind_rank(each.target.kind),
            each.target.interface,
            each.source,
        ),
    )
    target, source = worst.target, worst.source
    own = [each.address for each in _of(candidates, source, target.version)]
    words = {
        "target": target.host,
        "interface": target.interface,
        "source": source,
        "own": own[0] if own else source,
        "text": worst.error_text,
        "who": worst.answered_by,
    }
    cause, fix = _CAUSES.get(worst.error, ("{text}.", _ALLOW))
    way = f"{source} does not reach {target.host} at {target.address} ({target.interface})"
    safe = {name: quoted(word) for name, word in words.items()}
    return HostError(f"{way}: {cause.format(**words)}", fix=[line.format(**safe) for line in fix])


def kind_rank(kind: str) -> int:
    """The place of a kind of interface among all, the most lasting first."""
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)
