from __future__ import annotations

import dataclasses
import json
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.lab.made import made

from yoked.errors import UsageError
from yoked.lab import topology, topology_load
from yoked.lab.topology import Shape

LAN = '[[network]]\nname = "lan"\nsubnet = "192.168.77.0/24"\n'
ALPHA = '[[host]]\nname = "alpha"\n'


def error_of(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        made(text)
    return str(caught.value)


def test_the_shipped_topologies_are_those_that_the_documents_name() -> None:
    assert set(topology_load.shipped()) == {
        "two-hosts-1gbe",
        "two-hosts-100mbit",
        "wifi-laptop",
        "unequal",
        "four-hosts",
        "vpn-and-docker",
    }
    assert all(topology_load.shipped().values())


@pytest.mark.parametrize("name", sorted(topology_load.shipped()))
def test_a_shipped_topology_survives_its_json(name: str) -> None:
    loaded = topology_load.load(name)

    through_json = topology.from_json(json.loads(json.dumps(topology.to_json(loaded))))

    assert through_json == loaded
    assert loaded.name == name


@pytest.mark.parametrize("name", sorted(topology_load.shipped()))
def test_names_and_addresses_in_a_shipped_topology_are_unique(name: str) -> None:
    interfaces = [each for host in topology_load.load(name).hosts for each in host.interfaces]
    joined = [each for each in interfaces if each.network is not None]

    for values in (
        [each.port for each in joined],
        [each.mac for each in interfaces],
        [ip for each in joined for ip in (each.address4, each.address6) if ip],
    ):
        assert len(values) == len(set(values)) > 0


def test_a_gigabit_pair_has_addresses_in_order_and_its_rate() -> None:
    pair = topology_load.load("two-hosts-1gbe")

    assert [host.address for host in pair.hosts] == ["192.168.77.1", "192.168.77.2"]
    assert [host.cpus for host in pair.hosts] == [1, 1]
    assert {host.interfaces[0].shape for host in pair.hosts} == {Shape(rate_bit_per_s=1e9)}
    assert pair.networks[0].bridge == "br-lan"
    assert pair.networks[0].bridge4 == IPv4Interface("192.168.77.254/24")


def test_the_wifi_laptop_is_slow_late_and_lossy_and_the_desktop_is_not() -> None:
    desktop, laptop = topology_load.load("wifi-laptop").hosts

    assert desktop.interfaces[0].shape == Shape(rate_bit_per_s=1e9)
    assert laptop.interfaces[0].shape == Shape(40e6, delay_s=0.004, jitter_s=0.003, loss=0.002)


def test_unequal_hosts_are_four_to_one() -> None:
    unequal = topology_load.load("unequal")

    assert unequal.host("fast").speed == 4 * unequal.host("slow").speed


def test_docker_bridges_share_one_address_and_the_vpn_has_only_ipv6() -> None:
    alpha, beta = topology_load.load("vpn-and-docker").hosts
    eth0, docker0, tailscale0 = alpha.interfaces

    assert docker0.address4 == beta.interfaces[1].address4 == IPv4Interface("172.17.0.1/16")
    assert (docker0.network, docker0.port) == (None, "")
    assert (tailscale0.network, tailscale0.address4) == ("vpn", None)
    assert tailscale0.address6 == IPv6Interface("fd7a:115c:a1e0::1/64")
    assert tailscale0.shape.rate_bit_per_s == 20e6
    assert alpha.address == str(eth0.address4.ip if eth0.address4 else None)


def test_a_file_without_a_network_has_the_lan() -> None:
    home = made(ALPHA)

    assert home.networks[0].subnet4 == IPv4Network("192.168.77.0/24")
    assert home.networks[0].subnet6 is None
    assert home.hosts[0].interfaces[0].address6 is None


def test_the_lan_carries_ipv6_once_a_host_asks_for_it() -> None:
    home = made(ALPHA + 'family = "6"\n[[host]]\nname = "beta"\n[[host]]\nname = "c"\nfamily="4"')
    alpha, beta, gamma = (host.interfaces[0] for host in home.hosts)

    assert (alpha.address4, alpha.address6) == (None, IPv6Interface("fd77::1/64"))
    assert (beta.address4 is None, beta.address6 is None) == (False, False)
    assert gamma.address6 is None
    assert [host.address for host in home.hosts] == ["fd77::1", "192.168.77.1", "192.168.77.2"]


@pytest.mark.parametrize("text", ["1gbit", "1000mbit", "1 Gbit/s", "125 MB/s"])
def test_a_rate_is_written_as_tc_or_as_yoked_writes_it(text: str) -> None:
    shape = made(f'{ALPHA}rate = "{text}"').hosts[0].interfaces[0].shape

    assert shape.rate_bit_per_s == 1e9


def test_a_link_takes_from_its_network_what_it_does_not_say_itself() -> None:
    network = LAN + 'rate = "100mbit"\ndelay = "5 ms"\nloss = "1%"\n'

    shape = made(network + ALPHA + 'rate = "20mbit"\nloss = "0%"').hosts[0].interfaces[0].shape

    assert shape == Shape(20e6, delay_s=0.005)


def test_memory_speed_and_cpus_are_kept() -> None:
    host = made(ALPHA + 'memory = "4 GB"\nspeed = 0.5\ncpus = 2').hosts[0]

    assert (host.memory_bytes, host.speed, host.cpus) == (4 * 10**9, 0.5, 2)


def test_an_address_that_is_asked_for_is_given_to_nobody_else() -> None:
    asked = '[[host.interface]]\nname = "eth0"\naddress = "192.168.77.1"\n'

    home = made(ALPHA + '[[host]]\nname = "beta"\n' + asked)

    assert [host.address for host in home.hosts] == ["192.168.77.2", "192.168.77.1"]


def test_long_interface_names_that_begin_alike_get_unlike_ports() -> None:
    names = [f"enx00e04c68{n:03d}" for n in range(12)]
    tables = "".join(f'[[host.interface]]\nname = "{name}"\n' for name in names)

    ports = [each.port for each in made(ALPHA + tables).hosts[0].interfaces]

    assert len(set(ports)) == 13
    assert max(len(port) for port in ports) <= 15


@given(st.integers(min_value=1, max_value=32), st.sampled_from(["4", "6", "both"]))
def test_any_number_of_hosts_gets_addresses_of_the_family_in_order(count: int, family: str) -> None:
    tables = [f'[[host]]\nname = "h{n}"\nfamily = "{family}"\n' for n in range(count)]

    first = [host.interfaces[0] for host in made("".join(tables)).hosts]

    fours = [f"192.168.77.{n + 1}/24" if family != "6" else "None" for n in range(count)]
    sixes = [f"fd77::{n + 1:x}/64" if family != "4" else "None" for n in range(count)]
    assert [str(each.address4) for each in first] == fours
    assert [str(each.address6) for each in first] == sixes
    assert len({each.mac for each in first}) == len({each.port for each in first}) == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ALPHA + "spede = 1", ["line 3, host 'alpha', spede: unknown key", "mean 'speed'?"]),
        ("hots = 1\n" + ALPHA, ["line 1, hots: unknown key", "did you mean 'host'?"]),
        (ALPHA + "\n" + ALPHA, ["line 4, host 'alpha': there are two hosts of this name"]),
        (ALPHA + "speed = 0", ["line 3, host 'alpha', speed: must be", "not 0"]),
        (ALPHA + "cpus = 0", ["line 3, host 'alpha', cpus: must be", "not 0"]),
        (ALPHA + "memory = 4000", ["memory: 4000 has no unit", '"4 GB"']),
        (ALPHA + 'rate = "100 MB"', ["rate: '100 MB' is not a rate", '"100 Mbit/s"']),
        (ALPHA + 'delay = "5"', ["delay: '5' is not a time", '"5 ms"']),
        (ALPHA + 'loss = "100%"', ["loss: '100%' is not a percentage"]),
        (ALPHA + 'jitter = "1 ms"', ["line 3, host 'alpha', jitter: is more than the delay"]),
        ('[[host]]\nname = "my_pc"', ["line 2, host 'my_pc', name:", "is not a host name"]),
        ('[[host]]\nname = "123"', ["name: '123' is not a host name"]),
        ("[[host]]\ncpus = 1", ["line 1, host number 1, name: is missing"]),
        ("[[host]]\nname = \n", ["home.toml is not TOML", "line 2"]),
        ('[host]\nname = "alpha"', ["host: is not a list of tables", "[[host]]"]),
        ("", ["host: is missing"]),
        (f"x = {'9' * 5000}", ["home.toml is not TOML"]),
        (f"x = {'[' * 2000}", ["home.toml is not TOML"]),
        (f"{ALPHA}cpus = 0x{'f' * 5000}", ["line 3, host 'alpha', cpus: must be"]),
        (f"{ALPHA}memory = 0x{'f' * 5000}", ["line 3, host 'alpha', memory:"]),
        ("host = []", ["there are 0 hosts", "1 to 32"]),
        (LAN + LAN + ALPHA, ["line 4, network 'lan': there are two networks of this name"]),
        (
            LAN + '[[network]]\nname = "b"\nsubnet = "192.168.0.0/16"\n' + ALPHA,
            ["network 'b': 192.168.0.0/16 overlaps 192.168.77.0/24 of network 'lan'"],
        ),
        ('[[network]]\nname = "lan"\n' + ALPHA, ["neither subnet nor subnet6"]),
        (
            '[[network]]\nname = "lan"\nsubnet = "10.0.0.1/24"\n' + ALPHA,
            ["line 3, network 'lan', subnet:", "write '10.0.0.0/24'"],
        ),
        (LAN + ALPHA + 'family = "6"', ["family: is '6', but network 'lan' has no subnet6"]),
    ],
)
def test_a_flaw_is_told_with_its_place_and_what_is_allowed(text: str, said: list[str]) -> None:
    error = error_of(text)

    for part in said:
        assert part in error


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('name = "eth0"\naddress = "10.1.2.3"', "10.1.2.3 is not in 192.168.77.0/24"),
        ('name = "eth0"\naddress = "192.168.77.254"', "taken by the bridge of network 'lan'"),
        ('name = "eth0"\naddress = "192.168.77.9"', "192.168.77.9 is taken by host 'zeta'"),
        ('name = "eth0"\naddress = "192.168.77.255"', "first or last of 192.168.77.0/24"),
        ('name = "eth0"\naddress = "192.168.77.8/16"', "another prefix than 192.168.77.0/24"),
        ('name = "eth1"\nnetwork = "lna"', "there is no network 'lna'\nfix: did you mean 'lan'?"),
        ('name = "lo"', "'lo' is the kernel's own name"),
        ('name = "enp0s31f6-and-more"', "is not an interface's name"),
        ('name = "eth0"\nkind = "bridge"\naddress = "172.17.0.1/16"', "no interface on a network"),
        ('name = "docker0"\nkind = "bridge"', "needs an address"),
        ('name = "docker0"\nkind = "bridge"\nrate = "1gbit"', "leads nowhere"),
    ],
)
def test_a_flaw_of_an_interface_is_told(table: str, said: str) -> None:
    zeta = '[[host]]\nname = "zeta"\ninterface = [{ name = "eth0", address = "192.168.77.9" }]\n'

    error = error_of(f"{zeta}{ALPHA}[[host.interface]]\n{table}")

    assert said in error
    assert "host 'alpha'" in error


def test_a_short_cut_for_an_eth0_that_is_written_out_is_refused(
    snapshot: SnapshotAssertion,
) -> None:
    error = error_of(ALPHA + 'rate = "1gbit"\n[[host.interface]]\nname = "eth0"')

    assert error == snapshot


def test_all_flaws_of_values_are_told_at_once() -> None:
    error = error_of(ALPHA + 'speed = 2\nrate = "fast"\nspede = 1')

    assert [f"line {number}" in error for number in (3, 4, 5)] == [True] * 3


def test_more_than_32_hosts_are_refused(snapshot: SnapshotAssertion) -> None:
    tables = [f'[[host]]\nname = "h{n}"\n' for n in range(33)]

    assert error_of("".join(tables)) == snapshot


def test_a_subnet_too_small_for_its_hosts_is_told(snapshot: SnapshotAssertion) -> None:
    network = '[[network]]\nname = "lan"\nsubnet = "10.0.0.0/29"\n'
    tables = [f'[[host]]\nname = "h{n}"\n' for n in range(6)]

    assert error_of(network + "".join(tables)) == snapshot


def test_a_path_is_read_and_names_the_topology(tmp_path: Path) -> None:
    file = tmp_path / "My Home.toml"
    file.write_text(ALPHA)

    assert topology_load.load(str(file)).name == "my-home"


def test_a_path_that_is_not_there_is_told(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        topology_load.load(str(tmp_path / "home.toml"))
    assert str(caught.value) == snapshot


def test_an_unknown_name_lists_the_shipped_and_the_nearest(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        topology_load.load("two-host-1gbe")

    assert str(caught.value) == snapshot
    assert "vpn-and-docker" in str(caught.value)


def test_an_unknown_host_names_the_nearest(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        topology_load.load("two-hosts-1gbe").host("alhpa")
    assert str(caught.value) == snapshot


def test_a_topology_cannot_be_changed_by_accident() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        made(ALPHA).hosts[0].cpus = 3  # type: ignore[misc]
