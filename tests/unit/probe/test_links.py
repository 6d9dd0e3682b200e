"""Links between hosts that are all this machine: real agents' answers over real sockets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.failures import raises_fault

from yoked.agent.server import Call
from yoked.agent.sockets import answer_dial, answer_listen
from yoked.probe.links import LinkEnd, LinkMeasurement, Timing, _link_measurement, measure_links
from yoked.remote.client import Part

# Long enough for some pieces on a busy machine, and no longer.
BRIEF = Timing(send_s=0.12, skip_s=0.02, slack_s=0.02)
DEADLINE_S = 20.0


class LocalAgent:
    """Answers in this process. broken: changes what a dial says."""

    def __init__(self, log: list[tuple[str, str]], **broken: Any) -> None:
        self._log, self._broken = log, broken

    def call(self, name: str, *, data: bytes = b"", timeout_s: float = 0, **args: Any) -> Any:
        assert (name, data) == ("dial", b"")
        self._log.append(("dial", args["host"]))
        return [{**answer, **self._broken} for answer in answer_dial(_LocalCall(args))]

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Part]:
        assert (name, data) == ("listen", b"")
        call = _LocalCall(args)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(answer_listen, call)
            try:
                yield Part(call.parts.get(timeout=DEADLINE_S))
            finally:
                call.cancelled.set()
                ended.result(DEADLINE_S)
                self._log.append(("closed", args["host"]))


class _LocalCall(Call):
    def __init__(self, args: dict[str, Any]) -> None:
        self.args, self.data = args, b""
        self.cancelled = threading.Event()
        self.parts: queue.Queue[Any] = queue.Queue()

    def send(self, part: Any, data: bytes = b"") -> None:
        self.parts.put(part)


def measure(
    names: list[str], log: list[tuple[str, str]], timing: Timing = BRIEF, **broken: Any
) -> tuple[list[LinkMeasurement], list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    ends = [LinkEnd(name, "lo", "127.0.0.1", 65_536) for name in names]
    agents = {name: LocalAgent(log, **broken) for name in names}
    return measure_links(ends, agents, timing, lambda *done: told.append(done)), told


def test_every_ordered_pair_is_measured_and_no_listener_is_left() -> None:
    log: list[tuple[str, str]] = []

    measured, told = measure(["alpha", "beta", "gamma"], log)

    pairs = [(each.link.from_host, each.link.to_host) for each in measured]
    assert pairs == [
        *(("alpha", "beta"), ("alpha", "gamma")),
        *(("beta", "alpha"), ("beta", "gamma")),
        *(("gamma", "alpha"), ("gamma", "beta")),
    ]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert sorted(each for each in log if each[0] == "closed") == [
        ("closed", "alpha"),
        ("closed", "beta"),
        ("closed", "gamma"),
    ]


def test_a_link_has_a_rate_each_way_a_round_trip_and_the_paths_mtu() -> None:
    measured, _ = measure(["alpha", "beta"], [])

    link = measured[0].link
    assert link.goodput_bytes_per_s > 0
    assert link.both_ways_bytes_per_s > 0
    assert link.rtt_s > 0
    assert link.jitter_s >= 0
    assert link.resent is not None
    assert 0 <= link.resent < 0.5
    assert (link.interface, link.family) == ("lo", "ipv4")
    # Linux has 65,536 for its loopback, and IPv4 packets of at most a byte less.
    assert link.mtu_bytes in (65_535, 65_536)


def test_jitter_is_the_mean_of_the_usual_round_trips_over_the_shortest() -> None:
    way = {"path_mtu_bytes": None, "resent": None, "goodput_bytes_per_s": 1e6}
    end = LinkEnd("alpha", "wlan0", "192.0.2.1", None)

    found = _link_measurement(end, "beta", way, way, [0.002] * 9 + [0.006] * 9 + [0.3, 0.3])

    # A tenth is left out: alpha was busy twice.
    assert (found.link.rtt_s, found.link.jitter_s) == (0.002, pytest.approx(0.002))


def test_a_lost_connection_is_named_with_both_hosts() -> None:
    with raises_fault("link-lost", source="alpha", where="beta at 127.0.0.1 (lo)"):
        measure(["alpha", "beta"], [], ok=False, error_text="Connection timed out")


def test_another_machine_with_the_address_is_told() -> None:
    with raises_fault("other-answers", answered_by="printer"):
        measure(["alpha", "beta"], [], answered_by="printer")


def test_a_link_that_swallows_everything_is_told() -> None:
    with raises_fault("link-dead"):
        measure(["alpha", "beta"], [], goodput_bytes_per_s=None)


def test_what_counts_ends_before_either_of_two_senders() -> None:
    timing = Timing(send_s=1.0, skip_s=0.2, slack_s=0.15)

    alone, both = timing.window(both=False), timing.window(both=True)

    assert alone == {"skip_s": 0.2, "count_s": 0.8}
    assert both["skip_s"] + both["count_s"] == pytest.approx(0.85)


def test_an_address_tells_its_family() -> None:
    assert LinkEnd("alpha", "eth0", "fd00::1", None).family == "ipv6"
