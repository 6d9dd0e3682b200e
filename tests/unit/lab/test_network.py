from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from subprocess import CompletedProcess

import pytest

from yoked.errors import LabError
from yoked.lab import network
from yoked.lab.network import Features
from yoked.lab.topology import Host, Interface, Network, Shape, Topology

ALL = Features(netem=True, nft=True)
NO_NETEM = Features(netem=False, nft=True)
NOTHING = Features(netem=False, nft=False)
GIGABIT = Shape(rate_bit_per_s=1e9)
WIFI = Shape(rate_bit_per_s=40e6, delay_s=0.004, jitter_s=0.003, loss=0.002)


MAC4, MAC6 = "02:79:6b:00:00:01", "02:79:6b:00:00:02"
DOCKER_MAC = "02:42:ac:11:00:01"
ADDRESS6 = IPv6Interface("fd7a:115c:a1e0::1/64")
DOCKER = IPv4Interface("172.17.0.1/16")


def wire(port: str, address: str, shape: Shape) -> Interface:
    return Interface("eth0", "lan", port, MAC4, IPv4Interface(address), None, shape)


def topology(shape: Shape = GIGABIT) -> Topology:
    """One host with a wire, an IPv6 VPN and a docker0; one more with a wire."""
    lan = Network("lan", "br-lan", IPv4Network("192.168.77.0/24"), None)
    vpn = Network("vpn", "br-vpn", None, IPv6Network("fd7a:115c:a1e0::/64"))
    alpha = (
        wire("p0-eth0", "192.168.77.1/24", shape),
        Interface("tailscale0", "vpn", "p0-tailscale0", MAC6, None, ADDRESS6, Shape()),
        Interface("docker0", None, "", DOCKER_MAC, DOCKER, None, Shape()),
    )
    beta = (wire("p1-eth0", "192.168.77.2/24", GIGABIT),)
    hosts = (Host("alpha", 1, 1.0, None, alpha), Host("beta", 1, 1.0, None, beta))
    return Topology("test", "", (lan, vpn), hosts)


class Tools:
    """A namespace in which every tool answers alike, and which keeps what it was given."""

    def __init__(self, status: int = 0, stderr: str = "", stdout: str = "") -> None:
        self.answer = (status, stdout, stderr)
        self.calls: list[tuple[list[str], str]] = []

    def tool(
        self,
        argv: Sequence[str],
        *,
        input: str = "",  # noqa: A002
        check: bool = True,
    ) -> CompletedProcess[str]:
        self.calls.append((list(argv), input))
        return CompletedProcess(list(argv), *self.answer)


def test_the_switch_has_a_bridge_for_each_network_with_an_address_for_the_controller() -> None:
    assert network.build_switch(topology()) == [
        "link set dev lo up",
        "link add dev br-lan type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        "link set dev br-lan addrgenmode none",
        "address add 192.168.77.254/24 dev br-lan",
        "link set dev br-lan up",
        "link add dev br-vpn type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        "link set dev br-vpn addrgenmode none",
        "address add fd7a:115c:a1e0::fe/64 dev br-vpn nodad",
        "link set dev br-vpn up",
    ]


def test_a_host_is_plugged_into_the_bridge_of_each_of_its_networks() -> None:
    whole = topology()

    lines = network.plug(whole.hosts[0], 4711, whole)

    assert lines == [
        f"link add dev p0-eth0 type veth peer name eth0 address {MAC4} netns 4711",
        "link set dev p0-eth0 addrgenmode none",
        "link set dev p0-eth0 master br-lan up",
        f"link add dev p0-tailscale0 type veth peer name tailscale0 address {MAC6} netns 4711",
        "link set dev p0-tailscale0 addrgenmode none",
        "link set dev p0-tailscale0 master br-vpn up",
    ]


def test_a_host_gets_its_addresses_and_no_route_out_of_the_lab() -> None:
    whole = topology()

    lines = network.configure_host(whole.hosts[0], whole)

    assert lines[0] == "link set dev lo up"
    assert "address add 192.168.77.1/24 dev eth0" in lines
    assert "address add fd7a:115c:a1e0::1/64 dev tailscale0 nodad" in lines
    assert "address add fe80::79:6bff:fe00:2/64 dev tailscale0 scope link nodad" in lines
    assert not [line for line in lines if "route" in line]


def test_no_interface_makes_itself_an_ipv6_address() -> None:
    whole = topology()

    lines = network.configure_host(whole.hosts[0], whole)

    for name in ("eth0", "tailscale0", "docker0"):
        silenced = lines.index(f"link set dev {name} addrgenmode none")
        assert silenced < lines.index(f"link set dev {name} up")


def test_a_bridge_of_the_hosts_own_has_a_carrier_and_nothing_in_the_switch() -> None:
    whole = topology()

    lines = network.configure_host(whole.hosts[0], whole)

    assert f"link set dev docker0 address {DOCKER_MAC}" in lines
    assert "link set dev veth2 master docker0 up" in lines
    assert "link set dev veth2-end up" in lines
    assert "address add 172.17.0.1/16 dev docker0" in lines
    assert not [line for line in network.plug(whole.hosts[0], 1, whole) if "docker" in line]


@pytest.mark.parametrize("features", [ALL, NO_NETEM])
def test_a_rate_alone_is_a_token_bucket_with_the_queue_of_a_cheap_switch(
    features: Features,
) -> None:
    assert network.shape_commands("eth0", GIGABIT, features) == [
        "qdisc replace dev eth0 root noqueue",
        "qdisc replace dev eth0 root tbf rate 1000000000bit burst 132144 limit 264288",
    ]


@pytest.mark.parametrize("rate_bit_per_s", [1e6, 1e8, 1e9])
def test_a_port_lets_pass_what_two_shaped_senders_let_pass_at_once(rate_bit_per_s: float) -> None:
    def burst(port: bool) -> int:
        shape = Shape(rate_bit_per_s=rate_bit_per_s)
        (_, line) = network.shape_commands("eth0", shape, NOTHING, port=port)
        words = line.split()
        return int(words[words.index("burst") + 1])

    assert burst(port=True) == 2 * burst(port=False)


@pytest.mark.parametrize(("rate_bit_per_s", "piece"), [(1e8, 12_500), (1e9, 65_536), (1e6, 9_084)])
def test_tcp_hands_over_a_millisecond_at_once_within_what_the_kernel_takes(
    rate_bit_per_s: float, piece: int
) -> None:
    assert network.piece_bytes(rate_bit_per_s) == piece


@pytest.mark.parametrize("rate_bit_per_s", [1e5, 1e7, 1e8, 1e9, 1e10, 4e11])
def test_the_queue_holds_more_than_the_bucket_and_a_piece_of_tcp_fits_into_it(
    rate_bit_per_s: float,
) -> None:
    (_, line) = network.shape_commands("eth0", Shape(rate_bit_per_s=rate_bit_per_s), NOTHING)
    words = line.split()
    burst, limit = (int(words[words.index(name) + 1]) for name in ("burst", "limit"))
    (batch,) = network.batching("eth0", Shape(rate_bit_per_s=rate_bit_per_s), one_by_one=False)
    piece = int(batch.split()[-3])

    # A full frame each 1448 bytes of payload, of which headers take 66.
    assert network.FRAME_BYTES <= piece * 1514 / 1448 < burst < limit


def test_delay_jitter_and_loss_are_one_netem_with_the_rate_where_the_kernel_has_it() -> None:
    (_, line) = network.shape_commands("eth0", WIFI, ALL)

    # 256 KiB of queue and 7 ms of 40 Mbit/s under way, in full frames.
    packets = 197
    assert line == (
        f"qdisc replace dev eth0 root netem limit {packets}"
        " delay 4000us 3000us loss 0.2000% rate 40000000bit"
    )


def test_without_netem_the_rate_is_kept_and_the_rest_left_out() -> None:
    (_, line) = network.shape_commands("eth0", WIFI, NO_NETEM)

    assert "tbf rate 40000000bit" in line
    assert "delay" not in line


def test_netem_has_a_rate_even_where_none_is_asked_for_as_it_would_reorder_packets() -> None:
    (_, line) = network.shape_commands("eth0", Shape(delay_s=0.01, jitter_s=0.005), ALL)

    assert "delay 10000us 5000us rate 100000000000bit" in line


@pytest.mark.parametrize("features", [ALL, NO_NETEM])
def test_no_shape_takes_a_former_one_away(features: Features) -> None:
    assert network.shape_commands("eth0", Shape(), features) == network.unshape("eth0")


def test_loss_drops_both_directions_of_a_port() -> None:
    lines = network.loss_rules("p1-eth0", 0.002, "yoked:7")

    drop = 'numgen random mod 1000000 < 2000 drop comment "yoked:7"'
    assert lines[-2:] == [
        f'add rule bridge yoked loss-p1-eth0 iifname "p1-eth0" {drop}',
        f'add rule bridge yoked loss-p1-eth0 oifname "p1-eth0" {drop}',
    ]
    assert "flush chain bridge yoked loss-p1-eth0" in lines


def test_loss_of_the_topology_is_left_to_netem_where_there_is_one() -> None:
    lossy = topology(WIFI)

    assert network.loss_of_topology(lossy, NO_NETEM) == network.loss_rules(
        "p0-eth0", 0.002, "yoked:topology"
    )
    assert network.loss_of_topology(lossy, ALL) == []
    assert network.loss_of_topology(lossy, NOTHING) == []
    assert network.loss_of_topology(topology(), NO_NETEM) == []


def test_all_hosts_send_single_frames_when_any_link_loses_packets() -> None:
    lossy, clean = topology(WIFI), topology()

    with_loss = network.configure_host(lossy.hosts[1], lossy)
    without = network.configure_host(clean.hosts[1], clean)

    assert "link set dev eth0 gso_max_size 65536 gso_max_segs 1" in with_loss
    assert "link set dev eth0 gso_max_size 65536 gso_max_segs 65535" in without


def test_what_the_kernel_cannot_do_is_told_with_the_host_and_the_remedy() -> None:
    slow = topology(WIFI)

    (delay,) = network.missing(slow, NO_NETEM)
    both = network.missing(slow, NOTHING)

    assert "alpha (4.00 ms, jitter 3.00 ms)" in delay
    assert "sudo modprobe sch_netem" in delay
    assert "alpha (0.20%)" in both[1]
    assert "nftables" in both[1]


def test_nothing_is_told_where_nothing_is_missing() -> None:
    assert network.missing(topology(WIFI), ALL) == []
    assert network.missing(topology(), NOTHING) == []


def test_each_tool_gets_its_lines_in_one_go() -> None:
    where = Tools()

    network.run_ip(where, ["link set dev lo up", "address"])
    network.run_tc(where, ["qdisc"])
    network.run_nft(where, ["list ruleset"])

    assert where.calls == [
        (["ip", "-batch", "-"], "link set dev lo up\naddress\n"),
        (["tc", "-batch", "-"], "qdisc\n"),
        (["nft", "-f", "-"], "list ruleset\n"),
    ]


def test_no_lines_start_no_tool() -> None:
    where = Tools()

    network.run_nft(where, [])

    assert where.calls == []


@pytest.mark.parametrize(
    ("status", "stderr", "message"),
    [
        (
            1,
            'Cannot find device "nope"\nCommand failed -:2\n',
            '`ip link set dev nope up` was refused: Cannot find device "nope"',
        ),
        (
            1,
            "RTNETLINK answers: File exists\nCommand failed -:1\n",
            "`ip link set dev lo up` was refused: File exists",
        ),
        (
            255,
            'Command "foo" is unknown, try "ip link help".\n',
            '`ip` failed with status 255: Command "foo" is unknown, try "ip link help".',
        ),
        (137, "", "`ip` failed with status 137: it gave no reason"),
    ],
)
def test_the_line_that_ip_refused_is_named(status: int, stderr: str, message: str) -> None:
    where = Tools(status, stderr)

    with pytest.raises(LabError) as caught:
        network.run_ip(where, ["link set dev lo up", "link set dev nope up"])

    assert caught.value.what == message


def test_the_line_that_nft_refused_is_named() -> None:
    said = "/dev/stdin:2:1-9: Error: Could not process rule: No such file or directory\nadd rule\n"

    with pytest.raises(LabError) as caught:
        network.run_nft(Tools(1, said), ["add table bridge yoked", "add rule bridge yoked x drop"])

    assert caught.value.what == (
        "`nft add rule bridge yoked x drop` was refused:"
        " Could not process rule: No such file or directory"
    )


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Error: Specified qdisc kind is unknown.\nCommand failed -:1", "modprobe"),
        ("RTNETLINK answers: Operation not permitted\nCommand failed -:1", "as root"),
    ],
)
def test_a_refusal_with_a_known_cause_comes_with_its_remedy(said: str, fix: str) -> None:
    with pytest.raises(LabError) as caught:
        network.run_tc(Tools(2, said), ["qdisc replace dev eth0 root netem delay 1ms"])

    assert fix in caught.value.fix[0]


def test_features_are_what_the_tools_accepted() -> None:
    working, failing = Tools(0), Tools(1, "Error: Specified qdisc kind is unknown.")

    assert Features.probe(working) == ALL
    assert working.calls[1][0][:3] == ["tc", "qdisc", "del"]
    assert Features.probe(failing) == NOTHING


def test_a_missing_tool_is_a_missing_feature() -> None:
    class NoTools(Tools):
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
