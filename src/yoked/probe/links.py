"""Measure raw TCP between all hosts, in both directions: goodput, round trip and MTU.

Pairs are measured in rounds; in a round no host is in two pairs. A pair sends one way, then the
other, then both ways at once. It uses the addresses of the interfaces in yoked.toml.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from yoked.core.faults import fault
from yoked.core.parallel import at_once
from yoked.fleet.discover import Agent, dialled, listening, rounds
from yoked.records.measurement import Link

# A lost SYN is sent again after 1 s (RFC 6298): one may be lost.
DIAL_S = 2.5
ECHOES = 20  # single bytes there and back


@dataclass(frozen=True)
class LinkEnd:
    """One end of a link: a host's interface from yoked.toml, and its current address."""

    host: str
    interface: str
    address: str
    mtu_bytes: int | None

    @property
    def family(self) -> str:
        """ipv4 or ipv6."""
        return f"ipv{ip_address(self.address).version}"


@dataclass(frozen=True)
class Timing:
    """How long one direction sends, and which part of that counts.

    skip_s: at the start, until a shaped link's token bucket is empty and TCP is at full speed.
    slack_s: at the end, when both send at once: the other may have begun and stopped earlier.
    """

    send_s: float = 0.7
    skip_s: float = 0.15
    slack_s: float = 0.1

    def window(self, *, both: bool) -> dict[str, float]:
        """The part of the time that counts, as arguments of the agent's `dial`."""
        slack_s = self.slack_s if both else 0.0
        return {"skip_s": self.skip_s, "count_s": self.send_s - self.skip_s - slack_s}


QUICK = Timing(send_s=0.4, skip_s=0.1, slack_s=0.1)


@dataclass(frozen=True)
class LinkMeasurement:
    """A link, and the MTU of the sender's interface, which its record does not keep."""

    link: Link
    interface_mtu_bytes: int | None


def measure_links(
    ends: Sequence[LinkEnd],
    agents: Mapping[str, Agent],
    timing: Timing,
    progress: Callable[[int, int], None],
) -> list[LinkMeasurement]:
    """Measure every ordered pair of hosts. progress: called with the pairs done, and all pairs.

    Raises HostError that names the pair whose connection failed.
    """
    by_name = {end.host: end for end in ends}
    order = list(by_name)
    # Listeners answer only who knows it: any device on the network can dial their ports.
    token = secrets.token_hex(16)
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(listening(agents[name], token, name)) for name in by_name
        }

        def send(source: str, target: str, *, both: bool) -> Mapping[str, Any]:
            # The other way's bytes would delay an echo; one way has measured it already.
            end, echoes = by_name[target], 0 if both else ECHOES
            (answer,) = dialled(
                agents[source],
                source,
                [{"address": end.address, "port": ports[target]}],
                token=token,
                wait_s=DIAL_S,
                send_s=timing.send_s,
                send_bytes=None,  # as many as send_s allows
                echoes=echoes,
                window=timing.window(both=both),
            )
            _require_answer(source, end, answer, echoes)
            return answer

        def measure(pair: tuple[str, str]) -> list[LinkMeasurement]:
            """Measure both links between two hosts."""
            ways = [pair, (pair[1], pair[0])]
            one_way = [send(*way, both=False) for way in ways]
            both_ways = at_once(lambda way: send(*way, both=True), ways)
            # Both ends see the same round trip; a longer time means that a processor was busy.
            echoes_s = [echo_s for answer in one_way for echo_s in answer["echo_s"]]
            return [
                _link_measurement(by_name[source], target, one, both, echoes_s)
                for (source, target), one, both in zip(ways, one_way, both_ways, strict=True)
            ]

        found: list[LinkMeasurement] = []
        for pairs in rounds(order):
            for both in at_once(measure, pairs):
                found += both
            progress(len(found) // 2, len(ends) * (len(ends) - 1) // 2)
    return sorted(
        found, key=lambda each: (order.index(each.link.from_host), order.index(each.link.to_host))
    )


def _link_measurement(
    end: LinkEnd,
    to_host: str,
    one_way: Mapping[str, Any],
    both: Mapping[str, Any],
    echoes_s: Sequence[float],
) -> LinkMeasurement:
    """echoes_s: of both ways, which see the same round trips."""
    rtt_s = min(echoes_s)
    # A tenth of them is left out: a host that was busy for once is no jitter of the link.
    usual_s = sorted(echoes_s)[: -max(1, len(echoes_s) // 10)]
    link = Link(
        from_host=end.host,
        to_host=to_host,
        interface=end.interface,
        family=end.family,
        # Only Linux tells the MTU of a path. 0: unknown.
        mtu_bytes=one_way["path_mtu_bytes"] or end.mtu_bytes or 0,
        rtt_s=rtt_s,
        goodput_bytes_per_s=one_way["goodput_bytes_per_s"],
        both_ways_bytes_per_s=both["goodput_bytes_per_s"],
        jitter_s=statistics.mean(usual_s) - rtt_s,
        resent=one_way["resent"],
    )
    return LinkMeasurement(link, end.mtu_bytes)


def _require_answer(source: str, end: LinkEnd, answer: Mapping[str, Any], echoes: int) -> None:
    where = f"{end.host} at {end.address} ({end.interface})"
    if not answer["ok"]:
        raise fault("link-lost", source=source, where=where, reason=answer["error_text"])
    if len(answer["echo_s"]) != echoes:
        raise fault(
            "odd-echoes", source=source, echoes=echoes, where=where, told=len(answer["echo_s"])
        )
    if answer["answered_by"] != end.host:
        raise fault("other-answers", source=source, answered_by=answer["answered_by"], where=where)
    if answer["goodput_bytes_per_s"] is None:
        raise fault("link-dead", source=source, where=where, host=end.host, interface=end.interface)
