"""Find out from traffic which addresses the hosts of a fleet can use: all hosts at once.

Every host listens for a moment, every other dials each of its addresses; what everybody reached is
then measured, in rounds in which no host is in two pairs, so that measurements do not share a link.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from yoked.agent.virtual import WSL_CREATOR
from yoked.core.faults import fault
from yoked.core.parallel import at_once
from yoked.errors import HostError
from yoked.fleet.choose import Attempt, Candidate, Choice, choose, reached_by_all
from yoked.fleet.enclosed import enclosed_by
from yoked.fleet.model import Fleet, Host

# A lost SYN is sent again after 1 s.
_DIAL_S = 2.5
# Enough to tell 20 Mbit/s from 1 Gbit/s, and gone in a moment on both.
_SEND_S = 0.1
_SEND_BYTES = 2_000_000
# On a busy host all may come in one piece, which has no duration.
_MEASURE_TIMES = 3
_ANSWER_S = 30.0


class Agent(Protocol):
    """What is needed of an agent's client."""

    def call(
        self, name: str, *, data: bytes = b"", timeout_s: float = _ANSWER_S, **args: Any
    ) -> Any:
        """The result of a call."""
        ...

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Any]:
        """The parts of an answer."""
        ...


@dataclass(frozen=True)
class Survey:
    """What was tried, and what follows from it."""

    candidates: tuple[Candidate, ...]
    attempts: tuple[Attempt, ...]
    choices: Mapping[str, Choice]


def find_addresses(fleet: Fleet, agents: Mapping[str, Agent]) -> dict[str, tuple[str, str]]:
    """For every host (interface, address) that its peers can use; see `survey`."""
    choices = survey(fleet.hosts, agents).choices
    return {name: (choice.interface, choice.address) for name, choice in choices.items()}


def survey(hosts: Sequence[Host], agents: Mapping[str, Agent]) -> Survey:
    """Look at the interfaces of two hosts or more, dial, measure and choose.

    An interface that the fleet's file names is the only candidate of its host. Raises HostError
    with the pair that does not come together, or FleetError for an interface that is not there.
    """
    assert len(hosts) > 1, hosts
    names = [host.name for host in hosts]
    found = at_once(lambda host: _candidates(host, agents[host.name].call("interfaces")), hosts)
    candidates = [each for own in found for each in own]
    token = secrets.token_hex(16)
    with ExitStack() as stack:
        # One after the other: each answers at once.
        ports = {name: stack.enter_context(listening(agents[name], token, name)) for name in names}
        dialer = _Dialer(agents, ports, token)
        attempts = dialer.reach(names, candidates)
        usable = reached_by_all(names, candidates, attempts)
        attempts = _merged(attempts, dialer.measure(names, usable))
    try:
        choices = choose(names, candidates, attempts)
    except HostError:
        _blame_what_encloses(agents, attempts)
        raise
    return Survey(tuple(candidates), tuple(attempts), choices)


def _blame_what_encloses(agents: Mapping[str, Agent], attempts: Sequence[Attempt]) -> None:
    """Raise HostError for a host that nobody reached because it is in a container or in Windows."""
    reached = {each.target.host for each in attempts if each.reached}
    hidden = {each.target.host: each for each in attempts if each.target.host not in reached}
    for name, attempt in hidden.items():
        try:
            virtual = agents[name].call("health", parts=["virtual"])["virtual"] or {}
        except HostError:
            # What dials said is said all the same.
            continue
        at = attempt.target
        code = enclosed_by(virtual, at.interface, at.address, attempt.error)
        if code == "container-bridge":
            kind = virtual["container"]
            raise fault(
                "container-bridge",
                host=name,
                address=at.address,
                interface=at.interface,
                container=kind,
            )
        if code == "nat":
            raise fault("nat", host=name, address=at.address)
        if code == "wsl-firewall":
            sources = ",".join(_addresses_but(at, attempts))
            raise fault(
                "wsl-firewall",
                host=name,
                address=at.address,
                creator=WSL_CREATOR,
                sources=sources,
            )


def _addresses_but(target: Candidate, attempts: Sequence[Attempt]) -> list[str]:
    """The addresses from which other hosts would dial a candidate."""
    found = dict.fromkeys(each.target for each in attempts)
    return [
        each.address
        for each in found
        if each.host != target.host
        and each.version == target.version
        and each.kind not in ("docker", "bridge")
    ]


def require_distinct(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise FleetError for two entries that are one machine. facts: of each host, by its name."""
    seen: dict[str, str] = {}
    for name, own in facts.items():
        other = seen.setdefault(own["machine"], name)
        if other != name:
            raise fault("same-machine", other=other, name=name, hostname=own["hostname"])


def _candidates(host: Host, interfaces: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """The interfaces that Gloo could use, or the one that the file names."""
    if host.interface is not None:
        require_interface(host, interfaces)
    return [
        Candidate(host.name, each["name"], each["gloo_address"], each["kind"])
        for each in interfaces
        if each["gloo_address"] is not None
        and each["kind"] != "loopback"
        and host.interface in (None, each["name"])
    ]


def require_interface(host: Host, interfaces: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The interface that the file names, of those of its host. Raises FleetError."""
    for each in interfaces:
        if each["name"] == host.interface:
            return each
    there = ", ".join(each["name"] for each in interfaces) or "none"
    raise fault("interface-gone", host=host.name, interface=host.interface, there=there)


@contextmanager
def listening(agent: Agent, token: str, host: str) -> Iterator[int]:
    """A listener on a host, and its port; leaving closes it."""
    parts = cast(
        "Generator[Any, None, None]",
        agent.stream("listen", timeout_s=_ANSWER_S, token=token, host=host),
    )
    try:
        yield int(first_part(parts, host)["port"])
    finally:
        parts.close()


def first_part(parts: Iterator[Any], host: str) -> Any:
    """What a host's listener says at once. Raises HostError where it says nothing."""
    for part in parts:
        return part.content
    raise HostError(f"{host} does not say where it listens", fix=f"ssh {host} uptime")


def dialled(
    agent: Agent, source: str, targets: Sequence[Mapping[str, Any]], **args: Any
) -> Sequence[Mapping[str, Any]]:
    """What a host answers when it is to dial, one for each target. Raises HostError."""
    answers: Sequence[Mapping[str, Any]] = agent.call("dial", host=source, targets=targets, **args)
    if len(answers) != len(targets):
        raise fault("odd-dials", source=source, targets=len(targets), answers=len(answers))
    return answers


class _Dialer:
    """Dials between hosts whose listeners are open. ports: of each host."""

    def __init__(self, agents: Mapping[str, Agent], ports: Mapping[str, int], token: str) -> None:
        self._agents = agents
        self._ports = ports
        self._token = token

    def reach(self, names: Sequence[str], candidates: Sequence[Candidate]) -> list[Attempt]:
        """Every host dials all candidates of all others, all at once."""

        def dial(name: str) -> list[Attempt]:
            return self._dial(name, [each for each in candidates if each.host != name])

        return [attempt for own in at_once(dial, names) for attempt in own]

    def measure(self, names: Sequence[str], candidates: Sequence[Candidate]) -> list[Attempt]:
        """Every pair in both directions, one candidate after the other."""

        def dial_pair(pair: tuple[str, str]) -> list[Attempt]:
            first, second = pair
            return [
                attempt
                for source, target in ((first, second), (second, first))
                for candidate in candidates
                if candidate.host == target
                for attempt in self._measure(source, candidate)
            ]

        return [
            attempt
            for pairs in rounds(names)
            for own in at_once(dial_pair, pairs)
            for attempt in own
        ]

    def _measure(self, source: str, candidate: Candidate) -> list[Attempt]:
        """One dial that sends, again while it gives no figure."""
        for _ in range(_MEASURE_TIMES):
            attempts = self._dial(source, [candidate], send_s=_SEND_S)
            if attempts[0].goodput_bytes_per_s is not None:
                break
        return attempts

    def _dial(
        self, source: str, targets: Sequence[Candidate], send_s: float = 0.0
    ) -> list[Attempt]:
        if not targets:
            return []
        answers = dialled(
            self._agents[source],
            source,
            [{"address": each.address, "port": self._ports[each.host]} for each in targets],
            token=self._token,
            wait_s=_DIAL_S,
            send_s=send_s,
            send_bytes=_SEND_BYTES,
        )
        return [
            Attempt(
                source,
                target,
                answered_by=answer["answered_by"],
                error=answer["error"],
                error_text=answer["error_text"],
                rtt_s=answer["rtt_s"],
                goodput_bytes_per_s=answer["goodput_bytes_per_s"],
            )
            for target, answer in zip(targets, answers, strict=True)
        ]


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """All pairs, in rounds in which nobody is in two: the circle method of round-robin
    tournaments.
    """
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _merged(reached: Sequence[Attempt], measured: Sequence[Attempt]) -> list[Attempt]:
    """What was reached, with the figures of what was measured. A measurement that failed leaves
    the link without a figure.
    """
    figures = {(each.source, each.target): each for each in measured if each.reached}
    merged = []
    for attempt in reached:
        figure = figures.get((attempt.source, attempt.target))
        if figure is not None:
            times_s = [each for each in (attempt.rtt_s, figure.rtt_s) if each is not None]
            rtt_s = min(times_s, default=None)
            attempt = dataclasses.replace(figure, rtt_s=rtt_s)  # noqa: PLW2901
        merged.append(attempt)
    return merged
