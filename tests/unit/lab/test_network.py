from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import LabError
from yoked.lab import network
from yoked.lab.topology import Topology


@pytest.fixture(autouse=True)
def ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that has it, whatever this machine's has."""
    monkeypatch.setattr(network, "has_ipv6", lambda: True)


def test_the_switch_has_a_bridge_for_each_network_with_an_address_for_the_controller(
    wired: Topology,
) -> None:
    assert network.build_switch(wired) == [
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


def test_a_host_is_plugged_into_the_bridge_of_each_of_its_networks(wired: Topology) -> None:
    lines = network.plug(wired.hosts[0], 4711, wired)

    wire, vpn = (each.mac for each in wired.hosts[0].joined)
    assert lines == [
        f"link add dev p0-eth0 type veth peer name eth0 address {wire} netns 4711",
        "link set dev p0-eth0 addrgenmode none",
        "link set dev p0-eth0 master br-lan up",
        f"link add dev p0-tailscale0 type veth peer name tailscale0 address {vpn} netns 4711",
        "link set dev p0-tailscale0 addrgenmode none",
        "link set dev p0-tailscale0 master br-vpn up",
    ]


def test_a_host_gets_its_addresses_and_no_route_out_of_the_lab(wired: Topology) -> None:
    lines = network.configure_host(wired.hosts[0], wired)

    assert lines[0] == "link set dev lo up"
    assert "address add 192.168.77.1/24 dev eth0" in lines
    assert "address add fd7a:115c:a1e0::1/64 dev tailscale0 nodad" in lines
    assert "address add fe80::79:6bff:fe00:1/64 dev tailscale0 scope link nodad" in lines
    assert not [line for line in lines if "route" in line]


def test_no_interface_makes_itself_an_ipv6_address(wired: Topology) -> None:
    lines = network.configure_host(wired.hosts[0], wired)

    for name in ("eth0", "tailscale0", "docker0"):
        silenced = lines.index(f"link set dev {name} addrgenmode none")
        assert silenced < lines.index(f"link set dev {name} up")


def test_a_bridge_of_the_hosts_own_has_a_carrier_and_nothing_in_the_switch(wired: Topology) -> None:
    lines = network.configure_host(wired.hosts[0], wired)

    assert "link set dev docker0 address 02:79:6b:00:00:02" in lines
    assert "link set dev veth2 master docker0 up" in lines
    assert "link set dev veth2-end up" in lines
    assert "address add 172.17.0.1/16 dev docker0" in lines
    assert not [line for line in network.plug(wired.hosts[0], 1, wired) if "docker" in line]


def test_all_hosts_send_single_frames_when_any_link_loses_packets(
    wired: Topology, wireless: Topology
) -> None:
    with_loss = network.configure_host(wireless.hosts[1], wireless)
    without = network.configure_host(wired.hosts[1], wired)

    assert "link set dev eth0 gso_max_size 65536 gso_max_segs 1" in with_loss
    assert "link set dev eth0 gso_max_size 65536 gso_max_segs 65535" in without


def test_a_kernel_without_ipv6_is_not_asked_about_it(
    wired: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "has_ipv6", lambda: False)
    beta = wired.hosts[1]
    plain = Topology("test", "", wired.networks[:1], (beta,))

    network.require_ipv6(plain)
    lines = [
        *network.build_switch(plain),
        *network.build_relay(),
        *network.plug(beta, 1, plain, {"p1-eth0"}),
        *network.configure_host(beta, plain),
        *network.configure_host(wired.hosts[0], wired),
    ]

    assert not [line for line in lines if "addrgenmode" in line]


def test_ipv6_addresses_are_refused_where_the_kernel_has_none(
    wired: Topology, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    network.require_ipv6(wired)
    monkeypatch.setattr(network, "has_ipv6", lambda: False)

    with pytest.raises(LabError) as caught:
        network.require_ipv6(wired)
    assert str(caught.value) == snapshot
