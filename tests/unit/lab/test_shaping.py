from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from subprocess import CompletedProcess
from typing import Any

import pytest

from yoked.errors import LabError
from yoked.lab import shaping
from yoked.lab.shaping import Features
from yoked.lab.topology import Shape, Topology

ALL = Features(netem=True, nft=True)
NO_NETEM = Features(netem=False, nft=True)
NOTHING = Features(netem=False, nft=False)
GIGABIT = Shape(rate_bit_per_s=1e9)
WIFI = Shape(rate_bit_per_s=40e6, delay_s=0.004, jitter_s=0.003, loss=0.002)


@pytest.mark.parametrize("features", [ALL, NO_NETEM])
def test_a_rate_alone_is_a_token_bucket_with_the_queue_of_a_cheap_switch(
    features: Features,
) -> None:
    assert shaping.shape_commands("eth0", GIGABIT, features) == [
        "qdisc replace dev eth0 root noqueue",
        "qdisc replace dev eth0 root tbf rate 1000000000bit burst 132144 limit 264288",
    ]


@pytest.mark.parametrize("rate_bit_per_s", [1e6, 1e8, 1e9])
def test_a_port_lets_pass_what_two_shaped_senders_let_pass_at_once(rate_bit_per_s: float) -> None:
    def burst(port: bool) -> int:
        shape = Shape(rate_bit_per_s=rate_bit_per_s)
        (_, line) = shaping.shape_commands("eth0", shape, NOTHING, port=port)
        words = line.split()
        return int(words[words.index("burst") + 1])

    assert burst(port=True) == 2 * burst(port=False)


@pytest.mark.parametrize(("rate_bit_per_s", "piece"), [(1e8, 12_500), (1e9, 65_536), (1e6, 9_084)])
def test_tcp_hands_over_a_millisecond_at_once_within_what_the_kernel_takes(
    rate_bit_per_s: float, piece: int
) -> None:
    assert shaping.piece_bytes(rate_bit_per_s) == piece


@pytest.mark.parametrize("rate_bit_per_s", [1e5, 1e7, 1e8, 1e9, 1e10, 4e11])
def test_the_queue_holds_more_than_the_bucket_and_a_piece_of_tcp_fits_into_it(
    rate_bit_per_s: float,
) -> None:
    (_, line) = shaping.shape_commands("eth0", Shape(rate_bit_per_s=rate_bit_per_s), NOTHING)
    words = line.split()
    burst, limit = (int(words[words.index(name) + 1]) for name in ("burst", "limit"))
    (batch,) = shaping.batching("eth0", Shape(rate_bit_per_s=rate_bit_per_s), one_by_one=False)
    piece = int(batch.split()[-3])

    # A full frame each 1448 bytes of payload, of which headers take 66.
    assert shaping.FRAME_BYTES <= piece * 1514 / 1448 < burst < limit


def test_delay_jitter_and_loss_are_one_netem_with_the_rate_where_the_kernel_has_it() -> None:
    (_, line) = shaping.shape_commands("eth0", WIFI, ALL)

    # 256 KiB of queue and 7 ms of 40 Mbit/s under way, in full frames.
    packets = 197
    assert line == (
        f"qdisc replace dev eth0 root netem limit {packets}"
        " delay 4000us 3000us loss 0.2000% rate 40000000bit"
    )


def test_without_netem_the_rate_is_kept_and_the_rest_left_out() -> None:
    (_, line) = shaping.shape_commands("eth0", WIFI, NO_NETEM)

    assert "tbf rate 40000000bit" in line
    assert "delay" not in line


def test_netem_has_a_rate_even_where_none_is_asked_for_as_it_would_reorder_packets() -> None:
    (_, line) = shaping.shape_commands("eth0", Shape(delay_s=0.01, jitter_s=0.005), ALL)

    assert "delay 10000us 5000us rate 100000000000bit" in line


@pytest.mark.parametrize("features", [ALL, NO_NETEM])
def test_no_shape_takes_a_former_one_away(features: Features) -> None:
    assert shaping.shape_commands("eth0", Shape(), features) == shaping.unshape("eth0")


def test_loss_drops_both_directions_of_a_port() -> None:
    lines = shaping.loss_rules("p1-eth0", 0.002, "yoked:7")

    drop = 'numgen random mod 1000000 < 2000 drop comment "yoked:7"'
    assert lines[-2:] == [
        f'add rule bridge yoked loss-p1-eth0 iifname "p1-eth0" {drop}',
        f'add rule bridge yoked loss-p1-eth0 oifname "p1-eth0" {drop}',
    ]
    assert "flush chain bridge yoked loss-p1-eth0" in lines


def test_loss_of_the_topology_is_left_to_netem_where_there_is_one(
    wired: Topology, wireless: Topology
) -> None:
    assert shaping.loss_of_topology(wireless, NO_NETEM) == shaping.loss_rules(
        "p0-eth0", 0.002, "yoked:topology"
    )
    assert shaping.loss_of_topology(wireless, ALL) == []
    assert shaping.loss_of_topology(wireless, NOTHING) == []
    assert shaping.loss_of_topology(wired, NO_NETEM) == []


def test_what_the_kernel_cannot_do_is_told_with_the_host_and_the_remedy(wireless: Topology) -> None:
    (delay,) = shaping.missing(wireless, NO_NETEM)
    both = shaping.missing(wireless, NOTHING)

    assert "alpha (4.00 ms, jitter 3.00 ms)" in delay
    assert "sudo modprobe sch_netem" in delay
    assert "alpha (0.20%)" in both[1]
    assert "nftables" in both[1]


def test_nothing_is_told_where_nothing_is_missing(wired: Topology, wireless: Topology) -> None:
    assert shaping.missing(wireless, ALL) == []
    assert shaping.missing(wired, NOTHING) == []


def test_features_are_what_the_tools_accepted(tools_with: Callable[..., Any]) -> None:
    working, failing = tools_with(0), tools_with(1, "Error: Specified qdisc kind is unknown.")

    assert Features.probe(working) == ALL
    assert working.calls[1][0][:3] == ["tc", "qdisc", "del"]
    assert Features.probe(failing) == NOTHING


def test_a_missing_tool_is_a_missing_feature() -> None:
    class NoTools:
        def tool(
            self,
            argv: Sequence[str],
            *,
            input: str = "",  # noqa: A002
            check: bool = True,
        ) -> CompletedProcess[str]:
            raise LabError(f"{argv[0]} is not installed")

    assert Features.probe(NoTools()) == NOTHING


def test_features_survive_being_written_down() -> None:
    assert Features(**dataclasses.asdict(NO_NETEM)) == NO_NETEM
