"""The network that NCCL chose, by lines as several of its versions print them."""

from __future__ import annotations

import pytest

from yoked.diagnosis.nccl import NcclNetwork, network_of

# As NCCL 2.6 prints them, 2.20 with adapters of InfiniBand, and 2.27 over TCP.
TWO_ENDS = "[0]eno1:192.0.2.41<0> [1]veth25f2e72:fe80::380d:bfff:fe5b:54d2%veth25f2e72<0>"
OF_2_6 = (
    f"a:101542:101542 [0] NCCL INFO Bootstrap : Using {TWO_ENDS}",
    "a:101542:101542 [0] NCCL INFO NET/IB : No device found.",
    f"a:101542:101542 [0] NCCL INFO NET/Socket : Using {TWO_ENDS}",
)
ADAPTERS = "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]"
OF_2_20 = (
    "a:47021:47088 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.31<0>",
    f"a:47021:47095 [0] NCCL INFO NET/IB : Using {ADAPTERS}; OOB eth0:192.0.2.31<0>",
    "a:47021:47095 [0] NCCL INFO Using network IB",
)
OF_2_27 = (
    "a:152:152 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^docker0,lo",
    "a:152:152 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.51<0>",
    "a:152:386 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:192.0.2.51<0>",
    "a:152:386 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.51<0>",
    "a:152:386 [0] NCCL INFO Using network Socket",
)


@pytest.mark.parametrize(
    ("lines", "network"),
    [
        (
            OF_2_6,
            NcclNetwork((("eno1", "192.0.2.41"), ("veth25f2e72", "fe80::380d:bfff:fe5b:54d2"))),
        ),
        (OF_2_20, NcclNetwork((("eth0", "192.0.2.31"),), ("mlx5_0", "mlx5_1"))),
        (OF_2_27, NcclNetwork((("eth0", "192.0.2.51"),))),
        (OF_2_27[:2], NcclNetwork((("eth0", "192.0.2.51"),))),
    ],
)
def test_interfaces_and_adapters_are_read(lines: tuple[str, ...], network: NcclNetwork) -> None:
    assert network_of(("step 1", *lines, "step 2")) == network


@pytest.mark.parametrize(
    "line",
    [
        "step 1: Using eth0:10.0.0.2<0>",
        "a:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:9.9.9.999<0>",
        "a:1:1 [0] NCCL INFO NET/Socket : Using [0]\x1b[2J:10.0.0.2<0>",
        "a:1:1 [0] NCCL INFO Using network Socket",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert network_of([line]) is None


def test_an_interface_that_was_not_planned_is_said_with_where_that_comes_from() -> None:
    network = NcclNetwork((("docker0", "172.17.0.2"),))

    assert network.words("") == network.words("docker0") == "NCCL uses docker0 (172.17.0.2)"
    assert network.words("enp4s0") == (
        "NCCL uses docker0 (172.17.0.2), and not enp4s0 as planned: NCCL_SOCKET_IFNAME, or "
        "/etc/nccl.conf"
    )
    assert (network.is_on("docker0"), network.is_on("enp4s0")) == (True, False)


def test_adapters_carry_the_data_and_ranks_meet_by_the_interface() -> None:
    network = NcclNetwork((("eth0", "192.0.2.31"),), ("mlx5_0", "mlx5_1"))

    assert network.words("eth0") == "NCCL uses mlx5_0, mlx5_1, and eth0 (192.0.2.31) to meet"
