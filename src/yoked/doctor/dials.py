"""Dial between all hosts: the sockets that a run will open, of every ordered pair at once.

Every host listens at two ports that the kernel picks, as Gloo does, and at one that stays the same,
as a rendezvous does. Every other dials them at the address that the run would use, and sends a
piece of bulk; what else a host has for addresses is dialled once, to tell causes apart. Where all
of that passes, a burst follows: limits of bytes let a little through.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from yoked.core.parallel import at_once
from yoked.errors import YokedError
from yoked.fleet.choose import Candidate, kind_rank
from yoked.fleet.discover import Agent, dialled, first_part, rounds, survey
from yoked.fleet.model import Host
from yoked.records.examination import Dial, Purpose

RENDEZVOUS_PORT = 29500
# How long an answer may take beyond what it tells of.
_SLACK_S = 1.5
_LISTEN_S, _MEASURED_S, _HALF_OPEN_S = 5.0, 8.0, 2.0
# A moment for a figure of goodput, and what of it counts: see yoked.probe.links.
_SEND_S, _WINDOW = 0.4, {"skip_s": 0.1, "count_s": 0.3}


@dataclass(frozen=True)
class DialProfile:
    """How thoroughly is looked. Sizes in bytes, times in seconds.

    dial_s: until a connection counts as lost: a SYN is sent again after 1 s. all_ports: also a
    second port, the one for a rendezvous, and addresses that the run would not use. burst_bytes: as
    much as fits into a moment; rest_s: for how long a connection says nothing, to see whether it
    lasts; 0: none.
    """

    dial_s: float
    silence_s: float
    bulk_bytes: int
    echoes: int
    all_ports: bool
    burst_bytes: int
    rest_s: float


# A step sends megabytes; what a metered line is capped at, or shaped to, is more than the bulk.
THOROUGH = DialProfile(
    dial_s=2.2, silence_s=2.0, bulk_bytes=262_144, echoes=10, all_ports=True,
    burst_bytes=16_777_216, rest_s=1.8,
)  # fmt: skip
QUICK = DialProfile(
    dial_s=1.15, silence_s=1.5, bulk_bytes=65_536, echoes=0, all_ports=False, burst_bytes=0,
    rest_s=0.0,
)  # fmt: skip
# What a dial has as the host that made it tells it.
_AS_TOLD = ("answered_by", "error", "source_address", "rtt_s", "took_s", "path_mtu_bytes", "unsent",
            "mss_bytes")  # fmt: skip
# 16 MB take an eighth of a second at 1 Gbit/s. On a slow link less is sent.
_BURST_S = 0.7


@dataclass(frozen=True)
class Endpoint:
    """An address of a host. chosen: whether a run would use it."""

    host: str
    interface: str
    address: str
    chosen: bool


@dataclass(frozen=True)
class _Attempt:
    """One dial to be made."""

    endpoint: Endpoint
    port: int
    purpose: Purpose


@dataclass(frozen=True)
class _Call:
    """Dials of one kind, to one host."""

    attempts: tuple[_Attempt, ...]
    send_bytes: int
    echoes: int
    send_s: float | None = None
    rest_s: float = 0.0


@dataclass(frozen=True)
class _Ports:
    """Where a host listens. rendezvous: None where that port is taken."""

    first: int
    second: int | None
    rendezvous: int | None


def endpoints_of(
    hosts: Sequence[Host],
    interfaces: Mapping[str, Sequence[Mapping[str, Any]]],
    agents: Mapping[str, Agent],
) -> list[Endpoint]:
    """The addresses of all hosts that Gloo could use, and which of them a run would.

    interfaces: of each host, as the agent's call of this name tells them.
    """
    candidates = [
        Candidate(host.name, each["name"], each["gloo_address"], each["kind"])
        for host in hosts
        for each in interfaces[host.name]
        if each["gloo_address"] is not None and each["kind"] != "loopback"
    ]
    chosen = {host.name: host.interface for host in hosts}
    if None in chosen.values():
        chosen = _choose(hosts, candidates, agents)
    return [
        Endpoint(
            each.host, each.interface, each.address, chosen=chosen[each.host] == each.interface
        )
        for each in candidates
    ]


def _choose(
    hosts: Sequence[Host], candidates: Sequence[Candidate], agents: Mapping[str, Agent]
) -> dict[str, str | None]:
    """What a launch would find out by traffic; where it would fail, what is likely to be meant."""
    likely: dict[str, str | None] = {
        host.name: host.interface or _likely(host.name, candidates) for host in hosts
    }
    if len(hosts) == 1:
        return likely
    try:
        found = survey(hosts, agents).choices
    except YokedError:
        return likely
    return {**likely, **{name: choice.interface for name, choice in found.items()}}


def _likely(host: str, candidates: Sequence[Candidate]) -> str | None:
    own = [each for each in candidates if each.host == host]
    best = min(own, key=lambda each: (each.version, kind_rank(each.kind)), default=None)
    return None if best is None else best.interface


def dial_all(
    endpoints: Sequence[Endpoint], agents: Mapping[str, Agent], profile: DialProfile
) -> list[Dial]:
    """All dials of a look, at the same time; those of a host that falls silent are left out."""
    names = list(agents)
    token = secrets.token_hex(16)
    with _listening(agents, token, profile) as ports:

        def dial(source: str) -> list[Dial]:
            calls = [
                call
                for target in ports
                if target != source
                for call in _calls(
                    [endpoint for endpoint in endpoints if endpoint.host == target], ports, profile
                )
            ]
            return _dial_each(agents[source], source, calls, token, profile)

        def burst(source: str) -> list[Dial]:
            calls = [
                _Call((attempt,), profile.burst_bytes, echoes=0, send_s=_BURST_S)
                for each in endpoints
                if each.chosen and each.host in ports and (source, each.host) in whole
                for attempt in [_Attempt(each, ports[each.host].first, "burst")]
            ]
            return _dial_each(agents[source], source, calls, token, profile)

        found = [each for own in at_once(dial, names) for each in own]
        whole = _whole(found) if profile.burst_bytes else set()
        # By itself: in a full queue the echoes before would wait.
        found += [each for own in at_once(burst, names) for each in own] if whole else []
        # While the listeners are there: with them goes what their kernels know.
        return _with_arrivals(found, agents)


@contextmanager
def resting(
    endpoints: Sequence[Endpoint], agents: Mapping[str, Agent], profile: DialProfile
) -> Iterator[Callable[[], list[Dial]]]:
    """Connections of all links on which nothing is sent for a while, beside all else that is done.

    Gives a function that waits for them, and has those that came about.
    """
    token = secrets.token_hex(16)

    def rest() -> list[Dial]:
        with _listening(agents, token, QUICK) as ports:

            def dial(source: str) -> list[Dial]:
                calls = [
                    _Call((attempt,), send_bytes=0, echoes=1, rest_s=profile.rest_s)
                    for each in endpoints
                    if each.chosen and each.host in ports and each.host != source
                    for attempt in [_Attempt(each, ports[each.host].first, "rest")]
                ]
                return _dial_each(agents[source], source, calls, token, profile)

            own = at_once(dial, list(agents))
            # Others tell why a connection does not come about.
            return [each for dials in own for each in dials if each.rtt_s is not None]

    with ThreadPoolExecutor(1, "resting") as pool:
        is_wanted = profile.rest_s and len(agents) > 1
        found = pool.submit(rest) if is_wanted else None
        yield lambda: [] if found is None else found.result()


def _dial_each(
    agent: Agent, source: str, calls: Sequence[_Call], token: str, profile: DialProfile
) -> list[Dial]:
    answers = at_once(lambda call: _dial(agent, source, call, token, profile), calls)
    return [found for own in answers for found in own]


def _whole(dials: Sequence[Dial]) -> set[tuple[str, str]]:
    """The links on which every dial of the run came through."""
    chosen = [each for each in dials if each.chosen]
    failed = {(each.source, each.target) for each in chosen if not each.ok}
    return {(each.source, each.target) for each in chosen} - failed


def _with_arrivals(dials: Sequence[Dial], agents: Mapping[str, Agent]) -> list[Dial]:
    """The same dials; those that met silence with what their targets' kernels know of them."""

    def is_lost(dial: Dial) -> bool:
        return dial.error == "ETIMEDOUT" and dial.rtt_s is None and dial.arrived is None

    def ask(name: str) -> Any:
        try:
            return agents[name].call("half_open", timeout_s=_HALF_OPEN_S)
        except YokedError:
            return None

    targets = list(dict.fromkeys(each.target for each in dials if is_lost(each)))
    begun = dict(zip(targets, at_once(ask, targets), strict=True))
    known = {each.source_address for each in dials}
    return [
        _with_arrival(each, begun[each.target], known)
        if is_lost(each) and begun[each.target] is not None
        else each
        for each in dials
    ]


def _with_arrival(dial: Dial, begun: Sequence[Mapping[str, Any]], known: set[str | None]) -> Dial:
    """The dial with whether it is among the connections that were begun with its target.

    known: the addresses from which hosts dial.
    """
    sources = [str(each["address"]) for each in begun if each["port"] == dial.port]
    if dial.source_address in sources:
        return replace(dial, arrived=True)
    # Somebody between, or a rule of the source's, may have given it another address.
    strange = [each for each in sources if each not in known]
    return replace(dial, arrived=bool(strange), arrived_from=strange[0] if strange else None)


def _calls(
    endpoints: Sequence[Endpoint], ports: Mapping[str, _Ports], profile: DialProfile
) -> Iterator[_Call]:
    """What one host is asked to dial of another: short answers, of which the bulk's may be late."""
    attempts, bulk = [], []
    for endpoint in endpoints:
        own = ports[endpoint.host]
        if endpoint.chosen or profile.all_ports:
            attempts.append(_Attempt(endpoint, own.first, "ephemeral"))
        if endpoint.chosen:
            if own.second is not None:
                attempts.append(_Attempt(endpoint, own.second, "ephemeral"))
            if own.rendezvous is not None:
                attempts.append(_Attempt(endpoint, own.rendezvous, "rendezvous"))
            bulk.append(_Attempt(endpoint, own.first, "bulk"))
    if attempts:
        yield _Call(tuple(attempts), send_bytes=0, echoes=profile.echoes)
    if bulk:
        yield _Call(tuple(bulk), send_bytes=profile.bulk_bytes, echoes=0)


@contextmanager
def _listening(
    agents: Mapping[str, Agent], token: str, profile: DialProfile
) -> Iterator[dict[str, _Ports]]:
    """Listeners on all hosts that have one to give, and their ports; leaving closes them."""
    more = [0, RENDEZVOUS_PORT] if profile.all_ports else []
    with ExitStack() as stack:

        def listen(name: str) -> tuple[str, _Ports] | None:
            try:
                parts = agents[name].stream(
                    "listen", timeout_s=_LISTEN_S, token=token, host=name, more=more
                )
                content = first_part(parts, name)
            except YokedError:
                return None
            stack.callback(parts.close)  # type: ignore[attr-defined]
            second, rendezvous = (content["more"] + [None, None])[:2]
            return name, _Ports(content["port"], second, rendezvous)

        yield dict(found for found in at_once(listen, agents) if found is not None)


def _dial(agent: Agent, source: str, call: _Call, token: str, profile: DialProfile) -> list[Dial]:
    """The dials of one call; none where the host falls silent."""
    targets = [{"address": each.endpoint.address, "port": each.port} for each in call.attempts]
    try:
        answers = dialled(
            agent,
            source,
            targets,
            timeout_s=profile.dial_s + 2 * profile.silence_s + call.rest_s + _SLACK_S,
            token=token,
            wait_s=profile.dial_s,
            patience_s=profile.silence_s,
            send_s=call.send_s or (profile.silence_s if call.send_bytes else 0.0),
            send_bytes=call.send_bytes,
            echoes=call.echoes,
            rest_s=call.rest_s,
        )
    except YokedError:
        return []
    return [
        _seen(source, attempt, answer, profile)
        for attempt, answer in zip(call.attempts, answers, strict=True)
    ]


def _seen(source: str, attempt: _Attempt, answer: Mapping[str, Any], profile: DialProfile) -> Dial:
    text = answer["error_text"]
    if answer["connected"] and answer["error"] == "ETIMEDOUT":
        text = f"it connected, then nothing came for {profile.silence_s:g} s"
    return Dial(
        source=source,
        target=attempt.endpoint.host,
        interface=attempt.endpoint.interface,
        address=attempt.endpoint.address,
        port=attempt.port,
        purpose=attempt.purpose,
        chosen=attempt.endpoint.chosen,
        ok=answer["ok"] and answer["answered_by"] == attempt.endpoint.host,
        error_text=text,
        echo_s=tuple(answer["echo_s"]),
        bulk_bytes=answer["arrived_bytes"] if attempt.purpose in ("bulk", "burst") else None,
        goodput_bytes_per_s=answer["goodput_bytes_per_s"] if attempt.purpose == "burst" else None,
        opened=answer["connected"],
        arrived=True if answer["connected"] and answer["error"] == "ETIMEDOUT" else None,
        **{name: answer.get(name) for name in _AS_TOLD},
    )


def measure(dials: Sequence[Dial], agents: Mapping[str, Agent]) -> list[Dial]:
    """The same dials, with the goodput of each address that was reached.

    In rounds in which no host is in two pairs, so that measurements do not share a link. A figure
    stands with the bulk dial of a chosen address, and with the only one of any other.
    """
    token = secrets.token_hex(16)
    figures: dict[tuple[str, str, str], float | None] = {}
    with _listening(agents, token, QUICK) as ports:

        def send(pair: tuple[str, str]) -> None:
            for source, target in (pair, pair[::-1]):
                # Where the target itself answered, each address once.
                reached = (each.address for each in dials if each.ok
                           and (each.source, each.target) == (source, target))  # fmt: skip
                for address in dict.fromkeys(reached):
                    figures[source, target, address] = _goodput(
                        agents[source], source, address, ports[target].first, token
                    )

        for pairs in rounds(list(ports)):
            at_once(send, pairs)
    return [
        replace(each, goodput_bytes_per_s=figures.get((each.source, each.target, each.address)))
        if each.purpose == ("bulk" if each.chosen else "ephemeral")
        else each
        for each in dials
    ]


def _goodput(agent: Agent, source: str, address: str, port: int, token: str) -> float | None:
    """Bytes per second that arrive; None: it could not be measured."""
    try:
        (answer,) = dialled(
            agent,
            source,
            [{"address": address, "port": port}],
            timeout_s=_MEASURED_S,
            token=token,
            wait_s=THOROUGH.dial_s,
            patience_s=THOROUGH.silence_s,
            send_s=_SEND_S,
            send_bytes=None,
            window=_WINDOW,
        )
    except YokedError:
        return None
    figure: float | None = answer["goodput_bytes_per_s"]
    return figure
